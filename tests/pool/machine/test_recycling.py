"""A slot that is due is replaced between tasks: the other one starts first, nothing is lost or charged."""

import pytest

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.pool.machine.permits import LONGEST_STOP, SPARE_FOR
from taskmesh.pool.machine.slots import RELOAD, SlotState
from tests.core.rig import PoolRig


def states(rig: PoolRig) -> dict[int, str]:
    """Let the pool do what is due, as its loop would; return its slots' states."""
    for _ in range(9):
        if rig.pool.deadline <= rig.now:
            rig.tell(ev.Tick())
    assert rig.pool.deadline > rig.now
    return {number: slot.state.value for number, slot in rig.pool.slots.items()}


def up(rig: PoolRig) -> list[int]:
    """Bring every slot up that was ordered; return their numbers."""
    states(rig)
    new = [slot.number for slot in rig.pool.slots.values() if slot.state is SlotState.STARTING]
    for number in new:
        rig.tell(ev.SlotReady(number, 200 + number))
    states(rig)
    return new


def ended(rig: PoolRig) -> list[int]:
    """Let every slot exit that was told to stop; return their numbers."""
    states(rig)
    gone = [slot.number for slot in rig.pool.slots.values() if slot.state is SlotState.STOPPING]
    for number in gone:
        rig.exited(number, status=0)
    return gone


def told(rig: PoolRig, kind: str) -> list[dict[str, object]]:
    return [event.fields for event in rig.of(act.LogEvent) if event.kind == kind]


def test_an_idle_slot_that_is_due_ends_when_its_replacement_is_up():
    rig = PoolRig(2)

    rig.tell(ev.SlotDue(0, "age"))
    assert states(rig) == {0: "up", 1: "up", 2: "starting"}
    rig.push(1)
    rig.finish(0)
    assert rig.done() == [1]

    assert up(rig) == [2]
    assert ended(rig) == [0]
    assert states(rig) == {1: "up", 2: "up"}
    assert told(rig, "slot.replaced") == [{"worker": "p/0", "reason": "age"}]


def test_a_task_that_runs_ends_first_and_what_waits_behind_it_goes_elsewhere():
    rig = PoolRig(2)
    rig.push(1)
    rig.finish(0)
    rig.push(*range(2, 12))
    assert min(len(rig.handed[slot]) for slot in range(2)) > 1

    rig.tell(ev.SlotDue(1, "memory"))
    rig.tell(ev.SlotDue(0, "memory"))
    assert up(rig) == [2]
    retiring = next(number for number, state in states(rig).items() if state == "retiring")
    assert act.RecallSlot(retiring, 1) in rig.actions
    rig.recalled(retiring, len(rig.handed[retiring]) - 1)

    assert act.StopSlot(retiring) not in rig.actions
    assert rig.handed[2] == []  # no more tasks at a time than slots
    rig.finish(retiring)
    assert act.StopSlot(retiring) in rig.actions
    assert rig.handed[2] != []
    assert rig.failed() == {}


def test_a_slot_that_crashes_as_it_retires_is_blamed_for_its_task_alone():
    rig = PoolRig(2)
    rig.push(1, 2)
    rig.tell(ev.SlotDue(0, "age"))
    up(rig)
    assert states(rig)[0] == "retiring"

    rig.exited(0)

    assert rig.failed() == {1: "crash"}
    up(rig)
    assert sum(slot.takes_work for slot in rig.pool.slots.values()) == 2


def test_at_most_a_quarter_is_replaced_at_a_time():
    rig = PoolRig(8)
    rig.push(*range(1, 9))
    for number in range(8):
        rig.tell(ev.SlotDue(number, "age"))

    assert len(up(rig)) == 2
    assert sorted(states(rig).values()).count("retiring") == 2
    rig.after(2 * SPARE_FOR)
    assert len(states(rig)) == 10
    for number, state in states(rig).items():
        if state == "retiring":
            rig.finish(number)
    assert len(ended(rig)) == 2
    assert len(up(rig)) == 2


def test_a_replacement_that_does_not_come_up_is_tried_again_and_the_old_slot_goes_on():
    rig = PoolRig(1)
    rig.tell(ev.SlotDue(0, "age"))
    rig.exited(1, status=1, ready=False, log="no memory")
    assert states(rig) == {0: "up", 1: "down"}

    rig.push(1)
    rig.finish(0)
    rig.after(0.2)

    assert rig.done() == [1]
    assert up(rig) == [1]
    assert ended(rig) == [0]


def test_new_code_that_does_not_come_up_is_given_up_and_told():
    rig = PoolRig(2)
    for number in range(2):
        rig.tell(ev.SlotDue(number, RELOAD))
    rig.exited(2, status=70, ready=False, log="SyntaxError: invalid syntax")
    rig.after(10.0)

    assert states(rig) == {0: "up", 1: "up"}
    (failed,) = told(rig, "reload.failed")
    assert "the old code goes on" in str(failed["text"])
    assert "SyntaxError: invalid syntax" in str(failed["text"])


def test_new_code_reaches_the_other_slots_while_a_long_task_runs():
    rig = PoolRig(4)
    rig.push(1)
    for number in range(4):
        rig.tell(ev.SlotDue(number, RELOAD))
    for _ in range(8):
        up(rig)
        ended(rig)

    assert rig.handed[0] == [(1, 1, 1)]
    assert [slot.number for slot in rig.pool.slots.values() if slot.pid < 200] == [0]
    assert states(rig)[0] == "retiring"
    assert sum(slot.takes_work for slot in rig.pool.slots.values()) == 3


def test_a_slot_that_starts_during_a_reload_is_replaced_when_it_is_up():
    rig = PoolRig(1)
    rig.exited(0)
    assert states(rig) == {0: "starting"}

    rig.tell(ev.SlotDue(0, RELOAD))
    assert up(rig) == [0]
    assert up(rig) == [1]

    assert ended(rig) == [0]


def test_a_slot_runs_no_more_tasks_than_it_may():
    rig = PoolRig(1, max_tasks=3)
    rig.push(1)
    rig.finish(0)
    rig.push(*range(2, 9))
    assert len(rig.handed[0]) == 2

    assert up(rig) == [1]
    assert rig.handed[1] == []
    rig.finish(0, 2)

    assert act.StopSlot(0) in rig.actions
    assert rig.handed[1] != []
    assert rig.failed() == {}


def test_a_slot_that_may_run_no_more_does_not_wait_for_its_replacement():
    rig = PoolRig(1, max_tasks=1)
    rig.push(1, 2)
    states(rig)
    rig.finish(0)

    assert states(rig) == {0: "stopping", 1: "starting"}
    assert up(rig) == [1]
    assert rig.handed[1] == [(1, 2, 1)]


def test_a_slot_stops_first_if_its_replacement_needs_what_it_holds():
    rig = PoolRig(4, stop_first=True)
    rig.push(1)
    for number in (1, 2, 3, 0):
        rig.tell(ev.SlotDue(number, "age"))

    assert sorted(states(rig).values()) == ["stopping", "up", "up", "up"]
    assert up(rig) == []
    for _ in range(8):
        ended(rig)
        up(rig)
    assert states(rig) == {0: "retiring", 1: "up", 2: "up", 3: "up"}
    rig.finish(0)
    assert ended(rig) == [0]
    assert up(rig) == [0]


def test_a_slot_that_does_not_stop_is_killed():
    rig = PoolRig(1, max_tasks=1)
    rig.push(1)
    rig.finish(0)

    rig.after(LONGEST_STOP + 0.1)

    assert act.KillSlot(0) in rig.actions
    rig.exited(0)
    assert rig.failed() == {}


def test_a_parent_keeps_its_slot_until_it_ends():
    rig = PoolRig(2)
    rig.push(1)
    rig.tell(ev.SlotAsked(0, 0))
    up(rig)
    rig.tell(ev.SlotDue(0, "memory"))
    up(rig)
    assert states(rig)[0] == "up"

    rig.finish(0)
    up(rig)

    assert ended(rig) == [0]
    assert sum(slot.takes_work for slot in rig.pool.slots.values()) == 2


@pytest.mark.parametrize("reason", ["age", RELOAD])
def test_nothing_is_replaced_while_the_pool_leaves(reason):
    rig = PoolRig(2)
    rig.push(1)
    rig.tell(ev.DrainRequested(30.0))
    rig.tell(ev.SlotDue(0, reason))
    rig.tell(ev.SlotDue(1, reason))

    assert states(rig) == {0: "up", 1: "up"}


def test_slots_that_are_gone_cannot_fall_due():
    rig = PoolRig(1)

    rig.tell(ev.SlotDue(7, "age"))

    assert states(rig) == {0: "up"}
