"""A hub that dies at the wrong moment: what the next one makes of a journal that was written halfway.

What is accepted is written at once, which tasks are over a little later; between the two a hub may die, and
what was not durable is lost with it. The simulation has found each of these.
"""

from __future__ import annotations

import copy

import pytest
from msgspec.structs import replace

from taskmesh.core import events as ev
from taskmesh.hub.machine.submission import RETRY_BUSY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import JournalChunk, JournalOutcome
from taskmesh.messages.runs import DONE, Run, Value
from tests.core.rig import HubRig, number_of, spec
from tests.hub.machine.test_journal import acknowledge, after_death, hub, kinds, past_recovery, run_all

BOUND = spec("bound", on_client_loss="cancel")
HELD = spec("held back")
AT_LEAST_A_LEASE = 30.0


@pytest.fixture
def rig() -> HubRig:
    """A hub with an empty journal, and client 1."""
    rig = hub()
    rig.client()
    return rig


def give(rig: HubRig, number: int, runs: list[Run], *specs: object, **more: object) -> None:
    """Client 1 submits this; the Submits of a rig's own `submit` do not count these."""
    named = [(number_of(one), one) for one in specs]
    rig.tell(ev.FromClient(1, m.Submit(number, named, runs, **more)))


def alone(one: object, seq: int, **more: object) -> Run:
    return Run(number_of(one), 0, [seq], [b"x"], **more)


def long_after(rig: HubRig, session: int) -> None:
    """Nobody of an earlier hub's time is awaited any more."""
    for _ in range(int(AT_LEAST_A_LEASE)):
        rig.after(1.0)
        rig.beat(session)


class TestWhatTasksNeeded:
    def test_an_outcome_stays_until_it_is_written_that_its_last_user_is_over(self, rig):
        session = rig.join(slots=1)
        give(rig, 1, [alone(HELD, 1), alone(HELD, 2), alone(HELD, 3)], HELD)
        give(rig, 2, [alone(HELD, 4, needs=[[1]]), alone(HELD, 5)])
        while 4 not in rig.outcomes():
            rig.report(session, done=(rig.held[session][0],))
        acknowledge(rig)
        rig.write()
        assert "v" in kinds(rig), "task 4 is over, and that is not written yet"

        again = after_death(rig)
        session = again.join()
        past_recovery(again, session)
        run_all(again, session)
        values = [value.seq for push in again.pushed for run in push.runs for value in run.values]
        assert values == [1]

    def test_it_goes_with_the_word_that_they_are_over(self, rig):
        session = rig.join(slots=1)
        give(rig, 1, [alone(HELD, 1), alone(HELD, 2, needs=[[1]]), alone(HELD, 3)], HELD)
        while len(rig.outcomes()) < 2:
            rig.report(session, done=(rig.held[session][0],))
        acknowledge(rig)
        rig.after(0.5)
        rig.write()
        assert "v" not in kinds(rig)


class TestUpstreamThatIsNotDurable:
    @pytest.fixture
    def again(self) -> HubRig:
        """A hub whose journal has task 2, which needs task 1, which is in no journal."""
        rig = hub()
        rig.client()
        give(rig, 1, [alone(BOUND, 1), alone(HELD, 2, needs=[[1]])], BOUND, HELD)
        rig.write()
        assert kinds(rig) == "cs"
        return after_death(rig)

    def test_it_waits_for_the_client_that_brings_both_again(self, again):
        session = again.join()
        past_recovery(again, session)
        assert again.held[session] == []

        again.client()
        runs = [alone(BOUND, 1, again=True), alone(HELD, 2, again=True, needs=[[1]])]
        give(again, 1, runs, BOUND, HELD, whole=True)
        run_all(again, session)
        assert again.outcomes() == {1: "done", 2: "done"}
        acknowledge(again)
        again.write()
        assert again.journal == {}

    def test_the_outcome_that_the_client_brings_is_written(self, again):
        session = again.join(queues=["elsewhere"])
        again.client()
        value = Value(1, b"r", "bound")
        give(again, 1, [alone(HELD, 2, again=True, needs=[[1]])], HELD, values=[value], whole=True)
        again.write()
        assert kinds(again) == "csv"

        third = after_death(again)
        session = third.join()
        past_recovery(third, session)
        assert third.held[session] == [(1, 2, 1)]

    def test_without_the_client_it_ends_in_the_end(self, again):
        session = again.join()
        long_after(again, session)
        again.write()

        (outcome,) = [entry for entry in again.journal.values() if isinstance(entry, JournalOutcome)]
        assert (outcome.failed.kind, "nothing is known of it" in outcome.failed.text) == ("dependency", True)

    def test_what_came_with_it_waits_as_well_and_runs_in_the_end(self):
        rig = hub()
        rig.client()
        give(rig, 1, [alone(BOUND, 1), alone(HELD, 2, needs=[[1]]), alone(HELD, 3)], BOUND, HELD)
        give(rig, 2, [alone(HELD, 4, needs=[[3]]), alone(HELD, 5)])
        give(rig, 3, [alone(HELD, 6)])
        rig.write()
        again = after_death(rig)
        session = again.join(slots=8)
        past_recovery(again, session)
        assert [key[1] for key in again.held[session]] == [6]

        again.cancel(1, 5)
        long_after(again, session)
        assert sorted(key[1] for key in again.held[session]) == [3, 6]
        run_all(again, session)
        again.client()
        assert again.outcomes() == {2: "dependency", 3: "done", 4: "done", 6: "done"}
        acknowledge(again)
        again.write()
        assert again.journal == {}

    def test_what_a_pool_has_reported_meanwhile_is_its_outcome(self, again):
        session = again.join()
        past_recovery(again, session)
        again.report(session, done=((1, 2, 1),))
        long_after(again, session)
        again.write()

        (outcome,) = [entry for entry in again.journal.values() if isinstance(entry, JournalOutcome)]
        assert outcome.done.seqs == [2]

    def test_a_client_that_gives_it_up_ends_it(self, again):
        again.client()
        give(again, 1, [], cancels=[2], whole=True)
        again.after(0.5)
        again.write()
        assert again.journal == {}

    def test_a_client_that_is_there_is_awaited_until_there_is_room_for_what_it_brings(self, again):
        full = hub(again.journal, max_tasks=2)
        session = full.join(queues=["elsewhere"])
        full.client(2)
        (other,) = full.submit(client=2)
        full.client()
        runs = [alone(BOUND, 1, again=True), alone(HELD, 2, again=True, needs=[[1]])]
        for _ in range(int(AT_LEAST_A_LEASE)):
            give(full, 1, runs, BOUND, HELD, whole=True)
            full.after(1.0)
            full.beat(session)
        assert (full.outcomes(), full.told[1][-1]) == ({}, m.Busy(1, RETRY_BUSY))

        full.cancel(2, other)
        give(full, 1, runs, BOUND, HELD, whole=True)
        run_all(full, full.join("another"))
        assert full.outcomes() == {1: "done", 2: "done"}

    def test_one_whose_outcome_its_client_has_taken_does_not_run_again(self, again):
        """Seed 901120: the hub that died had delivered it, and had not written that."""
        again.client()
        give(again, 1, [], whole=True)
        session = again.join()
        long_after(again, session)
        again.write()

        assert (again.outcomes(), again.journal) == ({}, {})


class TestWhatOthersWereTold:
    @pytest.mark.parametrize("brings", [True, False])
    def test_a_task_whose_outcome_is_known_does_not_end_in_another_way(self, rig, brings):
        session = rig.join(slots=1)
        give(rig, 1, [alone(HELD, 1), alone(HELD, 2)], HELD)
        elsewhere = spec("elsewhere", queue="elsewhere")
        give(rig, 2, [alone(elsewhere, 3, needs=[[1]])], elsewhere)
        rig.write()
        journal = dict(rig.journal)
        rig.report(session, done=((1, 1, 1),))
        acknowledge(rig)
        rig.write()
        again = hub(journal if brings else rig.journal)
        if brings:  # that it is over, and how, was on its way to the disk
            again.client()
            runs = [alone(HELD, 2, again=True), alone(elsewhere, 3, again=True, needs=[[1]])]
            give(again, 1, runs, HELD, elsewhere, values=[Value(1, b"first", "held back")], whole=True)

        assert again.state(1, 1) == "finished"
        session = again.join(queues=["elsewhere"])
        past_recovery(again, session)
        assert again.held[session] == [(1, 3, 1)]

    def test_one_that_has_failed_is_not_tried_again(self, rig):
        session = rig.join(slots=1)
        give(rig, 1, [alone(HELD, 1), alone(HELD, 2)], HELD)
        late = spec("late", queue="elsewhere")
        give(rig, 2, [alone(late, 3, needs=[[1]], when=DONE)], late)
        rig.fail(session, (1, 1, 1), retryable=False)
        acknowledge(rig)
        rig.write()
        again = after_death(rig)

        assert [again.state(1, seq) for seq in (1, 2)] == ["finished", "WAITING"]
        session = again.join(queues=["elsewhere"])
        past_recovery(again, session)
        assert again.held[session] == [(1, 3, 1)]

    def test_one_that_comes_after_it_was_counted_as_unknown_runs(self, rig):
        """Tasks that depend on it and come with it wait for its end; the one before them was told at once."""
        late = spec("late", queue="elsewhere")
        give(rig, 1, [alone(BOUND, 1), alone(late, 2, needs=[[1]], when=DONE)], BOUND, late)
        rig.write()
        again = after_death(rig)
        session = again.join()
        long_after(again, session)
        assert again.state(1, 2) == "QUEUED"
        again.client()
        runs = [alone(BOUND, 1, again=True), alone(late, 2, again=True, needs=[[1]], when=DONE)]
        give(again, 1, runs, BOUND, late)
        give(again, 2, [alone(HELD, 3, needs=[[1]])], HELD, whole=True)
        assert again.held[session] == [(1, 1, 1)]
        again.report(session, done=((1, 1, 1),))

        assert again.held[session] == [(1, 3, 1)]
        assert again.values_of(3)[1][1].failed is None
        assert again.outcomes() == {1: "done"}


def test_a_task_that_came_again_is_in_two_chunks_and_ends_in_the_later_one(rig):
    give(rig, 1, [alone(HELD, 1), alone(HELD, 5)], HELD)
    give(rig, 2, [alone(HELD, 2), alone(HELD, 3)])
    rig.write()
    journal = rig.hub.state.journal
    (chunk,) = [
        entry
        for entry in rig.journal.values()
        if isinstance(entry, JournalChunk) and entry.runs[0].seqs == [2]
    ]
    journal.over(1, [3])  # as if its client had been forgotten, which comes back with it
    journal.accept(replace(chunk, runs=chunk.runs[1:]), rig.hub.state.specs, ())

    journal.over(1, [2])
    assert [journal.has(1, seq) for seq in (1, 2, 3, 5)] == [True, False, True, True]
    journal.over(1, [3])
    journal.over(1, [1, 5])
    assert len(journal) == 0


def test_a_hub_that_reads_what_it_wrote_writes_nothing_new(rig):
    rig.submit(count=5)
    rig.submit(2)
    rig.write()
    before = copy.deepcopy(rig.journal)
    again = after_death(rig)
    again.after(1.0)
    again.write()
    assert again.journal == before
