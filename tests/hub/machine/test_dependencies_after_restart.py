"""Tasks that depend on others, at the hub that follows one which has died."""

import copy

import pytest

from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DONE, FAILURE, Held, Run, Value
from tests.core.rig import EPOCH, HubRig, number_of, spec


def rig_with(**config: object) -> HubRig:
    rig = HubRig(**{"crash_limit": 1, **config})
    rig.client()
    return rig


def resubmit(rig: HubRig, *runs: Run, values: tuple[Value, ...] = ()) -> None:
    one = spec()
    submit = m.Submit(1, [(number_of(one), one)], list(runs), whole=True, values=list(values))
    rig.tell(ev.FromClient(1, submit))


def old(seq: int, **more: object) -> Run:
    return Run(number_of(spec()), 0, [seq], [b"x"], again=True, **more)


def test_the_next_hub_waits_for_pools_and_for_tasks():
    rig = rig_with(lease=2.0)
    resubmit(rig, old(1), old(2, needs=[[1]]))
    assert [rig.state(1, seq) for seq in (1, 2)] == ["WAITING", "WAITING"]
    session = rig.join()
    for _ in range(15):
        rig.after(0.2)
        rig.beat(session)
    assert [rig.state(1, seq) for seq in (1, 2)] == ["SENT", "WAITING"]
    rig.report(session, done=((1, 1, 1),))

    assert rig.state(1, 2) == "SENT"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("end", ["done", "failed"])
def test_a_chain_whose_first_tasks_have_ended_at_a_pool_before_they_come_again(end, together):
    """The tasks of one function come in one run: each ends here as it is entered."""
    rig = rig_with(lease=2.0)
    session = rig.join(epoch=EPOCH - 1)
    rig.report(session, done=((1, 2, 1),))
    if end == "done":
        rig.report(session, done=((1, 3, 1),))
    else:
        rig.fail(session, (1, 3, 1))
    needs = [[], [2], [3], [3, 4], [2]]
    if together:
        seqs = [2, 3, 4, 5, 6]
        resubmit(rig, Run(number_of(spec()), 0, seqs, [b"x"] * 5, again=True, needs=needs))
    else:
        resubmit(rig, *(old(seq, needs=[need]) for seq, need in enumerate(needs, start=2)))
    for _ in range(15):
        rig.after(0.2)
        rig.beat(session)

    if end == "failed":
        assert rig.outcomes() == {2: "done", 3: "exception", 4: "dependency", 5: "dependency"}
        assert rig.state(1, 6) == "SENT"
        return
    assert rig.outcomes() == {2: "done", 3: "done"}
    assert [rig.state(1, seq) for seq in (4, 5, 6)] == ["SENT", "WAITING", "SENT"]
    rig.report(session, done=((1, 4, 1), (1, 6, 1)))
    rig.report(session, done=((1, 5, 1),))
    assert rig.outcomes() == dict.fromkeys([2, 3, 4, 5, 6], "done")


def test_a_dependent_that_a_pool_runs_is_adopted():
    rig = rig_with()
    rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [2])])
    resubmit(rig, old(1), old(2, needs=[[1]]))

    assert rig.state(1, 2) == "SENT"
    rig.report(rig.session(), done=((1, 2, 1),))
    assert rig.outcomes() == {2: "done"}


def test_one_that_was_waited_for_and_then_adopted_may_be_tried_again():
    rig = rig_with(lease=2.0)
    one = spec("retried", max_retries=2, backoff=0.1, jitter=False)
    run = Run(number_of(one), 0, [2], [b"x"], again=True, needs=[[1]])
    values = [Value(1, b"taken")]
    rig.tell(ev.FromClient(1, m.Submit(1, [(number_of(one), one)], [run], whole=False, values=values)))
    assert rig.state(1, 2) == "WAITING"
    session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [2])])
    assert rig.state(1, 2) == "SENT"
    rig.fail(session, (1, 2, 1))
    for _ in range(3):
        rig.after(0.2)
        rig.beat(session)

    assert rig.state(1, 2) == "SENT"


@pytest.mark.parametrize("end", ["crash", "returned"])
def test_one_that_a_pool_gives_back_waits_for_what_has_not_ended_here(end):
    """It had begun with the hub before; this one does not know the outcome that it needs yet."""
    rig = HubRig()
    rig.client()
    session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [2])])
    resubmit(rig, old(1), old(2, needs=[[1]]))
    rig.hub.state.recovery.extend(-100.0)
    rig.after(0.4)
    assert [rig.state(1, seq) for seq in (1, 2)] == ["SENT", "SENT"]
    if end == "crash":
        rig.fail(session, (1, 2, 1), "crash")
    else:
        rig.report(session, returned=((1, 2, 1),))
    assert rig.state(1, 2) == "WAITING"
    rig.report(session, done=((1, 1, 1),))

    assert rig.state(1, 2) == "SENT"
    assert rig.values_of(2)[1][1].payload == b"r"


def test_one_that_crashed_before_its_client_came_back_waits_for_the_others_alone():
    """Seed 5990: no pool holds it, so nothing but the task that it depends on holds it back."""
    rig = rig_with(crash_limit=3)
    session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 1, [1])])
    rig.fail(session, (1, 2, 1), "crash")
    resubmit(rig, old(1), old(2, needs=[[1]]))
    assert [rig.state(1, seq) for seq in (1, 2)] == ["SENT", "WAITING"]
    rig.report(session, done=((1, 1, 1),))

    assert rig.state(1, 2) == "SENT"
    assert rig.tasks[1 << 64 | 2].crashes == 1


def test_an_outcome_that_the_client_has_taken_comes_with_the_dependent():
    rig = rig_with(lease=1.0)
    session = rig.join()
    resubmit(rig, old(2, needs=[[1]]), values=(Value(1, b"taken"),))
    for _ in range(8):
        rig.after(0.2)
        rig.beat(session)

    assert rig.state(1, 2) == "SENT"
    assert rig.values_of(2)[1][1].payload == b"taken"


def test_an_outcome_that_came_along_is_there_for_all_that_need_it():
    """The first of them has ended already, as a pool knows: the second one still needs it."""
    rig = rig_with()
    session = rig.join(epoch=EPOCH - 1)
    rig.report(session, done=((1, 2, 1),))
    resubmit(rig, old(2, needs=[[1]]), old(3, needs=[[1]]), values=(Value(1, b"taken"),))
    rig.hub.state.recovery.extend(-100.0)
    rig.after(0.4)

    assert rig.outcomes() == {2: "done"}
    assert rig.state(1, 3) == "SENT"
    assert rig.values_of(3)[1][1].payload == b"taken"


def test_recovery_over_before_the_upstream_task_and_after():
    rig = rig_with(lease=1.0)
    resubmit(rig, old(2, needs=[[1]]), values=(Value(1, b"taken"),))
    assert rig.state(1, 2) == "WAITING"
    session = rig.join(epoch=EPOCH - 1)
    for _ in range(8):
        rig.after(0.2)
        rig.beat(session)

    assert rig.state(1, 2) == "SENT"


def test_a_task_runs_again_while_its_outcome_is_held_for_another():
    """Seed 182: its outcome was kept for a time only, and its client came back later than that."""
    rig = rig_with()
    resubmit(rig, old(2, needs=[[1]]), values=(Value(1, b"taken"),))
    rig.tell(ev.FromClient(1, m.Submit(2, [], [old(1), old(3, needs=[[1]])])))
    session = rig.join(slots=4)
    rig.hub.state.recovery.extend(-100.0)
    rig.after(0.4)
    assert [rig.state(1, seq) for seq in (1, 2, 3)] == ["SENT", "SENT", "WAITING"]

    rig.report(session, done=((1, 2, 1),))
    rig.report(session, done=((1, 1, 1),))
    assert rig.state(1, 3) == "SENT"
    assert rig.values_of(3)[1][1].payload == b"r"
    rig.report(session, done=((1, 3, 1),))
    assert not rig.hub.state.dependencies.values


def test_clients_hear_that_a_skipped_task_is_cancelled_also_from_the_next_hub():
    """Seed 110001580: the journal has its end, for what comes after it; some of that is skipped with it."""
    rig = HubRig(journaled=True)
    rig.tell(ev.JournalRead({}, 1_000_000.0))
    rig.client()
    session = rig.join()
    first, busy = rig.submit(count=2)
    skipped = rig.depend(after=(first,), when=FAILURE)
    rig.depend(skipped, busy, when=DONE)
    rig.report(session, done=((1, first, 1),))
    beside = rig.depend(after=(skipped, busy), when=DONE)
    with_it = rig.depend(after=(skipped, busy))
    assert rig.outcomes() == {first: "done", skipped: "cancelled", with_it: "cancelled"}
    rig.write()

    later = HubRig(journaled=True)
    later.tell(ev.JournalRead(copy.deepcopy(rig.journal), 1_000_010.0))
    later.client()
    later.after(0.4)
    assert later.outcomes() == {skipped: "cancelled", with_it: "cancelled"}
    assert later.state(1, beside) == "WAITING"
