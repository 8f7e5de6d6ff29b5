"""Tasks that depend on others: what the hub decides, as lists of events."""

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.books import dependencies
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DONE, FAILURE, SUCCESS, DoneRun, Failed, Held, Run, Value
from tests.core.rig import EPOCH, HubRig, number_of, spec

ENDS = ("done", "exception", "crash", "lost", "expired", "cancelled", "unknown")
BAD = ENDS[1:]


def rig_with(**config: object) -> HubRig:
    rig = HubRig(**{"crash_limit": 1, **config})
    rig.client()
    return rig


@pytest.fixture
def rig() -> HubRig:
    return rig_with()


def upstream_of(rig: HubRig, end: str) -> int:
    """Submits a task that can end so."""
    options = {"lost": {"acks": "early"}, "expired": {"expires": 5.0, "queue": "elsewhere"}}.get(end, {})
    (seq,) = rig.submit(one=spec("upstream", **options))
    return seq


def bring_about(rig: HubRig, session: int, seq: int, end: str) -> None:
    match end:
        case "done":
            rig.report(session, done=((1, seq, 1),))
        case "exception" | "crash":
            rig.fail(session, (1, seq, 1), end)
        case "lost":
            rig.fail(session, (1, seq, 1), "crash")
        case "expired":
            for _ in range(30):
                rig.after(0.2)
                rig.beat(session)
        case "cancelled":
            rig.cancel(1, seq)


def pushed(rig: HubRig) -> list[int]:
    return [seq for message in rig.pushed for run in message.runs for seq in run.seqs]


# --- when -------------------------------------------------------------------------------------------------


def after_end(end: str, when: int) -> tuple[HubRig, int, int]:
    """A task that depends on one which ends so; an unknown one ends at the client, which says so."""
    rig = rig_with()
    session = rig.join()
    if end == "unknown":
        failure = Failed(1, 77, 0, "exception", text="it was never here")
        return rig, session, rig.depend(77, when=when, values=(Value(77, failed=failure),))
    first = upstream_of(rig, end)
    seq = rig.depend(first, when=when)
    assert rig.state(1, seq) == "WAITING"
    bring_about(rig, session, first, end)
    return rig, session, seq


@pytest.mark.parametrize("end", ENDS)
def test_when_success(end):
    rig, _, seq = after_end(end, SUCCESS)

    if end == "done":
        assert rig.state(1, seq) == "SENT"
        needs, sent = rig.values_of(seq)
        assert needs == [1]
        assert sent[1].payload == b"r"
    else:
        assert rig.state(1, seq) == "finished"
        assert rig.outcomes()[seq] == "dependency"
        assert seq not in pushed(rig)


@pytest.mark.parametrize("end", ENDS)
def test_when_done(end):
    rig, _, seq = after_end(end, DONE)

    assert rig.state(1, seq) == "SENT"
    needs, sent = rig.values_of(seq)
    (value,) = [sent[need] for need in needs]
    assert (value.failed is None) == (end == "done")
    assert value.failed is None or value.failed.kind == {"unknown": "exception"}.get(end, end)


@pytest.mark.parametrize("end", ENDS)
def test_when_failure(end):
    rig, _, seq = after_end(end, FAILURE)

    if end == "done":
        assert rig.outcomes()[seq] == "cancelled"
        assert seq not in pushed(rig)
    else:
        assert rig.state(1, seq) == "SENT"


@pytest.mark.parametrize(("when", "kind"), [(SUCCESS, "cancelled"), (DONE, None), (FAILURE, "cancelled")])
def test_what_depends_on_a_skipped_task(rig, when, kind):
    """It is skipped likewise, but for what runs whatever came."""
    session = rig.join()
    (first,) = rig.submit()
    skipped = rig.depend(after=(first,), when=FAILURE)
    last = rig.depend(after=(skipped,), when=when)
    rig.report(session, done=((1, first, 1),))

    assert rig.outcomes()[skipped] == "cancelled"
    assert rig.outcomes().get(last) == kind
    assert (last in pushed(rig)) == (kind is None)
    assert not [record for record in rig.records if record.kind == "task.failed"]


def test_when_failure_starts_at_the_first_one(rig):
    session = rig.join(slots=3)
    first, second = rig.submit(count=2)
    seq = rig.depend(after=(first, second), when=FAILURE)
    rig.fail(session, (1, second, 1))

    assert rig.state(1, seq) == "SENT"
    rig.report(session, done=((1, first, 1), (1, seq, 1)))
    assert rig.outcomes() == {first: "done", second: "exception", seq: "done"}


# --- the table --------------------------------------------------------------------------------------------


def test_it_starts_when_the_last_one_has_succeeded(rig):
    session = rig.join(slots=3)
    first, second = rig.submit(count=2)
    seq = rig.depend(first, after=(second,))
    rig.report(session, done=((1, first, 1),))
    assert rig.state(1, seq) == "WAITING"
    rig.report(session, done=((1, second, 1),))

    assert rig.state(1, seq) == "SENT"
    assert rig.values_of(seq)[0] == [first]


def test_a_bad_end_is_passed_on_at_once_and_the_siblings_go_on(rig):
    session = rig.join(slots=3)
    first, second = rig.submit(count=2)
    joined = rig.depend(first, second)
    last = rig.depend(joined)
    rig.fail(session, (1, first, 1), type_name="ValueError", text="no")

    assert rig.outcomes() == {first: "exception", joined: "dependency", last: "dependency"}
    ends = {f.seq: f for msg in rig.told[1] if isinstance(msg, m.Deliver) for f in msg.failed}
    assert ends[joined].upstream == first
    assert ends[last].upstream == joined
    assert "ValueError: no" in ends[last].text
    assert rig.state(1, second) == "SENT"
    rig.report(session, done=((1, second, 1),))
    assert rig.outcomes()[second] == "done"


def test_dependents_see_terminal_states_only(rig):
    """A retry of the upstream task is nothing that they hear of."""
    session = rig.join()
    (first,) = rig.submit(one=spec("retried", max_retries=1, backoff=0.5, jitter=False))
    seq = rig.depend(first)
    rig.fail(session, (1, first, 1))
    assert rig.state(1, seq) == "WAITING"
    rig.after(1.0)
    rig.report(session, done=((1, first, 2),))

    assert rig.state(1, seq) == "SENT"


def test_several_end_in_one_message_and_doubles_do_not_count(rig):
    session = rig.join(slots=4)
    first, second, third = rig.submit(count=3)
    seq = rig.depend(first, second, third)
    rig.report(session, done=((1, first, 1), (1, second, 1)))
    rig.report(session, done=((1, first, 1), (1, second, 1)))
    assert rig.state(1, seq) == "WAITING"
    rig.report(session, done=((1, third, 1),))

    assert rig.state(1, seq) == "SENT"


def test_the_same_task_twice_is_one_edge(rig):
    session = rig.join()
    (first,) = rig.submit()
    seq = rig.depend(first, first, after=(first,))
    rig.report(session, done=((1, first, 1),))

    assert rig.state(1, seq) == "SENT"


def test_an_outcome_that_is_unknown_here_is_asked_for_and_nothing_is_accepted_meanwhile(rig):
    rig.join()
    seq = rig.depend(77)

    assert rig.told[1][-1] == m.NeedValues(1, [77])
    assert rig.state(1, seq) == "finished"
    one = spec()
    again = m.Submit(1, [(number_of(one), one)], [Run(number_of(one), 0, [seq], [b"x"], needs=[[77]])])
    again.values = [Value(77, b"known")]
    rig.tell(ev.FromClient(1, again))
    assert rig.state(1, seq) == "SENT"
    assert rig.values_of(seq)[1][77].payload == b"known"


def test_cancelling_a_dependent_leaves_the_upstream_task_alone(rig):
    session = rig.join()
    (first,) = rig.submit()
    seq = rig.depend(first)
    rig.cancel(1, seq)

    assert rig.state(1, first) == "SENT"
    rig.report(session, done=((1, first, 1),))
    assert rig.outcomes() == {first: "done"}
    assert rig.hub.state.dependencies.values == {}


def test_expiry_counts_while_it_waits(rig):
    session = rig.join()
    (first,) = rig.submit()
    seq = rig.depend(first, one=spec("brief", expires=3.0))
    for _ in range(20):
        rig.after(0.2)
        rig.beat(session)

    assert rig.outcomes() == {seq: "expired"}


def test_a_delay_and_a_dependency_are_both_waited_for():
    for task_first in (True, False):
        rig = rig_with()
        session = rig.join()
        (first,) = rig.submit()
        seq = rig.depend(first, delay=5.0)
        if task_first:
            rig.report(session, done=((1, first, 1),))
        for _ in range(23):
            assert rig.state(1, seq) == "WAITING"
            rig.after(0.2)
            rig.beat(session)
        rig.after(0.6)
        rig.beat(session)
        if not task_first:
            assert rig.state(1, seq) == "WAITING"
            rig.report(session, done=((1, first, 1),))
        assert rig.state(1, seq) == "SENT"


@pytest.mark.parametrize("how", ["fails", "is returned", "pool dies"])
def test_one_that_another_hub_has_started_cannot_start_again_without_its_values(rig, how):
    """Seed 1673: the earlier hub had the outcome; here the task before it was cancelled."""
    one = spec(max_retries=3)
    runs = [
        Run(number_of(one), 0, [1], [b"call"], again=True),
        Run(number_of(one), 0, [2], [b"call"], again=True, needs=[[1]]),
    ]
    rig.tell(ev.FromClient(1, m.Submit(1, [(number_of(one), one)], runs)))
    session = rig.join(inventory=[Held(1, 1, [2])])
    assert rig.state(1, 2) == "SENT"
    rig.tell(ev.FromClient(1, m.Submit(2, [], [], [1])))
    if how == "fails":
        rig.fail(session, (1, 2, 1))
    elif how == "is returned":
        rig.report(session, returned=((1, 2, 1),))
    else:
        rig.after(30.0)

    assert rig.state(1, 2) == "finished"
    assert "dependency" in str(rig.hub.state.diagnostics.recent.by_task[1 << 64 | 2]["why"])
    assert rig.pushed == []


def test_one_of_the_same_message_that_has_ended_since_it_was_sent(rig):
    """Seed 592277246949: the hub was full; when the Submit came again, its client had the outcome already."""
    session = rig.join()
    one = spec()
    (first,) = rig.submit(one=one)
    rig.report(session, done=((1, first, 1),))
    rig.tell(ev.FromClient(1, m.ResultAck(EPOCH, 1)))
    runs = [
        Run(number_of(one), 0, [first], [b"call"], again=True),
        Run(number_of(one), 0, [2], [b"call"], again=True, needs=[[first]]),
    ]
    rig.tell(ev.FromClient(1, m.Submit(2, [], runs)))
    assert rig.told[1][-1] == m.NeedValues(2, [first])

    rig.tell(ev.FromClient(1, m.Submit(2, [], runs, values=[Value(first, b"r", "f", 1)])))
    assert (rig.state(1, first), rig.state(1, 2)) == ("finished", "WAITING")  # until all pools are back
    assert rig.outcomes() == {first: "done"}


def test_its_time_comes_in_the_step_in_which_it_is_blocked(rig):
    (first,) = rig.submit(one=spec("fleeting", expires=0.6, queue="elsewhere"))
    seq = rig.depend(first, delay=1.4)
    rig.join()
    rig.now += 5.0  # the hub stands still
    rig.beat(rig.session())
    rig.after(0.4)
    assert rig.outcomes() == {first: "expired", seq: "dependency"}
    assert rig.pushed == []


def test_unstarted_dependents_are_cancelled_at_once(rig):
    rig.join()
    (first,) = rig.submit()
    seq = rig.depend(first)
    rig.cancel_unstarted(1, seq)

    assert rig.outcomes() == {seq: "cancelled"}


def test_a_waiter_of_a_key_that_gives_up_blocks_what_depends_on_it(rig):
    """The task itself goes on, for the other who submitted it under the same key."""
    session = rig.join()
    (first,) = rig.submit(key="k")
    (second,) = rig.submit(key="k")
    on_first, on_second = rig.depend(first), rig.depend(second)
    rig.cancel(1, second)

    assert rig.outcomes() == {on_second: "dependency"}
    rig.report(session, done=((1, first, 1),))
    assert rig.state(1, on_first) == "SENT"


def test_explain_names_the_reason(rig):
    session = rig.join(slots=4)
    seqs = rig.submit(count=2)
    last = rig.depend(seqs[0], after=(seqs[1],), delay=60.0)

    assert rig.why(1, last) == "it waits for 2 tasks that it depends on"
    rig.report(session, done=((1, seqs[0], 1),))
    assert rig.why(1, last) == "it waits for a task that it depends on"
    rig.report(session, done=((1, seqs[1], 1),))
    assert rig.why(1, last) == "it waits 60.0 s for its time to start"


# --- outcomes ---------------------------------------------------------------------------------------------


def test_an_outcome_goes_once_to_each_lane_and_is_forgotten_after_the_last_need(rig):
    one, other = rig.join("a", slots=4), rig.join("b", slots=4)
    (first,) = rig.submit()
    seqs = [rig.depend(first) for _ in range(6)]
    holder = one if rig.held[one] else other
    rig.report(holder, done=((1, first, 1),))

    sent = [(msg.session, v.seq) for msg in rig.pushed for run in msg.runs for v in run.values]
    assert sorted(sent) == sorted({(one, first), (other, first)})
    for session in (one, other):
        for key in list(rig.held[session]):
            rig.report(session, done=(key,))
    assert rig.outcomes().keys() == {first, *seqs}
    rig.after(1.0)
    forgotten = [msg.session for msg in rig.pushed for _ in msg.unused]
    assert sorted(forgotten) == sorted([one, other])
    assert rig.hub.state.dependencies.values == {}
    assert rig.hub.state.ledger.size == 0


def test_a_task_that_goes_to_another_pool_takes_the_outcome_along():
    rig = rig_with(lease=2.0)
    one = rig.join("a")
    (first,) = rig.submit()
    seq = rig.depend(first)
    rig.report(one, done=((1, first, 1),))
    assert rig.held[one] == [(1, seq, 1)]
    other = rig.join("b")
    for _ in range(15):
        rig.after(0.2)
        rig.beat(other, "b")

    assert rig.held[other] == [(1, seq, 2)]
    assert [v.seq for v in rig.pushed[-1].runs[0].values] == [first]


def test_without_room_for_an_outcome_its_dependents_fail_and_say_so():
    rig = rig_with(client_max_bytes=20_000)
    session = rig.join()
    (first,) = rig.submit(size=1)
    seq, after = rig.depend(first), rig.depend(after=(first,))
    run = DoneRun(rig.spec_of((1, first, 1)), 1, 1, "p/0", [first], [b"r" * 20_001], 0.001)
    rig.tell(ev.FromPool(m.Results(EPOCH, session, 1, [run], [], [])))

    assert rig.outcomes() == {first: "done", seq: "dependency"}
    ends = [f for msg in rig.told[1] if isinstance(msg, m.Deliver) for f in msg.failed]
    assert "client.max_bytes" in ends[0].text
    rig.tell(ev.FromClient(1, m.ResultAck(EPOCH, 2)))
    assert rig.state(1, after) == "SENT"


def test_what_is_ready_goes_to_the_front_in_the_order_of_submission(rig):
    """So that what is begun is finished first, and outcomes are not held for long."""
    session = rig.join(slots=1)
    (first,) = rig.submit()
    seqs = [rig.depend(first) for _ in range(3)]
    others = rig.submit(count=2)
    rig.report(session, done=((1, first, 1),))
    for _ in range(5):
        rig.report(session, done=(rig.held[session][0],), elapsed=5.0)

    assert pushed(rig) == [first, *seqs, *others]


@pytest.mark.parametrize("when", [SUCCESS, DONE])
def test_a_great_many_hear_of_an_end_in_portions(rig, monkeypatch, when):
    """Each step looks at so many of them, if they are blocked and if they start."""
    monkeypatch.setattr(dependencies, "LOOKS", 1000)
    session = rig.join()
    (first,) = rig.submit()
    seqs = list(range(10, 1010))
    one = spec()
    run = Run(number_of(one), 0, seqs, [b"x"] * len(seqs), after=[[first]] * len(seqs), when=when)
    rig.tell(ev.FromClient(1, m.Submit(2, [(number_of(one), one)], [run])))
    rig.fail(session, (1, first, 1))
    settled, states = 0, rig.hub.state.ledger.waiting
    each = dependencies.PER_END if when == SUCCESS else dependencies.PER_START
    assert len(states) == len(seqs), "they have all heard in this step, and no more"
    while rig.hub.deadline == rig.now:
        rig.tell(ev.Tick())
        settled += 1000 // each
        assert len(states) == len(seqs) - settled
    assert not states
    if when == SUCCESS:
        assert list(rig.outcomes()) == [first, *seqs]


def test_one_that_is_given_up_before_it_has_heard_needs_nothing_any_more(rig, monkeypatch):
    monkeypatch.setattr(dependencies, "LOOKS", 1)
    session = rig.join()
    (first,) = rig.submit()
    seqs = [rig.depend(first) for _ in range(10)]
    rig.report(session, done=((1, first, 1),))
    rig.cancel(1, *seqs[3:])
    while rig.hub.deadline == rig.now:
        rig.tell(ev.Tick())
    while rig.held[session]:
        rig.report(session, done=(rig.held[session][0],))

    assert set(rig.outcomes()) == {first, *seqs[:3]}
    assert not rig.hub.state.dependencies.values
