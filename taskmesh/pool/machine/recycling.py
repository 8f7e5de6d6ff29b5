"""The replacement of slots that are due: they have run long enough, take too much, or have old code.

The replacement starts first. When it is up, the old slot retires: it is handed nothing more, what it has not
started is taken back, and it stops after its task. Then the other gets its permit, so that a pool never runs
more tasks than it has slots.
"""

from __future__ import annotations

import math

from taskmesh.core.actions import LogEvent, PoolAction
from taskmesh.core.events import SlotExited
from taskmesh.pool.machine.permits import Permits
from taskmesh.pool.machine.scheduler import Scheduler
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.machine.slots import MAX_LOG, RELOAD, UP, Slot, SlotCause, SlotState, how_ended


class Recycling:
    """Replaces slots: at most a quarter of them, or one, at a time.

    Their replacements wait for their permits. A slot that may run no more tasks does not wait for one.

    Args:
        config: The pool's settings.
        slots: All slots of the pool.
        permits: Which of them take work.
        scheduler: Takes their tasks back.
    """

    def __init__(
        self, config: PoolSettings, slots: dict[int, Slot], permits: Permits, scheduler: Scheduler
    ) -> None:
        self._config = config
        self._slots = slots
        self._permits = permits
        self._scheduler = scheduler

    def fall_due(self, number: int, reason: str) -> None:
        """A slot is to be replaced, unless it has ended or retires."""
        slot = self._slots.get(number)
        if slot is not None and slot.state in (SlotState.STARTING, UP) and (not slot.due or reason == RELOAD):
            slot.fall_due(reason)

    @property
    def reloads(self) -> bool:
        """True while slots are to be replaced since their modules have changed."""
        return any(slot.due == RELOAD for slot in self._slots.values())

    def ready(self, slot: Slot, now: float) -> None:
        """A replacement waits for a permit when it is up."""
        if slot.is_relief:
            slot.spare(now)

    def is_trial(self, number: int) -> bool:
        """Return True for a slot that is started to see if new code comes up; if not, the machine tells."""
        slot = self._slots.get(number)
        return slot is not None and slot.is_relief and self.reloads

    @property
    def deadline(self) -> float:
        """Time when `turn` has something to do at the latest."""
        return 0.0 if self._retiring() or self._lacks_relief() else math.inf

    def turn(self) -> list[PoolAction]:
        """Begin to replace as many slots as may be replaced at a time."""
        actions: list[PoolAction] = []
        for slot in list(self._slots.values()):
            if slot.is_relief and slot.wants_start and not any(self._due()):
                del self._slots[slot.number]  # it could not be started, and nobody needs it any more
        for slot in self._retiring():
            if slot.can_give:
                actions += self._scheduler.recall(slot)
            slot.move(SlotCause.RETIRE)
            worker = f"{self._config.pool}/{slot.number}"
            actions.append(LogEvent("slot.replaced", {"worker": worker, "reason": slot.due}))
        while self._lacks_relief():
            self._permits.add(is_relief=True)
        return actions

    def _due(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.wants_relief]

    def _retiring(self) -> list[Slot]:
        """Return the slots that are to retire now: for each a replacement is up; the idlest first."""
        due = [slot for slot in self._due() if slot.state is UP]
        if not due:
            return []
        slots = self._slots.values()
        if self._config.stop_first:
            room = self._most - sum(slot.state is not UP and slot.spare_since is None for slot in slots)
        else:
            room = self._ready() - sum(slot.state is SlotState.RETIRING for slot in self._due())
        due.sort(key=lambda slot: slot.count)
        return due[: max(0, room)]

    def _ready(self) -> int:
        """Return how many replacements are up."""
        return sum(slot.is_surplus and not slot.due for slot in self._slots.values())

    def _lacks_relief(self) -> bool:
        """Return True if one more replacement is to be started."""
        due = len(self._due())
        if not due or self._config.stop_first:
            return False
        starting = sum(slot.is_relief for slot in self._slots.values())
        # A long task must not keep new code from the other slots.
        most = self._config.slots if self.reloads else self._most
        return starting < self._most and starting + self._ready() < min(due, most)

    @property
    def _most(self) -> int:
        return max(1, self._config.slots // 4)

    def exited(self, slot: Slot, exited: SlotExited) -> list[PoolAction]:
        """A slot has gone. If new code does not come up, the old code goes on."""
        if exited.ready or not slot.is_relief or not self.reloads:
            return []
        for each in self._slots.values():
            if each.due == RELOAD and each.state is not SlotState.RETIRING:
                each.fall_due("")
        text = f"the old code goes on: {how_ended(exited)} before it was ready: {exited.log[-MAX_LOG:]}"
        return [LogEvent("reload.failed", {"pool": self._config.pool, "text": text})]
