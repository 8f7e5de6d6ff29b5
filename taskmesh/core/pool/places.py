"""Places: a slot whose task has submitted tasks of its own gives its place to another slot meanwhile.

Such a task may wait for the others at any time and in any way, so its slot counts as blocked until it ends.
The pool has as many slots that take work as it always has, and so some slot always goes on: tasks that wait
for tasks cannot lock a pool up (docs/adr/0008).
"""

from __future__ import annotations

import math

from taskmesh.core.actions import StopSlot
from taskmesh.core.pool.slots import Slot, SlotCause, SlotState

GIVEN = 4
"""Places that a pool gives away at once, for each of its slots: every one of them costs a process."""
BENCH = 10.0
"""Seconds that a slot without a place is kept for the next one."""


class Places:
    """Who of a pool's slots has a place.

    Args:
        slots: the pool's; slots are added and taken out here. count: how many take work.

    Attributes:
        calm: time asks nothing of any slot: all are up and in their places, no task has a hard limit. It
            stays so until `disturb`: for a task that comes and goes no slot is looked at.
    """

    def __init__(self, slots: dict[int, Slot], count: int) -> None:
        self._slots = slots
        self._count = count
        self._changed = False
        self.calm = False

    def calms(self) -> bool:
        """Looks at all slots; returns whether they are `calm` now."""
        self.calm = not self._changed and all(
            slot.state is SlotState.UP and slot.kill_at is None and slot.benched_at is None
            for slot in self._slots.values()
        )
        return self.calm

    def disturb(self) -> None:
        """Something has happened to a slot, or a task of its own has a hard limit."""
        self.calm = False

    @property
    def given(self) -> int:
        """How many places are given away."""
        return sum(slot.parent is not None for slot in self._slots.values())

    def ask(self, slot: Slot, serial: int) -> bool:
        """The task `serial` of a slot wants to submit tasks: whether its place could be given away.

        Not that of a task which has been reported: who asks is a thread that it has left behind.
        """
        if not slot.pieces or serial < slot.pieces[0].first:
            return False
        if slot.parent is None:
            if self.given >= GIVEN * self._count:
                return False
            slot.parent = serial
            slot.benched_at = None
            self._changed, self.calm = True, False
        return True

    def reported(self, slot: Slot) -> bool:
        """Tasks of a slot have ended; True when the one that had given its place away is among them."""
        parent = slot.parent
        if parent is None or (slot.pieces and slot.pieces[0].first <= parent):
            return False
        slot.parent = None
        self._changed, self.calm = True, False
        return True

    def exited(self, slot: Slot) -> None:
        """A slot's process is gone."""
        self._changed |= slot.parent is not None or slot.benched_at is not None
        slot.parent = None

    def settle(self, now: float) -> list[StopSlot]:
        """Sees to it that as many slots take work as the pool has; ends those long without a place."""
        if self._changed:
            self._changed = False
            self._seat(now)
        actions = []
        for slot in self._slots.values():
            if (
                slot.benched_at is not None
                and not slot.count
                and slot.state is SlotState.UP
                and now >= slot.benched_at + BENCH
            ):
                slot.move(SlotCause.STOP)
                actions.append(StopSlot(slot.number))
        return actions

    def _seat(self, now: float) -> None:
        slots = self._slots
        for number in [
            slot.number
            for slot in slots.values()
            if slot.benched_at is not None and slot.state is SlotState.DOWN
        ]:
            del slots[number]
        working = [slot for slot in slots.values() if slot.parent is None and slot.benched_at is None]
        spare = [
            slot
            for slot in slots.values()
            if slot.benched_at is not None and slot.state is not SlotState.STOPPING
        ]
        for _ in range(self._count - len(working)):
            if spare:
                spare.pop().benched_at = None
            else:
                number = next(number for number in range(len(slots) + 1) if number not in slots)
                slots[number] = Slot(number)
        working.sort(key=lambda slot: (slot.state is not SlotState.DOWN, slot.count, -slot.number))
        for slot in working[: max(0, len(working) - self._count)]:
            slot.benched_at = now
            self._changed |= slot.state is SlotState.DOWN  # it goes at the next look

    @property
    def deadline(self) -> float:
        """When `settle` has something to do at the latest."""
        return min(
            (
                slot.benched_at + BENCH
                for slot in self._slots.values()
                if slot.benched_at is not None and slot.state is SlotState.UP and not slot.count
            ),
            default=math.inf,
        )
