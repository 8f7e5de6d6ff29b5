"""What pools report becomes outcomes, once."""

import pytest

from taskmesh.core.events import FromClient, FromPool
from taskmesh.hub.machine.books.failures import jitter_of
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import CHUNK, DoneRun, Failed, Run
from tests.core.rig import EPOCH, HubRig, number_of, spec


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.join(slots=4)
    rig.client()
    return rig


def test_a_success_is_delivered_once(rig):
    rig.submit(1, 2)
    rig.report(1, done=((1, 1, 1), (1, 2, 1)))
    rig.report(1, done=((1, 1, 1),))

    assert rig.outcomes() == {1: "done", 2: "done"}
    assert rig.hub.state.diagnostics.duplicates == 1


def test_arguments_and_results_pass_as_they_came(rig):
    payloads, one = [b"", b"\0" * 70_000, "\N{SNOWMAN}".encode()], spec()
    run = Run(number_of(one), 0, [1, 2, 3], payloads)
    rig.tell(FromClient(1, m.Submit(1, [(number_of(one), one)], [run])))
    assert [data for message in rig.pushed for run in message.runs for data in run.payloads] == payloads

    done = DoneRun(number_of(one), 1, 1, "p/0", [1, 2, 3], payloads, 0.1)
    rig.tell(FromPool(m.Results(EPOCH, 1, 1, [done], [], [])))
    delivered = [message for message in rig.told[1] if isinstance(message, m.Deliver)]
    assert [data for message in delivered for run in message.done for data in run.payloads] == payloads


def test_the_first_success_of_any_attempt_wins(rig):
    rig.submit(1, 1)
    rig.hello(number=2)  # a new session: the old one's task is sent again
    rig.beat(2)
    assert rig.held[2] == [(1, 1, 2)]

    rig.report(1, done=((1, 1, 1),))
    assert rig.outcomes() == {1: "done"}
    rig.report(2, done=((1, 1, 2),))
    assert rig.outcomes() == {1: "done"}


def test_so_does_one_that_comes_while_a_retry_waits(rig):
    rig.submit(1, 1, spec("r", max_retries=2, backoff=5.0, jitter=False))
    rig.hello(number=2)
    rig.beat(2)
    rig.fail(2, (1, 1, 2))
    assert rig.state(1, 1) == "WAITING"

    rig.report(1, done=((1, 1, 1),))

    assert rig.outcomes() == {1: "done"}
    rig.after(6.0)
    assert not rig.tasks


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH - 1])
@pytest.mark.parametrize("session", [2, 3, 0, -1, -2])
@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_a_success_from_elsewhere_changes_nothing(rig, epoch, session, attempt):
    """Only the session that has the attempt, or had it to its end, can succeed with it (abuse list, A9)."""
    rig.join("other", queues=["other"])
    rig.submit(1, 1)
    done = DoneRun(1, 1, attempt, "other/0", [1], [b"forged"], 0.001)
    rig.tell(FromPool(m.Results(epoch, session, 1, [done], [], [])))

    assert rig.outcomes() == {}
    assert rig.hub.state.diagnostics.strays == 1
    assert rig.state(1, 1) == "SENT"


def test_a_failure_of_an_older_attempt_changes_nothing(rig):
    rig.submit(1, 1)
    rig.hello(number=2)
    rig.beat(2)
    rig.fail(2, (1, 1, 1), "crash")

    assert rig.hub.state.diagnostics.stale == 1
    assert rig.state(1, 1) == "SENT"
    assert rig.tasks[1 << 64 | 1].crashes == 0


def test_a_report_that_comes_twice_counts_once(rig):
    rig.submit(1, 1)
    results = m.Results(EPOCH, 1, 1, [], [Failed(1, 1, 1, "crash")], [])
    for _ in range(2):
        rig.tell(FromPool(results))

    assert rig.tasks[1 << 64 | 1].crashes == 1


def test_reports_out_of_order_all_count(rig):
    rig.submit(1, 2)
    for number, seq in ((2, 2), (1, 1)):
        done = DoneRun(1, 1, 1, "p/0", [seq], [b"r"], 0.001)
        rig.tell(FromPool(m.Results(EPOCH, 1, number, [done], [], [])))

    assert rig.outcomes() == {1: "done", 2: "done"}
    assert rig.hub.state.lanes[1].reports.to == 2


class TestRetries:
    def test_a_user_error_is_retried_after_a_while(self, rig):
        rig.submit(1, 1, spec("r", max_retries=2, backoff=1.0, factor=3.0, jitter=False))
        rig.fail(1, (1, 1, 1))
        rig.after(0.9)
        assert rig.state(1, 1) == "WAITING"
        rig.after(0.2)
        assert rig.held[1] == [(1, 1, 2)]
        rig.fail(1, (1, 1, 2))
        rig.after(2.9)
        assert rig.state(1, 1) == "WAITING"

    @pytest.mark.parametrize(("factor", "backoff", "wait"), [(1e308, 0.5, 8.0), (1e308, 0.0, 0.0)])
    def test_waits_grow_no_further_than_allowed(self, rig, factor, backoff, wait):
        options = {
            "max_retries": 5,
            "backoff": backoff,
            "factor": factor,
            "max_backoff": 8.0,
            "jitter": False,
        }
        rig.submit(1, 1, spec("r", **options))
        for attempt in (1, 2, 3):  # the third wait is beyond what a float holds
            rig.fail(1, (1, 1, attempt))
            rig.after(8.1 if attempt < 3 else max(0.0, wait - 0.1))
            rig.beat(1)

        assert rig.held[1] == ([] if wait else [(1, 1, 4)])
        rig.after(0.2)
        assert rig.held[1] == [(1, 1, 4)]

    def test_the_last_error_is_the_outcome_with_the_history(self, rig):
        rig.submit(1, 1, spec("r", max_retries=1, backoff=0.1))
        rig.fail(1, (1, 1, 1), text="first")
        rig.after(0.5)
        rig.beat(1)
        rig.fail(1, (1, 1, 2), text="second")

        failed = rig.told[1][-1].failed[0]
        assert (failed.kind, failed.text, failed.attempt) == ("exception", "second", 2)
        assert [line.split(": ")[0] for line in failed.history] == ["attempt 1 on ?", "attempt 2 on ?"]

    def test_what_the_filter_does_not_admit_is_not_retried(self, rig):
        rig.submit(1, 1, spec("r", max_retries=3))
        rig.fail(1, (1, 1, 1), retryable=False)

        assert rig.outcomes() == {1: "exception"}

    def test_a_task_may_say_when(self, rig):
        rig.submit(1, 1, spec("r", max_retries=1, backoff=100.0))
        rig.fail(1, (1, 1, 1), retry_after=0.5)
        rig.after(0.7)

        assert rig.held[1] == [(1, 1, 2)]

    def test_an_at_most_once_task_is_not_retried(self, rig):
        """It has run: a second run would be one too many, whatever its retries say."""
        rig.submit(1, 1, spec("r", max_retries=3, acks="early"))
        rig.fail(1, (1, 1, 1))

        assert rig.outcomes() == {1: "exception"}

    def test_jitter_depends_on_task_and_retry_only(self):
        values = {jitter_of(task, times) for task in range(200) for times in (1, 2)}

        assert len(values) == 400
        assert all(0 <= value < 1 for value in values)
        assert jitter_of(7, 1) == jitter_of(7, 1)


class TestCrashes:
    def test_a_task_that_kills_its_slot_thrice_is_dead(self, rig):
        rig.submit(1, 1)
        for attempt in (1, 2, 3):
            rig.fail(1, (1, 1, attempt), "crash", worker="p/0")

        assert rig.outcomes() == {1: "crash"}
        assert len(rig.told[1][-1].failed[0].history) == 3

    def test_memory_kills_are_counted_apart_and_wait(self, rig):
        rig.submit(1, 1)
        rig.fail(1, (1, 1, 1), "crash")
        rig.fail(1, (1, 1, 2), "oom")
        assert rig.state(1, 1) == "WAITING"
        rig.after(1.2)
        rig.fail(1, (1, 1, 3), "crash")

        assert rig.held[1] == [(1, 1, 4)]

    def test_lost_results_are_nobodys_fault(self, rig):
        rig.submit(1, 1)
        for attempt in range(1, 6):
            rig.fail(1, (1, 1, attempt), "lost")

        assert rig.held[1] == [(1, 1, 6)]

    def test_a_chunk_ends_at_its_first_crash(self, rig):
        """The client splits it, so that only the guilty item is blamed."""
        rig.submit(1, 1, spec("c", kind=CHUNK))
        rig.fail(1, (1, 1, 1), "crash")

        assert rig.outcomes() == {1: "crash"}

    def test_an_at_most_once_task_is_lost(self, rig):
        rig.submit(1, 1, spec("once", acks="early"))
        rig.fail(1, (1, 1, 1), "crash")

        assert rig.outcomes() == {1: "lost"}


class TestHandedBack:
    def test_uncharged_and_shown_as_the_same_attempt(self, rig):
        rig.submit(1, 1)
        rig.report(1, returned=((1, 1, 1),))
        assert rig.held[1] == [(1, 1, 2)]
        rig.fail(1, (1, 1, 2), retryable=False)

        assert rig.told[1][-1].failed[0].attempt == 1

    def test_only_what_the_session_still_holds(self, rig):
        rig.submit(1, 1)
        rig.report(1, returned=((1, 1, 1),))
        rig.report(1, returned=((1, 1, 1),))

        assert rig.held[1] == [(1, 1, 2)]
        assert rig.tasks[1 << 64 | 1].returns == 1


class TestKeys:
    @pytest.mark.parametrize("end", ["done", "exception"])
    def test_everybody_who_waits_gets_the_outcome(self, rig, end):
        rig.client(2)
        rig.submit(1, 1, key="k")
        rig.submit(2, 1, key="k")
        assert rig.held[1] == [(1, 1, 1)]
        if end == "done":
            rig.report(1, done=((1, 1, 1),))
        else:
            rig.fail(1, (1, 1, 1), retryable=False)

        assert rig.outcomes(1) == rig.outcomes(2) == {1: end}

    def test_one_who_gives_up_takes_nothing_from_the_other(self, rig):
        rig.client(2)
        rig.submit(1, 1, key="k")
        rig.submit(2, 1, key="k")
        rig.cancel(1, 1)
        rig.cancel(1, 1)
        rig.report(1, done=((1, 1, 1),))

        assert rig.outcomes(1) == {}
        assert rig.outcomes(2) == {1: "done"}

    def test_how_long_they_take_is_measured_too(self, rig):
        """With a key on each of them no task of the function was ever sent ahead."""
        rig.submit(1, 1, key="k")
        rig.report(1, done=((1, 1, 1),), elapsed=0.25)
        (entry,) = rig.hub.state.specs.values()

        assert entry.service == 0.25

    def test_after_the_end_the_key_is_free(self, rig):
        rig.submit(1, 1, key="k")
        rig.report(1, done=((1, 1, 1),))
        rig.submit(1, 1, key="k")

        assert rig.held[1] == [(1, 2, 1)]
