"""Permits: a slot whose task has submitted tasks of its own lends its permit to another slot meanwhile.

Such a task may wait for the others at any time and in any way, so its slot counts as blocked until it ends.
The pool has as many slots that take work as it always has, and so some slot always goes on: tasks that wait
for tasks cannot lock a pool up (docs/adr/0008).
"""

from __future__ import annotations

import math

from taskmesh.core.actions import PoolAction, StopSlot
from taskmesh.pool.machine.slots import ANY_NUMBER, Slot, SlotCause, SlotState

MOST_LENT = 4
"""Permits that a pool lends at once, for each of its slots: every one of them costs a process."""
SPARE_FOR = 10.0
"""Seconds that a slot without a permit is kept for the next one."""
LONGEST_STOP = 30.0
"""Seconds that a slot which is told to stop has for its exit functions."""


class Permits:
    """The permits of a pool's slots, and the slots that lack one.

    Args:
        slots: All slots of the pool; they are added and taken out here.
        count: Number of slots that take work.
        most: Number of tasks after which a slot's process is replaced.
        stop_first: A slot keeps its permit until it has ended, and its number.

    Attributes:
        calm: True if no slot is waiting for the time to pass: all are up and have their permits, and no task
            has a hard limit. It stays so until `disturb`, so that for a task that comes and goes no slot is
            looked at.
    """

    def __init__(
        self, slots: dict[int, Slot], count: int, most: int = ANY_NUMBER, *, stop_first: bool = False
    ) -> None:
        self._slots = slots
        self._count = count
        self._most = most
        self._stop_first = stop_first
        self._changed = False
        self.calm = False

    def calms(self) -> bool:
        """Look at all slots; return True if they are `calm` now."""
        self.calm = not self._changed and all(
            slot.state is SlotState.UP
            and slot.kill_at in {None, math.inf}
            and slot.spare_since is None
            and not slot.due
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

    def add(self, *, is_relief: bool = False) -> None:
        """Add a slot, which is to be started."""
        slots = self._slots
        number = next(number for number in range(len(slots) + 1) if number not in slots)
        slots[number] = Slot(number, self._most, is_relief=is_relief)

    def settle(self, now: float) -> list[PoolAction]:
        """End slots that have finished or have long been spare; give as many a permit as the pool has."""
        actions: list[PoolAction] = []
        for slot in self._slots.values():
            if not (slot.has_finished or now >= self._spare_until(slot)):
                continue
            slot.move(SlotCause.STOP)
            slot.kill("", now + LONGEST_STOP)
            actions.append(StopSlot(slot.number))
            if not self._stop_first:
                slot.spare(now)
                self._changed = True
        if self._changed:
            self._changed = False
            self._assign(now)
        return actions

    def _spare_until(self, slot: Slot) -> float:
        """Return when a slot without a permit is to end; infinite if it has one, or another is to retire."""
        if not slot.is_surplus or any(each.wants_relief for each in self._slots.values()):
            return math.inf
        return slot.spare_until(SPARE_FOR)

    def _assign(self, now: float) -> None:
        slots = self._slots
        for slot in list(slots.values()):
            if slot.spare_since is not None and slot.state is SlotState.DOWN:
                del slots[slot.number]
        working = [
            slot
            for slot in slots.values()
            if slot.parent is None and slot.spare_since is None and not slot.is_relief and slot.number >= 0
        ]
        ending = (SlotState.RETIRING, SlotState.STOPPING)
        spare = [
            slot
            for slot in slots.values()
            if slot.spare_since is not None and slot.state not in ending and not slot.due
        ]
        spare = [slot for slot in slots.values() if slot.is_relief] + spare
        for _ in range(self._count - len(working)):
            if spare:
                spare.pop().spare(None)
            else:
                self.add()
        down = SlotState.DOWN
        working.sort(key=lambda slot: (slot.state is not down, not slot.due, slot.count, -slot.number))
        for slot in working[: max(0, len(working) - self._count)]:
            slot.spare(now)
            self._changed |= slot.state is SlotState.DOWN  # it goes at the next look

    @property
    def deadline(self) -> float:
        """Time when `settle` has something to do at the latest."""
        return min(
            (0.0 if slot.has_finished else self._spare_until(slot) for slot in self._slots.values()),
            default=math.inf,
        )
