"""Permits: a slot whose task has submitted tasks of its own lends its permit to another slot meanwhile.

Such a task may wait for the others at any time and in any way, so its slot counts as blocked until it ends.
The pool has as many slots that take work as it always has, and so some slot always goes on: tasks that wait
for tasks cannot lock a pool up (docs/adr/0008).
"""

from __future__ import annotations

import math

from taskmesh.core.actions import PoolAction, StopSlot
from taskmesh.pool.machine.slots import Slot, SlotCause, SlotState

MOST_LENT = 4
"""Permits that a pool lends at once, for each of its slots: every one of them costs a process."""
SPARE_FOR = 10.0
"""Seconds that a slot without a permit is kept for the next one."""


class Permits:
    """The permits of a pool's slots, and the slots that lack one.

    Args:
        slots: All slots of the pool; they are added and taken out here.
        count: Number of slots that take work.

    Attributes:
        calm: True if no slot is waiting for the time to pass: all are up and have their permits, and no task
            has a hard limit. It stays so until `disturb`, so that for a task that comes and goes no slot is
            looked at.
    """

    def __init__(self, slots: dict[int, Slot], count: int) -> None:
        self._slots = slots
        self._count = count
        self._changed = False
        self.calm = False

    def calms(self) -> bool:
        """Look at all slots; return True if they are `calm` now."""
        self.calm = not self._changed and all(
            slot.state is SlotState.UP and slot.kill_at is None and slot.spare_since is None
            for slot in self._slots.values()
        )
        return self.calm

    def disturb(self) -> None:
        """Something has happened to a slot, or its task has a hard limit."""
        self.calm = False

    @property
    def lent(self) -> int:
        return sum(slot.parent is not None for slot in self._slots.values())

    def lend(self, slot: Slot, serial: int) -> bool:
        """The task `serial` of a slot wants to submit tasks; returns True if its permit is lent meanwhile.

        That of a task which has been reported is not: a thread that it has left behind asks.
        """
        if not slot.pieces or serial < slot.pieces[0].first:
            return False
        if slot.parent is None:
            if self.lent >= MOST_LENT * self._count:
                return False
            slot.lend(serial)
            self._changed, self.calm = True, False
        return True

    def take_back(self, slot: Slot, parent: int) -> bool:
        """Tasks of a slot have ended; returns True if `parent`, which had lent its permit, is among them."""
        if slot.pieces and slot.pieces[0].first <= parent:
            return False
        slot.lend(None)
        self._changed, self.calm = True, False
        return True

    def exited(self, slot: Slot) -> None:
        self._changed |= slot.parent is not None or slot.spare_since is not None
        slot.lend(None)

    def settle(self, now: float) -> list[PoolAction]:
        """Give as many slots a permit as the pool has; end those that have long been spare."""
        if self._changed:
            self._changed = False
            self._assign(now)
        actions: list[PoolAction] = []
        for slot in self._slots.values():
            if slot.is_surplus and now >= slot.spare_until(SPARE_FOR):
                slot.move(SlotCause.STOP)
                actions.append(StopSlot(slot.number))
        return actions

    def _assign(self, now: float) -> None:
        slots = self._slots
        for slot in list(slots.values()):
            if slot.spare_since is not None and slot.state is SlotState.DOWN:
                del slots[slot.number]
        working = [
            slot
            for slot in slots.values()
            if slot.parent is None and slot.spare_since is None and slot.number >= 0
        ]
        spare = [
            slot
            for slot in slots.values()
            if slot.spare_since is not None and slot.state is not SlotState.STOPPING
        ]
        for _ in range(self._count - len(working)):
            if spare:
                spare.pop().spare(None)
            else:
                number = next(number for number in range(len(slots) + 1) if number not in slots)
                slots[number] = Slot(number)
        working.sort(key=lambda slot: (slot.state is not SlotState.DOWN, slot.count, -slot.number))
        for slot in working[: max(0, len(working) - self._count)]:
            slot.spare(now)
            self._changed |= slot.state is SlotState.DOWN  # it goes at the next look

    @property
    def deadline(self) -> float:
        """Time when `settle` has something to do at the latest."""
        return min(
            (slot.spare_until(SPARE_FOR) for slot in self._slots.values() if slot.is_surplus),
            default=math.inf,
        )
