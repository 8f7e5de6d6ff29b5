"""The journal of a hub: what is written when, and what the next hub makes of it."""

from __future__ import annotations

import copy

import pytest

from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import Ends, JournalChunk
from taskmesh.messages.runs import ATTACHMENT, ATTACHMENT_NAME, LimitRule, Run, Spec, Value
from tests.core.rig import EPOCH, HubRig, number_of, spec

LEASE = 2.0
WALL = 1_000_000.0


def hub(entries: dict | None = None, *, wall: float = WALL, **config: object) -> HubRig:
    rig = HubRig(journaled=True, lease=LEASE, **config)
    rig.journal = copy.deepcopy(entries or {})
    rig.tell(ev.JournalRead(copy.deepcopy(rig.journal), wall))
    return rig


@pytest.fixture
def rig() -> HubRig:
    """A hub with an empty journal, and client 1."""
    rig = hub()
    rig.client()
    return rig


def after_death(rig: HubRig, *, wall: float = WALL) -> HubRig:
    """The hub is killed; the next one has what was written."""
    return hub(rig.journal, wall=wall)


def kinds(rig: HubRig) -> str:
    return "".join(sorted(key[0] for key in rig.journal))


def accepted(rig: HubRig, client: int = 1) -> int:
    return max([0, *(said.number for said in rig.told[client] if isinstance(said, m.Accepted))])


def run_all(rig: HubRig, session: int) -> None:
    while rig.held[session]:
        rig.report(session, done=(rig.held[session][0],))


def past_recovery(rig: HubRig, session: int) -> None:
    """All pools that may come back are awaited."""
    for _ in range(15):
        rig.after(0.2)
        rig.beat(session)


def attached(rig: HubRig, seq: int, client: int = 2) -> str:
    """Have another client attach to a task of client 1; return how it ends once all is written."""
    rig.client(client)
    one = Spec(b"", ATTACHMENT_NAME, kind=ATTACHMENT)
    run = Run(number_of(one), 0, [1], [b""], f"{1:016x}{seq:016x}")
    rig.tell(ev.FromClient(client, m.Submit(1, [(number_of(one), one)], [run])))
    rig.write()
    return rig.outcomes(client)[1]


def acknowledge(rig: HubRig, client: int = 1) -> None:
    deliveries = [said.number for said in rig.told[client] if isinstance(said, m.Deliver)]
    rig.tell(ev.FromClient(client, m.ResultAck(EPOCH, deliveries[-1])))


def test_a_task_is_accepted_when_it_is_written(rig):
    rig.submit()
    rig.submit()
    rig.after(0.5)
    assert accepted(rig) == 0

    rig.write()
    assert accepted(rig) == 2
    assert kinds(rig) == "ccs"


def test_what_is_not_durable_is_accepted_at_once(rig):
    rig.submit(one=spec("bound", on_client_loss="cancel"))
    rig.submit(one=spec("once", acks="early"))
    rig.after(0.5)

    assert accepted(rig) == 2
    assert rig.unwritten == []


def test_a_task_goes_from_the_journal_when_its_client_has_the_outcome(rig):
    session = rig.join()
    rig.submit(count=3)
    run_all(rig, session)
    rig.write()
    assert kinds(rig) == "cs"

    acknowledge(rig)
    rig.write()
    assert rig.journal == {}


def test_which_tasks_of_a_chunk_are_over_is_written_now_and_then(rig):
    session = rig.join(slots=1)
    seqs = rig.submit(count=3)
    rig.report(session, done=(rig.held[session][0],))
    acknowledge(rig)
    rig.after(0.5)
    rig.write()

    assert [entry.seqs for entry in rig.journal.values() if isinstance(entry, Ends)] == [seqs[:1]]
    again = after_death(rig)
    assert [again.state(1, seq) for seq in seqs] == ["finished", "WAITING", "WAITING"]


def test_a_task_that_is_given_up_goes(rig):
    (seq,) = rig.submit()
    rig.cancel(1, seq)
    rig.write()
    assert rig.journal == {}


def test_a_client_that_leaves_and_cancels_its_tasks(rig):
    rig.submit()
    rig.tell(ev.FromClient(1, m.ClientBye(cancel=True)))
    rig.after(0.5)
    rig.write()
    assert rig.journal == {}


def test_a_client_that_leaves_its_tasks_to_the_hub():
    rig = hub(result_ttl=3.0)
    rig.client()
    session = rig.join()
    (seq,) = rig.submit()
    rig.tell(ev.FromClient(1, m.ClientBye(cancel=False)))
    rig.after(0.5)
    run_all(rig, session)
    assert attached(rig, seq) == "done"
    rig.write()
    assert kinds(rig) == "cos"

    rig.after(4 * LEASE)
    rig.write()
    assert rig.journal == {}
    assert attached(rig, seq, 3) == "unknown"


def test_hub_and_client_die_and_the_task_runs(rig):
    seqs = rig.submit(count=2)
    rig.write()

    again = after_death(rig)
    session = again.join()
    past_recovery(again, session)
    run_all(again, session)
    again.client()
    assert again.outcomes() == dict.fromkeys(seqs, "done")

    acknowledge(again)
    again.write()
    assert again.journal == {}


def test_a_client_that_comes_back_submits_again_and_it_runs_once(rig):
    (seq,) = rig.submit()
    rig.write()
    again = after_death(rig)
    again.client()
    one = spec()
    run = Run(number_of(one), 0, [seq, 7], [b"x", b"y"], again=True)
    again.tell(ev.FromClient(1, m.Submit(1, [(number_of(one), one)], [run], whole=True)))
    again.write()
    session = again.join()
    past_recovery(again, session)

    assert sorted(again.held[session]) == [(1, seq, 1), (1, 7, 1)]
    chunks = [entry for entry in again.journal.values() if isinstance(entry, JournalChunk)]
    assert [chunk.runs[0].seqs for chunk in chunks] == [[seq], [7]]
    assert accepted(again) == 1


def test_another_program_waits_for_a_task_of_a_client_that_is_gone(rig):
    (seq,) = rig.submit()
    rig.write()
    again = after_death(rig)
    session = again.join()
    past_recovery(again, session)
    run_all(again, session)
    assert attached(again, seq) == "done"


def test_an_outcome_waits_from_the_end_of_its_task(rig):
    (seq,) = rig.submit()
    rig.write()
    again = hub(rig.journal, result_ttl=3.0)
    session = again.join()
    for _ in range(5):
        past_recovery(again, session)
    run_all(again, session)
    assert again.state(1, seq) == "finished"
    again.after(1.0)
    assert attached(again, seq) == "done"

    again.after(2.5)
    assert attached(again, seq, 3) == "unknown"
    again.write()
    assert again.journal == {}


@pytest.mark.parametrize("end", ["done", "exception"])
def test_an_outcome_that_waits_for_its_client_outlives_the_hub_and_the_task_does_not_run_again(rig, end):
    (first,) = rig.submit()
    when = 1 if end == "exception" else 0  # DONE
    one = spec("held back", queue="elsewhere")
    run = Run(number_of(one), 0, [2], [b"x"], when=when, needs=[[first]])
    rig.tell(ev.FromClient(1, m.Submit(2, [(number_of(one), one)], [run])))
    rig.write()
    second = after_death(rig)
    session = second.join()
    past_recovery(second, session)
    if end == "done":
        run_all(second, session)
    else:
        second.fail(session, (1, first, 1), retryable=False)
    second.write()
    assert kinds(second) == ("ccoss" if end == "done" else "ccfoss"), (
        "a bad end that nobody hears of is a letter"
    )

    third = after_death(second)
    session = third.join(queues=["default", "elsewhere"])
    past_recovery(third, session)
    assert third.held[session] == [(1, 2, 1)]
    assert attached(third, first) == end
    run_all(third, session)
    third.client()
    assert third.outcomes() == {first: end, 2: "done"}
    acknowledge(third)
    third.write()
    assert third.journal == {}


@pytest.mark.parametrize("one", [spec(), spec(keep=60.0, detach=True), spec(expires=600.0)])
def test_tasks_start_in_the_order_in_which_they_were_submitted(rig, one):
    rig.submit(count=3, one=one)
    rig.submit(count=2, one=one)
    rig.write()

    second = after_death(rig)
    pool = second.join(slots=8)
    past_recovery(second, pool)
    assert [key[1] for key in second.held[pool]] == [1, 2, 3, 4, 5]


def test_a_pool_that_holds_it_goes_on(rig):
    (seq,) = rig.submit()
    session = rig.join()
    (held,) = rig.held[session]
    rig.write()
    again = after_death(rig)
    session = again.join(epoch=EPOCH - 1, inventory=[m.Held(1, held[2], [seq])])

    assert again.state(1, seq) in ("SENT", "RUNNING")
    assert again.pushed == []


def test_a_delay_goes_on_while_there_is_no_hub(rig):
    one = spec()
    run = Run(number_of(one), 0, [1], [b"x"], delay=60.0)
    rig.tell(ev.FromClient(1, m.Submit(1, [(number_of(one), one)], [run])))
    rig.write()
    again = after_death(rig, wall=WALL + 58)
    session = again.join()
    for _ in range(8):
        again.after(0.2)
        again.beat(session)
    assert again.held[session] == []

    past_recovery(again, session)
    assert again.held[session] == [(1, 1, 1)]


def test_a_task_expires_while_there_is_no_hub(rig):
    (seq,) = rig.submit(one=spec("fleeting", expires=30.0))
    rig.write()
    again = after_death(rig, wall=WALL + 31)
    again.after(0.5)
    again.client()

    assert again.outcomes() == {seq: "expired"}


@pytest.mark.parametrize("edges", ["needs", "after"])
@pytest.mark.parametrize("end", ["done", "failed"])
def test_what_depends_on_a_task_that_is_over_has_its_outcome(rig, edges, end):
    session = rig.join()
    (first,) = rig.submit()
    when = 1 if end == "failed" else 0  # DONE
    one = spec("held back", queue="elsewhere")
    run = Run(number_of(one), 0, [2], [b"x"], when=when, **{edges: [[first]]})
    rig.tell(ev.FromClient(1, m.Submit(2, [(number_of(one), one)], [run])))
    if end == "done":
        run_all(rig, session)
    else:
        rig.fail(session, (1, first, 1))
    acknowledge(rig)
    rig.write()
    assert kinds(rig) == "csv"

    again = after_death(rig)
    session = again.join(queues=["elsewhere"])
    past_recovery(again, session)
    assert again.held[session] == [(1, 2, 1)]
    run_all(again, session)
    again.client()
    acknowledge(again)
    again.write()
    assert again.journal == {}


def test_a_value_that_many_tasks_need_is_written_once(rig):
    one = spec()
    for number in (1, 2):
        run = Run(number_of(one), 0, [10 + number], [b"x"], needs=[[5]])
        values = [Value(5, b"large", is_kept=True)] if number == 1 else []
        rig.tell(ev.FromClient(1, m.Submit(number, [(number_of(one), one)], [run], values=values)))
    rig.write()
    assert kinds(rig) == "ccsv"

    again = after_death(rig)
    session = again.join()
    past_recovery(again, session)
    assert [value.payload for push in again.pushed for run in push.runs for value in run.values] == [b"large"]
    run_all(again, session)
    again.client()
    acknowledge(again)
    again.write()
    assert again.journal == {}


def test_a_journal_that_has_lost_what_was_written_is_written_again(rig):
    session = rig.join(slots=1)
    rig.submit(count=3)
    rig.depend(1)
    rig.report(session, done=(rig.held[session][0],))
    acknowledge(rig)
    rig.after(0.5)
    rig.write()
    before = copy.deepcopy(rig.journal)
    assert kinds(rig) == "ccesv"

    rig.journal.clear()
    rig.tell(ev.JournalTold({}, is_full=False, is_lost=True, news=[]))
    assert [action.is_whole for action in rig.unwritten] == [True]
    rig.write()
    assert rig.journal == before


def test_a_journal_that_is_lost_is_written_again_though_it_has_nothing(rig):
    """Seed 2380: its writer waits for that, and what was on its way counts as written with it."""
    rig.submit()
    run_all(rig, rig.join())
    acknowledge(rig)
    rig.unwritten.clear()  # the journal is emptied before it has any of that

    rig.tell(ev.JournalTold({}, is_full=False, is_lost=True, news=[]))
    rig.write()
    assert (accepted(rig), rig.journal) == (1, {})


def test_a_full_journal_takes_no_more_durable_tasks(rig):
    rig.tell(ev.JournalTold({"state": "away"}, is_full=True, is_lost=False, news=[]))
    rig.submit()
    assert isinstance(rig.told[1][-1], m.Busy)
    assert rig.unwritten == []
    rig._submits[1] = 0
    (seq,) = rig.submit(one=spec("bound", on_client_loss="cancel"))
    rig.after(0.5)
    assert (accepted(rig), rig.state(1, seq)) == (1, "QUEUED")

    rig.tell(ev.JournalTold({"state": "connected"}, is_full=False, is_lost=False, news=[]))
    rig.submit()
    rig.write()
    assert accepted(rig) == 2


def test_the_starts_in_long_windows_count_at_the_next_hub():
    one = spec(limits=(LimitRule("api", 5, 3600.0), LimitRule("often", 5, 1.0)))
    rig = hub()
    rig.client()
    pool = rig.join(slots=8)
    past_recovery(rig, pool)
    rig.submit(count=4, one=one)
    run_all(rig, pool)
    past_recovery(rig, pool)
    rig.write()
    assert kinds(rig).count("w") == 1, "a short window is full for a lease anyway"

    second = after_death(rig, wall=WALL + 600.0)
    pool = second.join(slots=8)
    second.client()
    second.submit(count=8, one=one)
    past_recovery(second, pool)
    assert len(second.held[pool]) == 1


def test_what_was_never_written_is_not_deleted_either(rig):
    pool = rig.join(slots=2)
    past_recovery(rig, pool)
    rig.write()
    rig.submit(one=spec(limits=(LimitRule("often", 5, 1.0),), durable=False))
    run_all(rig, pool)
    past_recovery(rig, pool)
    assert rig.unwritten == []


def test_a_limit_that_an_operator_has_set_stays_set():
    rig = hub()
    rig.hub.state.ledger.limits.set_rule(LimitRule("api", 1, 60.0))
    rig.hub.state.ledger.limits.set_rule(LimitRule("gpu", 1))
    rig.hub.state.ledger.limits.unset_rule("gpu")
    rig.after(1.0)
    rig.write()

    assert after_death(rig).hub.state.ledger.limits.fixed == {"api": LimitRule("api", 1, 60.0)}


def test_a_kept_outcome_answers_at_the_next_hub_for_as_long_as_it_says(rig):
    pool = rig.join()
    (seq,) = rig.submit(one=spec(keep=60.0, detach=True), key="k")
    run_all(rig, pool)
    rig.after(0.5)
    rig.write()
    assert kinds(rig) == "k", "it takes the place of the task"

    second = after_death(rig, wall=WALL + 30.0)
    assert attached(second, seq) == "done"
    second.client(3)
    second.submit(3, one=spec(keep=60.0, detach=True), key="k")
    second.write()
    assert list(second.outcomes(3).values()) == ["done"]
    assert len(after_death(rig, wall=WALL + 61.0).hub.state.result_cache) == 0


def test_a_task_whose_outcome_is_kept_does_not_run_again_though_its_end_was_to_be_written_later(rig):
    pool = rig.join()
    _, last = rig.submit(count=2, one=spec(keep=60.0, detach=True))
    rig.report(pool, done=(rig.held[pool][0],))
    rig.write()
    assert kinds(rig) == "cks", "which tasks of a chunk are over is written now and then"

    second = after_death(rig)
    pool = second.join()
    past_recovery(second, pool)
    assert [key[1] for key in second.held[pool]] == [last]
    run_all(second, pool)
    second.after(0.5)
    second.write()
    assert kinds(second) == "kk"


def test_a_client_that_comes_back_is_answered_with_what_is_kept(rig):
    pool = rig.join()
    (seq,) = rig.submit(one=spec(keep=60.0))
    rig.write()
    run_all(rig, pool)
    rig.after(0.5)
    rig.write()

    second = after_death(rig)
    second.client()
    run = Run(number_of(spec(keep=60.0)), 0, [seq], [b"x" * 8], again=True)
    second.tell(ev.FromClient(1, m.Submit(1, [(number_of(spec(keep=60.0)), spec(keep=60.0))], [run])))
    assert second.outcomes(1) == {seq: "done"}
    second.write()
    assert kinds(second) == "k"


@pytest.mark.parametrize("state", ["living", "kept", "ended", "dead"])
@pytest.mark.parametrize("submitter", ["same", "other"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_key_means_the_same_whoever_asks_before_and_after_a_restart(state, submitter, restarted):
    one = spec("f", keep=0.0 if state == "ended" else 60.0, detach=True)
    rig = hub()
    rig.client()
    pool = rig.join(slots=8)
    past_recovery(rig, pool)
    rig.submit(one=one, key="k")
    if state in ("kept", "ended"):
        run_all(rig, pool)
    elif state != "living":
        rig.fail(pool, rig.held[pool][0], text="bad", retryable=True)
    rig.write()
    if state != "living":
        acknowledge(rig)
        rig.write()
    if restarted:
        rig = after_death(rig)
        pool = rig.join(slots=8)
        past_recovery(rig, pool)
    client = 1 if submitter == "same" else 2
    rig.client(client)
    before = len(rig.held[pool])
    (seq,) = rig.submit(client, one=one, key="k")
    rig.write()
    runs = len(rig.held[pool]) - before
    joined, answered, again = (0, None), (0, "done"), (1, None)
    expected = {"living": joined, "kept": answered, "ended": again, "dead": again}
    assert (runs, rig.outcomes(client).get(seq)) == expected[state]
    run_all(rig, pool)
    rig.write()
    assert rig.outcomes(client)[seq] == "done"


@pytest.mark.parametrize("later", ["empty", "no window any more"])
def test_a_window_that_no_task_asks_goes_from_the_next_hub_s_journal(rig, later):
    one = spec(limits=(LimitRule("api", 5, 60.0),))
    pool = rig.join()
    past_recovery(rig, pool)
    rig.submit(one=one)
    run_all(rig, pool)
    acknowledge(rig)
    if later == "no window any more":
        rig.hub.state.ledger.limits.set_rule(LimitRule("api", 5))
    rig.after(0.5)
    rig.write()
    assert "w" in kinds(rig)

    second = after_death(rig, wall=WALL + (100.0 if later == "empty" else 1.0))
    past_recovery(second, second.join())
    second.write()
    assert "w" not in kinds(second)
    assert not second.hub.state.ledger.limits.counters


def test_what_waits_for_an_upstream_that_does_not_come_is_entered_when_its_client_is_silent(rig):
    """Seed 240003298: its link stood, and it looked idle, since no task of its was in the ledger."""
    rig.depend(*rig.submit(one=spec("not durable", acks="early")))
    rig.write()
    assert accepted(rig) == 2

    again = after_death(rig)
    session = again.join()
    again.client()  # its link stands, and nothing comes by it
    for _ in range(10):
        past_recovery(again, session)
    again.client()

    assert again.outcomes() == {2: "dependency"}
