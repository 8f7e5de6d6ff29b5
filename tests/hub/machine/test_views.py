"""What people are told, and what operators may order."""

import pytest

from taskmesh.client.futures.outcome import TaskState
from taskmesh.core.actions import LogEvent, Publish
from taskmesh.core.events import FromClient, FromPool
from taskmesh.core.ids import text_of
from taskmesh.hub.machine.books.states import ON_ITS_WAY, State
from taskmesh.hub.machine.figures import diagnostics
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Failed
from tests.core.rig import EPOCH, HubRig, spec


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def ask(rig: HubRig, what: str, argument: str = "", limit: int = 100) -> m.Answer:
    rig.tell(FromClient(1, m.Query(7, what, argument, limit)))
    answer = rig.told[1][-1]
    assert isinstance(answer, m.Answer)
    assert answer.number == 7
    return answer


def order(rig: HubRig, verb: str, target: str) -> m.Answer:
    rig.tell(FromClient(1, m.Command(8, verb, target)))
    return next(answer for answer in reversed(rig.told[1]) if isinstance(answer, m.Answer))


def test_status_counts(rig):
    rig.join(slots=1)
    rig.submit(1, 3)

    status = ask(rig, "status").value
    assert status["tasks"] == {"queued": 3, "running": 0}
    assert [pool["pool"] for pool in status["pools"]] == ["p"]
    assert status["clients"][0]["tasks"] == 3
    assert status == rig.hub.snapshot()


def test_states_have_the_words_that_futures_have():
    assert {state.word for state in State} <= {*TaskState}
    assert {state.word for state in ON_ITS_WAY} == {"queued", "running"}


def test_commands_that_ask_are_no_clients_unless_they_have_tasks(rig):
    rig.join(slots=1)
    rig.tell(FromClient(9, m.ClientHello(9, 0, operator=True)))

    def told() -> list[str]:
        return [row["client"] for row in ask(rig, "status").value["clients"]]

    assert told() == [f"{1:016x}"]
    rig.client(8)
    rig.tell(FromClient(8, m.ClientHello(8, 0, operator=True)))
    rig.submit(8)
    assert told() == [f"{1:016x}", f"{8:016x}"]


def test_pools_show_what_they_are(rig):
    rig.join("gpu-1", slots=3, queues=["a", "b"], tags=["gpu"], host="node", pid=12)

    (pool,) = ask(rig, "pools").value
    assert (pool["pool"], pool["slots"], pool["queues"], pool["tags"]) == ("gpu-1", 3, ["a", "b"], ["gpu"])
    assert (pool["host"], pool["pid"], pool["state"]) == ("node", 12, "ready")


def test_tasks_by_state_and_no_more_than_asked_for(rig):
    rig.join(slots=1)
    rig.submit(1, 5)

    assert len(ask(rig, "tasks").value) == 5
    assert len(ask(rig, "tasks", "queued", 2).value) == 2
    sent, *_ = ask(rig, "tasks", "QUEUED").value
    assert (sent["task_id"], sent["pool"], sent["attempt"]) == (text_of(1 << 64 | 1), "p", 1)
    assert ask(rig, "tasks", "running").value == []


def test_a_state_that_there_is_not_is_an_error_with_those_there_are(rig):
    assert "queued and running" in ask(rig, "tasks", "ended").error


def test_each_failed_attempt_is_told_and_the_end_of_a_failed_task_explained(rig, monkeypatch):
    """Failures are visible: in the log each attempt, afterwards how it ended, for the latest of them."""
    session = rig.join(slots=1)
    rig.submit(1, 2, spec(max_retries=1, backoff=0.0))

    def failed(attempt: int) -> list[object]:
        error = Failed(1, 1, attempt, "exception", "ValueError", "no good", "Trace", retryable=True)
        report = m.Results(EPOCH, session, attempt, [], [error], [])
        return [action.fields for action in rig.tell(FromPool(report)) if isinstance(action, LogEvent)]

    [first], [second] = failed(1), failed(2)

    assert (first["attempt"], first["name"], first["task_id"]) == (1, "f", text_of(1 << 64 | 1))
    assert (second["type"], second["text"], second["traceback"]) == ("ValueError", "no good", "Trace")
    found = ask(rig, "task", text_of(1 << 64 | 1)).value
    assert found["state"] == "failed"
    assert "exception ValueError: no good" in found["why"]
    assert len(found["history"]) == 2
    assert ask(rig, "status").value["ended"] == {
        **dict.fromkeys(("succeeded", "cancelled", "expired", "dead", "lost"), 0),
        "failed": 1,
    }


def test_only_the_latest_bad_ends_are_kept(rig, monkeypatch):
    monkeypatch.setattr(diagnostics, "RECENT", 2)
    session = rig.join(slots=3)
    for seq in rig.submit(1, 3):
        rig.fail(session, (1, seq, 1))

    states = [ask(rig, "task", text_of(1 << 64 | seq)).value["state"] for seq in (1, 2, 3)]

    assert states == ["ended", "failed", "failed"]


class TestWhy:
    def why(self, rig: HubRig, seq: int = 1) -> str:
        return ask(rig, "task", text_of(1 << 64 | seq)).value["why"]

    def test_nobody_serves_it(self, rig):
        rig.join()
        rig.submit(1, 1, spec(queue="a", tags=("gpu",)))

        start = "taskmesh worker --queues a --tags gpu"
        assert self.why(rig) == f"queue 'a' with tags gpu: no pool serves it: {start}"

    def test_who_would_is_paused(self, rig):
        rig.beat(rig.join(), state="paused")
        rig.submit(1, 1)

        assert "p is paused" in self.why(rig)

    def test_its_turn_will_come(self, rig):
        rig.join(slots=1)
        rig.submit(1, 4)

        busy = "every pool that serves queue 'default' is busy"
        assert self.why(rig, 2) == f"{busy}; 0 before it"
        assert self.why(rig, 4) == f"{busy}; 2 before it"
        next(iter(rig.hub.state.specs.values())).measured(1, 2.0)
        assert self.why(rig, 4) == f"{busy}; 2 before it: about 6 s, if they take as long as it"

    def test_those_of_a_higher_priority_are_before_it(self, rig):
        rig.join(slots=1)
        rig.submit(1, 2)
        rig.submit(1, 5, spec("urgent", priority=1))

        assert self.why(rig, 2).endswith("; 5 before it")
        assert self.why(rig, 7).endswith("; 4 before it")

    def test_it_waits_for_its_retry(self, rig):
        session = rig.join()
        rig.submit(1, 1, spec(max_retries=1, backoff=10.0, jitter=False))
        rig.fail(session, (1, 1, 1), text="no")

        assert self.why(rig) == "it waits 10.0 s for a retry"
        assert ask(rig, "task", text_of(1 << 64 | 1)).value["history"] == ["attempt 1 on ?: exception no"]

    def test_a_pool_has_it(self, rig):
        session = rig.join()
        rig.submit(1, 1)
        assert self.why(rig) == "pool p has it"
        rig.beat(session, running=((1, 1, 1),))
        rig.after(0.5)
        assert self.why(rig) == "p/0 runs it for 500 ms"
        next(iter(rig.hub.state.specs.values())).figures.run.add(0.01, 100)
        assert self.why(rig) == "p/0 runs it for 500 ms; 99 of 100 calls end within 10.8 ms"
        (row,) = ask(rig, "tasks", "running").value
        assert (row["state"], row["seconds"]) == ("running", 0.5)

    def test_it_is_over(self, rig):
        session = rig.join()
        rig.submit(1, 1)
        rig.report(session, done=((1, 1, 1),))

        found = ask(rig, "task", text_of(1 << 64 | 1)).value
        assert (found["state"], found["name"], found["attempt"]) == ("succeeded", "f", 1)
        assert found["ended"] == rig.hub.state.wall
        assert found["why"].startswith("attempt 1 on ")

    @pytest.mark.parametrize("text", ["12", "z" * 32, "f" * 32])
    def test_it_never_was(self, rig, text):
        assert ask(rig, "task", text).error


def test_events_since_a_number(rig):
    session = rig.join("p")
    rig.tell(FromPool(m.Bye(EPOCH, session)))
    rig.now += 1.0

    first, second = ask(rig, "events").value
    assert (first["kind"], second["kind"], second["reason"]) == ("pool.joined", "pool.left", "left")
    assert second["ago"] == pytest.approx(1.0)
    assert ask(rig, "events", str(first["number"])).value == [second]
    assert ask(rig, "events", "x").error


def test_commands_that_were_obeyed_are_events(rig):
    rig.join("p")
    for target in ("p", "nobody"):
        rig.tell(FromClient(1, m.Command(1, "pause", target)))

    actions = [each for each in ask(rig, "events").value if each["kind"] == "operator.action"]
    assert [(each["verb"], each["target"], each["by"]) for each in actions] == [("pause", "p", "")]


def test_a_view_that_there_is_not_is_an_error_with_those_there_are(rig):
    assert "status, pools, tasks" in ask(rig, "weather").error


class TestCommands:
    def test_pause_reaches_the_pool_and_stops_work_at_once(self, rig):
        session = rig.join()
        (row,) = order(rig, "pause", "p").value
        assert row == {"pool": "p", "session": session, "running": 0, "heard": 0.0}
        rig.submit(1, 1)

        assert rig.held[session] == []
        assert Publish("p", m.PoolCommand("pause", 1)) in [Publish(*one) for one in rig.published]

    def test_it_is_repeated_until_the_beats_obey(self, rig):
        session = rig.join()
        order(rig, "pause", "all")
        rig.published.clear()
        rig.beat(session)
        assert [message.verb for _, message in rig.published if isinstance(message, m.PoolCommand)] == [
            "pause"
        ]

        rig.beat(session, state="paused")
        rig.published.clear()
        rig.beat(session, state="paused")
        assert not [message for _, message in rig.published if isinstance(message, m.PoolCommand)]

    def test_a_new_session_does_not_forget_it(self, rig):
        rig.join()
        order(rig, "drain", "p")
        session = rig.join(number=2)
        rig.submit(1, 1)

        assert rig.held[session] == []

    def test_resume(self, rig):
        session = rig.join()
        order(rig, "pause", "p")
        rig.beat(session, state="paused")
        order(rig, "resume", "p")
        rig.beat(session, state="ready")
        rig.submit(1, 1)

        assert rig.held[session] == [(1, 1, 1)]

    def test_scale_in_drains_the_idlest_and_among_equals_the_newest(self, rig):
        busy = [rig.join("m-a-1", slots=2), rig.join("m-a-2", slots=2)]
        rig.submit(1, 3)
        idle = [rig.join(name, slots=2) for name in ("m-a-3", "m-a-4", "other")]

        first = order(rig, "scale-in", "1:m-a").value
        rest = order(rig, "scale-in", "2:m-a").value

        assert [(row["pool"], row["session"], row["running"]) for row in first] == [("m-a-4", idle[1], 0)]
        assert rest[0]["pool"] == "m-a-3"
        assert (rest[1]["running"], rest[1]["session"] in busy) == (1, True)
        drained = [topic for topic, message in rig.published if getattr(message, "verb", "") == "drain"]
        assert drained == ["m-a-4", "m-a-3", rest[1]["pool"]]

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            ("2:m", "'m' has 1 pools that could leave, not 2: m-1"),
            ("1:mm", "'mm' has 0 pools that could leave, not 1: none"),
            ("0:m", "'0' is no number of pools"),
            ("-1:m", "'-1' is no number of pools"),
            ("m", "'m' is no number of pools"),
        ],
    )
    def test_scale_in_takes_no_more_than_there_are(self, rig, target, reason):
        rig.join("m-1")

        assert order(rig, "scale-in", target).error == reason
        assert not [message for _, message in rig.published if isinstance(message, m.PoolCommand)]

    def test_cancel_ends_a_task_and_its_client_hears_of_it(self, rig):
        rig.submit(1, 1)
        text = text_of(1 << 64 | 1)

        assert order(rig, "cancel", text).value == {"cancelled": text}
        assert rig.outcomes() == {1: "cancelled"}
        assert "on its way" in order(rig, "cancel", text).error

    def test_so_does_a_client_whose_task_another_one_waits_for_too(self, rig):
        """It waited for ever."""
        rig.client(2)
        rig.submit(1, 1, key="k")
        rig.submit(2, 1, key="k")

        assert not order(rig, "cancel", text_of(2 << 64 | 1)).error
        assert rig.outcomes(2) == {1: "cancelled"}
        assert rig.state(1, 1) == "QUEUED"

    @pytest.mark.parametrize(("verb", "target"), [("pause", "nobody"), ("explode", "p"), ("cancel", "7")])
    def test_what_cannot_be_done_is_an_error(self, rig, verb, target):
        rig.join()

        assert order(rig, verb, target).error
