"""The pool machine where slots share processes: suspects of a crash, and processes that are replaced."""

import pytest

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held
from taskmesh.pool.machine.sharing import MOST_ALONE, TRIAL_S
from tests.core.rig import PoolRig, spec

SLOTS = 12


@pytest.fixture
def rig() -> PoolRig:
    """A pool whose slots share one process, each with a long task."""
    rig = PoolRig(SLOTS, shared=1)
    rig.push(*range(SLOTS))
    assert [len(rig.handed[slot]) for slot in range(SLOTS)] == [1] * SLOTS
    return rig


def crash(rig: PoolRig, slots: range = range(SLOTS)) -> None:
    """The process ends, in which all of these ran a task."""
    for slot in slots:
        rig.exited(slot, suspects=len(slots))
    for slot in slots:
        rig.tell(ev.SlotReady(slot, 200))


def started(rig: PoolRig) -> list[int]:
    """The slots of suspects that were started, and are up now."""
    slots = [one.slot for one in rig.of(act.StartSlot) if one.slot < 0]
    rig.actions.clear()
    for slot in slots:
        rig.tell(ev.SlotReady(slot, 300 - slot))
    return slots


def alone(rig: PoolRig) -> set[int]:
    return {key[1] for slot in range(-SLOTS, 0) for key in rig.handed[slot]}


def test_what_ran_in_a_process_that_died_is_lost_uncharged(rig):
    crash(rig)

    assert rig.failed() == dict.fromkeys(range(SLOTS), "lost")


def test_one_that_ran_alone_in_its_process_is_charged(rig):
    for slot in range(1, SLOTS):
        rig.finish(slot)
    for slot in range(SLOTS):
        rig.exited(slot, suspects=1)

    assert rig.failed() == {0: "crash"}


def test_suspects_run_in_processes_of_their_own_and_the_guilty_one_is_charged(rig):
    crash(rig)
    rig.push(*range(SLOTS), attempt=2)
    rig.push(100)

    assert len(started(rig)) == MOST_ALONE
    assert len(alone(rig)) == MOST_ALONE
    assert [key for slot in range(SLOTS) for key in rig.handed[slot]] == [(1, 100, 1)]
    guilty = rig.handed[-1][0][1]
    rig.exited(-1)
    assert rig.failed()[guilty] == "crash"
    assert {seq for seq, kind in rig.failed().items() if kind == "crash"} == {guilty}


def test_suspects_that_end_make_room_and_their_slots_go(rig):
    crash(rig)
    rig.push(*range(SLOTS), attempt=2)
    for slot in started(rig):
        rig.finish(slot)
    for slot in range(-MOST_ALONE, 0):
        while rig.handed[slot]:
            rig.finish(slot)

    assert sorted(rig.done()) == list(range(SLOTS))
    assert {one.slot for one in rig.of(act.StopSlot)} == set(range(-MOST_ALONE, 0))
    for slot in range(-MOST_ALONE, 0):
        rig.exited(slot, status=0)
    assert set(rig.pool.slots) == set(range(SLOTS))
    rig.push(3, attempt=3)
    assert not rig.of(act.StartSlot), "it has ended once since: no suspect any more"


def test_suspects_that_go_on_do_not_keep_the_others_waiting(rig):
    crash(rig)
    rig.push(*range(SLOTS), attempt=2)
    assert len(started(rig)) == MOST_ALONE
    assert len(alone(rig)) < SLOTS

    for _ in range(int(TRIAL_S) + 1):  # a longer gap would be a standstill
        rig.after(1.0)
    started(rig)
    assert alone(rig) == set(range(SLOTS))


def test_a_hard_limit_ends_the_process_when_its_other_tasks_have_ended():
    rig = PoolRig(3, shared=1)
    rig.push(1, 2)
    rig.push(3, one=spec("hung", hard_timeout=1.0))
    rig.after(1.1)
    assert not rig.of(act.KillSlot)
    rig.push(4)
    assert (1, 4, 1) not in [key for slot in range(3) for key in rig.handed[slot]]
    hung = next(slot for slot in range(3) if rig.handed[slot][0][1] == 3)
    for slot in range(3):
        if slot != hung:
            rig.finish(slot)

    assert len(rig.of(act.KillSlot)) == 1
    for slot in range(3):
        rig.exited(slot, suspects=1)
    assert rig.failed() == {3: "hard_timeout"}
    for slot in range(3):
        rig.tell(ev.SlotReady(slot, 200))
    assert [key for slot in range(3) for key in rig.handed[slot]] == [(1, 4, 1)]


def test_a_process_with_lost_threads_is_killed_after_the_grace_at_the_latest():
    rig = PoolRig(2, shared=1, grace=2.0)
    rig.push(1, 2)
    rig.tell(ev.ProcessTold(0, "thread.left", "many", is_worn=True))
    rig.after(1.5)
    assert not rig.of(act.KillSlot)
    rig.after(1.0)
    assert len(rig.of(act.KillSlot)) == 1
    for slot in range(2):
        rig.exited(slot, suspects=2)
    assert rig.failed() == {1: "lost", 2: "lost"}


def test_a_cancelled_task_frees_its_slot_when_it_is_given_up():
    rig = PoolRig(2, shared=1)
    rig.push(1, 2)
    rig.tell(ev.FromHub(m.Cancel(rig.pool.member.epoch, rig.pool.session, [Held(1, 1, [1])])))
    rig.recalled(0, 0)
    assert rig.of(act.CancelSlot) == [act.CancelSlot(0, 0)]
    rig.push(3)
    assert rig.handed[0] == [(1, 1, 1)]
    rig.finish(0)

    assert not rig.of(act.KillSlot)
    assert rig.handed[0] == [(1, 3, 1)]
