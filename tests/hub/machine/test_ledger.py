"""The ledger: one record for each accepted task, one end for each record."""

import pytest

from taskmesh.errors import InvalidTransition
from taskmesh.hub.machine import cancellations
from taskmesh.hub.machine.books.ledger import FEW_TIMERS, Ledger, tasks_by_id
from taskmesh.hub.machine.books.states import TRANSITIONS, Cause, State
from taskmesh.messages.runs import Run
from tests.core.rig import HubRig, spec, spec_entry


def accepted(count: int = 1, **options: object) -> tuple[Ledger, list]:
    ledger, entry = Ledger(), spec_entry(1, spec(**options))
    records = ledger.accept(7, entry, Run(1, 0, list(range(count)), [b"12"] * count), 0.0, fresh=True)
    return ledger, records


def test_terminal_states_are_absorbing():
    terminal = set(State) - {State.QUEUED, State.WAITING, State.SENT, State.RUNNING}

    assert not [before for before, _ in TRANSITIONS if before in terminal]
    assert {after for after in TRANSITIONS.values() if after in terminal} == terminal


def test_a_transition_that_the_table_does_not_have_is_refused():
    ledger, (record,) = accepted()

    with pytest.raises(InvalidTransition, match="QUEUED: RETURN"):
        ledger.move(record, Cause.RETURN)


def test_what_is_known_or_finished_is_not_entered_again():
    ledger, records = accepted(3)
    ledger.move(records[0], Cause.CANCEL)
    ledger.drop(records[0])

    again = ledger.accept(7, records[0].spec, Run(1, 0, [0, 1, 3], [b""] * 3), 0.0, fresh=False)

    assert [record.id & 0xFF for record in again] == [3]
    assert ledger.accepted == 4


def test_counts_and_sizes_follow_the_tasks():
    ledger, records = accepted(3)
    entry = records[0].spec
    assert (ledger.size - entry.size, len(ledger.account(7).tasks), entry.live) == (6, 3, 3)

    ledger.move(records[1], Cause.CANCEL)
    assert ledger.drop(records[1]) == [records[1].id]

    assert (ledger.size - entry.size, len(ledger.account(7).tasks), entry.live) == (4, 2, 2)
    assert 1 in ledger.account(7).finished


def test_who_asks_for_a_client_s_tasks_looks_at_no_other_s():
    """With a million of another client, each of 300 that vanished took 47 ms."""

    class Unread(dict):
        def __iter__(self):
            raise AssertionError("a million of them, for each client that leaves")

        items = keys = values = __iter__

    rig = HubRig()
    for client in (6, 7):
        rig.client(client)
        rig.submit(client, 3)
    account = rig.hub.state.ledger.account(6)
    account.tasks = Unread(account.tasks)

    assert cancellations.cancel_all(rig.hub.state, 7) == 3
    assert cancellations.step(rig.hub.state) == [7]
    assert (rig.hub.state.ledger.count, len(rig.hub.state.ledger.tasks_of(7))) == (3, 0)


def test_a_waiting_task_is_queued_when_it_is_due():
    ledger, (record,) = accepted()
    ledger.move(record, Cause.DELAY)
    ledger.wait(record, 5.0)

    ledger.due(4.9, pytest.fail)
    assert record.state is State.WAITING
    assert ledger.timers.deadline == 5.0
    ledger.due(5.0, pytest.fail)
    assert record.state is State.QUEUED


def test_the_last_waiter_under_a_key_decides():
    ledger, (record,) = accepted()
    ledger._set_key("f", "k", record)
    ledger.attach(8, 1, record)

    assert not ledger.detach(record.id, record), "another still waits"
    assert not ledger.account(7).tasks
    assert ledger.detach(8 << 64 | 1, record)


def test_a_key_outlives_the_client_that_brought_it():
    """The owner's account was gone when the task ended for those who still waited."""
    ledger, (record,) = accepted()
    ledger._set_key("f", "k", record)
    ledger.attach(8, 1, record)
    ledger.detach(record.id, record)
    ledger.accounts.pop(7)

    ledger.move(record, Cause.CANCEL)
    assert ledger.drop(record) == [8 << 64 | 1]
    assert ledger.by_key("f", "k") is None
    assert not list(tasks_by_id(ledger))


def test_timers_of_finished_tasks_do_not_pile_up():
    """An expiry an hour away kept every finished task's record for an hour."""
    ledger, entry = Ledger(), spec_entry(1, spec(expires=3600.0))
    for start in range(0, 50_000, 1000):
        seqs = list(range(start, start + 1000))
        for record in ledger.accept(7, entry, Run(1, 0, seqs, [b""] * 1000), 0.0, fresh=True):
            ledger.move(record, Cause.CANCEL)
            ledger.drop(record)

    assert len(ledger.timers.heap) <= 2 * (1000 + FEW_TIMERS)


def test_timers_of_finished_tasks_keep_few_functions():
    """Each may be of a function of its own, with megabytes that it takes along."""
    ledger = Ledger()
    for seq in range(1000):
        entry = spec_entry(seq, spec(f"f{seq}", expires=3600.0))
        (record,) = ledger.accept(7, entry, Run(seq, 0, [seq], [b""]), 0.0, fresh=True)
        ledger.move(record, Cause.CANCEL)
        ledger.drop(record)

    assert len({timer[2].spec for timer in ledger.timers.heap}) < 100


class TestExpiry:
    def test_a_task_that_has_not_started_in_time_expires(self):
        rig = HubRig()
        rig.client()
        rig.submit(1, 1, spec("brief", expires=1.0))
        rig.after(1.2)

        assert rig.outcomes() == {1: "expired"}

    def test_one_that_a_pool_has_does_not(self):
        rig = HubRig()
        session = rig.join()
        rig.client()
        rig.submit(1, 1, spec("brief", expires=1.0))
        rig.after(1.2)
        rig.report(session, done=((1, 1, 1),))

        assert rig.outcomes() == {1: "done"}

    def test_but_it_does_when_it_comes_back_unstarted(self):
        """It would have been run long after it was of use."""
        rig = HubRig()
        session = rig.join()
        rig.client()
        rig.submit(1, 1, spec("brief", expires=1.0))
        rig.after(1.2)
        rig.report(session, returned=((1, 1, 1),))

        assert rig.outcomes() == {1: "expired"}
        assert rig.held[session] == []

    def test_one_that_has_run_and_is_to_be_retried_does_not(self):
        rig = HubRig()
        session = rig.join()
        rig.client()
        rig.submit(1, 1, spec("brief", expires=1.0, max_retries=1, backoff=2.0, jitter=False))
        rig.fail(session, (1, 1, 1))
        rig.after(1.5)
        assert rig.state(1, 1) == "WAITING"
        rig.beat(session)
        rig.after(1.0)

        assert rig.held[session] == [(1, 1, 2)]


def test_unknown_state_or_cause_never_stands_in_the_table():
    assert {State(before) for before, _ in TRANSITIONS} == {
        State.QUEUED,
        State.WAITING,
        State.SENT,
        State.RUNNING,
    }
    assert {cause for _, cause in TRANSITIONS} == set(Cause)
