"""One key, two clients, a restarted hub: pools know a task under the id that an earlier hub had it by."""

import pytest

from taskmesh.core.events import FromClient
from taskmesh.core.ids import text_of
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Run, Spec
from tests.core.rig import EPOCH, HubRig, number_of, spec
from tests.simulation.simulation import World

A, B = 1, 2
HELD = Held(A, 2, [7])  # client A's seventh task, in its second attempt
AT_POOL = (A, 7, 2)


def submit(rig: HubRig, client: int, seq: int, one: Spec) -> None:
    """What a client says that knew an earlier hub."""
    rig.client(client)
    run = Run(number_of(one), 0, [seq], [b"x"], "K", again=True)
    rig.tell(FromClient(client, m.Submit(1, [(number_of(one), one)], [run])))


def come_back(order: str, **options: object) -> tuple[HubRig, int]:
    """B owns the record, A waits for it; the pool has it under A's id. Who comes when differs."""
    rig, one, session = HubRig(), spec(**options), 0
    for who in order:
        if who == "p":
            session = rig.join(epoch=EPOCH - 1, inventory=[HELD])
        else:
            submit(rig, *{"A": (A, 7), "B": (B, 3)}[who], one)
    assert rig.tasks[B << 64 | 3] is rig.tasks[A << 64 | 7]
    assert rig.hub.state.lanes[session].outstanding == 1
    return rig, session


ORDERS = pytest.mark.parametrize("order", ["BAp", "BpA"])


@ORDERS
def test_a_success_ends_it_for_both(order):
    rig, session = come_back(order)
    rig.report(session, done=(AT_POOL,))

    assert rig.outcomes(A) == {7: "done"}
    assert rig.outcomes(B) == {3: "done"}


@ORDERS
def test_so_does_a_failure(order):
    rig, session = come_back(order)
    rig.fail(session, AT_POOL)

    assert rig.outcomes(A) == {7: "exception"}
    assert rig.outcomes(B) == {3: "exception"}
    assert rig.hub.state.lanes[session].outstanding == 0


@ORDERS
def test_after_a_crash_it_is_sent_again_under_its_own_id(order):
    rig, session = come_back(order)
    rig.fail(session, AT_POOL, "crash")

    assert [key[:2] for key in rig.held[session]] == [(B, 3)]
    rig.report(session, done=tuple(rig.held[session]))
    assert (rig.outcomes(A), rig.outcomes(B)) == ({7: "done"}, {3: "done"})


@ORDERS
def test_what_is_handed_back_goes_to_another_pool(order):
    rig, session = come_back(order)
    rig.beat(session, state="paused")
    other = rig.join("q")
    rig.report(session, returned=(AT_POOL,))

    assert [key[:2] for key in rig.held[other]] == [(B, 3)]


@ORDERS
def test_its_pool_is_told_of_a_cancellation_by_the_name_that_it_knows(order):
    rig, _ = come_back(order)
    rig.tell(FromClient(A, m.CancelTasks([7])))
    rig.tell(FromClient(B, m.CancelTasks([3])))

    (cancel,) = (message for _, message in rig.published if isinstance(message, m.Cancel))
    assert cancel.tasks == [Held(A, 2, [7])]


@ORDERS
@pytest.mark.parametrize("end", ["done", "failed", "returned", "crash"])
def test_reports_count_when_the_one_whose_name_its_pool_knows_has_given_up(order, end):
    rig, session = come_back(order)
    rig.tell(FromClient(A, m.CancelTasks([7])))
    match end:
        case "done":
            rig.report(session, done=(AT_POOL,))
        case "failed":
            rig.fail(session, AT_POOL)
        case "crash":
            rig.fail(session, AT_POOL, "crash")
            rig.report(session, done=tuple(rig.held[session]))
        case "returned":
            rig.report(session, returned=(AT_POOL,))
            rig.report(session, done=tuple(rig.held[session]))

    assert rig.outcomes(A).get(7, "cancelled") == "cancelled"
    assert rig.outcomes(B) == {3: "exception" if end == "failed" else "done"}
    assert rig.tasks == {}


@ORDERS
def test_both_are_told_that_it_runs_and_it_is_not_killed(order):
    rig, session = come_back(order)
    rig.beat(session, running=(AT_POOL,))

    told = {client: [one for one in rig.told[client] if isinstance(one, m.Notice)] for client in (A, B)}
    assert [(p.client, p.seq, p.attempt) for p in told[A][0].progress] == [(A, 7, 2)]
    assert [(p.client, p.seq, p.attempt) for p in told[B][0].progress] == [(B, 3, 2)]
    assert not any(isinstance(message, m.Cancel) for _, message in rig.published)


@ORDERS
def test_a_pool_that_says_hello_again_keeps_it(order):
    rig, session = come_back(order)
    again = rig.join(number=2, epoch=EPOCH, session=session, inventory=[HELD])

    assert rig.hub.state.lanes[again].outstanding == 1
    assert rig.hub.state.lanes[again].stale == []
    rig.fail(again, AT_POOL)
    assert rig.outcomes(A) == {7: "exception"}


@ORDERS
def test_so_it_does_when_the_one_whose_name_it_knows_has_given_up(order):
    """The hub forgot that name with the second Hello: the outcome was nobody's while the pool lived."""
    rig, session = come_back(order)
    rig.tell(FromClient(A, m.CancelTasks([7])))
    again = rig.join(number=2, epoch=EPOCH, session=session, inventory=[HELD])

    assert rig.hub.state.lanes[again].outstanding == 1
    rig.report(again, done=(AT_POOL,))
    assert rig.outcomes(B) == {3: "done"}


@ORDERS
def test_a_late_success_of_a_session_that_is_over_counts(order):
    rig, session = come_back(order)
    rig.after(rig.config.lease + 1)
    for client in (A, B):
        rig.tell(FromClient(client, m.ClientBeat()))
    rig.report(session, done=(AT_POOL,))

    assert (rig.outcomes(A), rig.outcomes(B)) == ({7: "done"}, {3: "done"})


def test_one_whose_task_an_operator_has_cancelled_waits_for_it_again_when_it_submits_it_again():
    """The record was still known under its id, so the hub took the Submit and never answered it."""
    rig, one = HubRig(lease=2.0), spec()
    submit(rig, A, 7, one)
    submit(rig, B, 3, one)
    rig.after(2.5)
    session = rig.join()
    rig.tell(FromClient(B, m.Command(1, "cancel", text_of(A << 64 | 7))))
    rig.tell(FromClient(A, m.ClientBye(cancel=False)))
    rig.told[A].clear()
    submit(rig, A, 7, one)
    assert rig.tasks[A << 64 | 7] is rig.tasks[B << 64 | 3]

    rig.report(session, done=tuple(rig.held[session]))
    assert (rig.outcomes(A), rig.outcomes(B)) == ({7: "done"}, {3: "done"})


def test_a_result_that_had_come_before_them_ends_it_for_both():
    rig, one = HubRig(), spec()
    session = rig.join(epoch=EPOCH - 1, inventory=[HELD])
    rig.report(session, done=(AT_POOL,))
    submit(rig, B, 3, one)
    submit(rig, A, 7, one)

    assert (rig.outcomes(A), rig.outcomes(B)) == ({7: "done"}, {3: "done"})


def test_what_a_pool_holds_under_a_key_that_another_runs_is_dropped():
    rig, one = HubRig(lease=2.0), spec()
    submit(rig, B, 3, one)
    rig.after(2.5)
    rig.join("q")
    session = rig.join(epoch=EPOCH - 1, inventory=[HELD])
    submit(rig, A, 7, one)

    cancels = [(pool, message.tasks) for pool, message in rig.published if isinstance(message, m.Cancel)]
    assert cancels == [("p", [Held(A, 2, [7])])]
    assert rig.hub.state.lanes[session].outstanding == 0


def test_the_seed_that_found_it():
    World(77004655).run()
