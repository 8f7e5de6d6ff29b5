"""A slot whose task submits tasks gives its place to another, so that a pool never locks itself up."""

import math

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.pool.machine.permits import MOST_LENT, SPARE_FOR
from taskmesh.pool.machine.slots import SlotState
from tests.core.rig import PoolRig


def busy_rig(slots: int = 2) -> PoolRig:
    """Every slot runs one long task."""
    rig = PoolRig(slots)
    rig.push(*range(1, slots + 1))
    assert [len(rig.handed[slot]) for slot in range(slots)] == [1] * slots
    return rig


def ask(rig: PoolRig, slot: int, serial: int = 0, *, lends: bool = True) -> bool:
    answers = [one for one in rig.tell(ev.SlotAsked(slot, serial, lends)) if isinstance(one, act.AnswerSlot)]
    assert [answer.slot for answer in answers] == [slot]
    return answers[0].granted


def up(rig: PoolRig) -> list[int]:
    """Brings every slot up that was ordered; the new ones' numbers."""
    new = [slot.number for slot in rig.pool.slots.values() if slot.state is SlotState.STARTING]
    for number in new:
        rig.tell(ev.SlotReady(number, 200 + number))
    return new


def working(rig: PoolRig) -> int:
    return sum(slot.parent is None and slot.spare_since is None for slot in rig.pool.slots.values())


def test_another_slot_takes_the_place_and_the_hub_is_told():
    rig = busy_rig()
    beats = len(rig.of(m.Beat))

    assert ask(rig, 0)

    assert up(rig) == [2]
    assert [beat.slots for beat in rig.of(m.Beat)[beats:]] == [3]
    rig.push(10)
    assert rig.handed[2] == [(1, 10, 1)]
    assert working(rig) == 2


def test_a_task_that_has_been_reported_gets_none():
    """A thread that it has left behind asks: nothing would ever give that place back."""
    rig = busy_rig()
    rig.finish(0)
    assert not ask(rig, 0, serial=0)

    rig.push(10)
    assert not ask(rig, 0, serial=0)
    assert working(rig) == 2
    assert ask(rig, 0, serial=1)


def test_a_task_that_only_asks_for_the_way_to_the_hub_keeps_its_place_until_it_waits():
    rig = busy_rig()

    assert not ask(rig, 0, lends=False)
    assert up(rig) == []
    assert working(rig) == 2

    assert ask(rig, 0)
    assert up(rig) == [2]


def test_a_task_that_has_a_place_is_not_given_another():
    rig = busy_rig()

    assert ask(rig, 0)
    assert ask(rig, 0)

    assert up(rig) == [2]


def test_what_waits_behind_the_parent_is_taken_back():
    rig = PoolRig(1)
    for known in rig.pool.scheduler.specs.values():
        known.service = None
    rig.push(1)
    rig.finish(0, elapsed=0.0001)
    rig.push(2, 3, 4)
    assert len(rig.handed[0]) == 3

    actions = rig.tell(ev.SlotAsked(0, 1))
    assert [one for one in actions if isinstance(one, act.RecallSlot)] == [act.RecallSlot(0, 1)]
    up(rig)
    rig.recalled(0, 2)

    assert rig.handed[0] == [(1, 2, 1)]
    assert rig.handed[1] == [(1, 3, 1), (1, 4, 1)]


def test_so_many_places_are_given_and_no_more():
    rig = busy_rig(1)
    for slot in range(MOST_LENT):
        assert ask(rig, slot)
        assert up(rig) == [slot + 1]
        rig.push(10 + slot)

    assert not ask(rig, MOST_LENT)
    assert up(rig) == []


def test_when_the_parent_ends_the_extra_slot_is_spare_and_taken_again():
    rig = busy_rig()
    ask(rig, 0)
    up(rig)
    rig.finish(0)
    assert working(rig) == 2
    spare = [slot.number for slot in rig.pool.slots.values() if slot.spare_since is not None]
    assert spare == [2]

    assert ask(rig, 1)

    assert up(rig) == []
    assert working(rig) == 2


def test_a_spare_slot_ends_some_time_later():
    rig = busy_rig()
    ask(rig, 0)
    up(rig)
    rig.finish(0)
    assert rig.pool.deadline <= rig.now + SPARE_FOR

    rig.after(SPARE_FOR - 1)
    assert not rig.of(act.StopSlot)
    rig.after(2)
    assert rig.of(act.StopSlot) == [act.StopSlot(2)]
    rig.exited(2, status=0)

    assert sorted(rig.pool.slots) == [0, 1]
    assert rig.pool.permits.deadline == math.inf


def test_a_parent_that_dies_leaves_no_gap_and_no_surplus():
    rig = busy_rig()
    ask(rig, 0)
    up(rig)

    rig.exited(0)
    rig.after(1.0)
    up(rig)

    assert rig.failed() == {1: "crash"}
    assert working(rig) == 2
    assert rig.pool.permits.lent == 0


def test_the_slot_that_stands_in_may_die_too():
    rig = busy_rig()
    ask(rig, 0)
    up(rig)

    rig.exited(2)
    rig.after(1.0)

    assert up(rig) == [2]
    assert working(rig) == 2


def test_a_new_session_begins_with_all_slots():
    rig = busy_rig()
    ask(rig, 0)

    rig.lose_lane()

    assert rig.of(m.Hello)[-1].slots == 3


def test_a_place_stays_given_while_its_task_runs_whatever_else_is_reported():
    rig = PoolRig(1)
    rig.push(1)
    rig.finish(0)  # so that the pool knows how short a task is, and hands the next two over together
    rig.push(2, 3)
    assert rig.handed[0] == [(1, 2, 1), (1, 3, 1)]
    assert ask(rig, 0, serial=2)
    assert up(rig) == [1]

    rig.finish(0)

    assert rig.pool.slots[0].parent == 2
    assert working(rig) == 1
    rig.finish(0)
    assert rig.pool.slots[0].parent is None
    assert working(rig) == 1
