"""Processes that slots share: those that are to be replaced, and tasks that are suspected of a crash.

Where a process dies that ran several tasks, nobody knows which of them has killed it. None is charged. Each
runs alone in a process of its own when it comes again: one that dies there is charged (docs/adr/0053).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from taskmesh.core.actions import KillSlot, PoolAction, StopSlot
from taskmesh.pool.machine.scheduler import Scheduler
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.machine.slots import Slot, SlotCause, SlotState

MOST_ALONE: Final = 8
"""Suspects that are on trial at a time: each has a process."""
TRIAL_S: Final = 10.0
"""Seconds after which a suspect that goes on makes room for another: a long task must not keep all others."""
REPLACED: Final = "replaced"
"""The reason for which a slot ends with its process, if nothing is wrong with its own task."""


class SharedProcesses:
    """The processes of a pool's slots.

    Args:
        slots: All slots of the pool. Those of suspects, below 0, are added and taken out here.
        scheduler: The pool's.
        config: The settings.
        disturb: Called when a slot of suspects is to be started or stops.
    """

    def __init__(
        self,
        slots: dict[int, Slot],
        scheduler: Scheduler,
        config: PoolSettings,
        disturb: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._scheduler = scheduler
        self._config = config
        self._disturb = disturb
        self._worn: dict[int | None, float] = {}  # by process: when it is killed at the latest
        self._alone: dict[int, Slot] = {}  # the slots of suspects
        self._trial_ends = math.inf  # when the next of them makes room for another

    def shares(self, slot: Slot) -> bool:
        """Return True if a slot's process may have others."""
        return self._config.shared > 0 and slot.number >= 0

    def place_of(self, slot: Slot) -> int:
        """Return the number by which the hub knows a slot that submits tasks: no other has it, or had it."""
        return slot.pid << 16 | slot.number if self.shares(slot) else slot.pid

    @property
    def is_busy(self) -> bool:
        """True if there is something to settle."""
        return bool(self._worn or self._scheduler.suspects or self._alone)

    @property
    def deadline(self) -> float:
        """Time when `settle` has something to do at the latest."""
        first = min(self._worn.values(), default=math.inf)
        return min(first, self._trial_ends) if self._scheduler.suspects else first

    def _mates(self, process: int | None) -> list[Slot]:
        return [slot for slot in self._slots.values() if self._config.process_of(slot.number) == process]

    # --- processes that are to be replaced ----------------------------------------------------------------

    def replace(self, slot: Slot, now: float) -> list[PoolAction]:
        """Give a slot's process nothing more; it is killed when its other slots have ended their tasks."""
        process = self._config.process_of(slot.number)
        if process in self._worn:
            return []
        self._worn[process] = now + self._config.grace
        actions: list[PoolAction] = []
        for mate in self._mates(process):
            actions += self._give_up(mate)
        return actions

    def joined(self, slot: Slot) -> None:
        """A slot is up: it takes nothing if its process is to be replaced."""
        if self._config.process_of(slot.number) in self._worn:
            slot.kill(REPLACED)

    def returned(self, slot: Slot) -> None:
        """The task that a slot had to give up has returned."""
        slot.kill(REPLACED if self._config.process_of(slot.number) in self._worn else "")

    def _give_up(self, slot: Slot) -> list[PoolAction]:
        if slot.state is SlotState.UP and not slot.reason:
            slot.kill(REPLACED, slot.kill_at)
            if slot.count >= 2 and slot.refilled and not slot.recalling:
                return [*self._scheduler.recall(slot)]
        return []

    def settle(self, now: float, *, starts: bool) -> list[PoolAction]:
        """End processes that are to be replaced, when it is time, and have suspects run.

        Args:
            now: The time.
            starts: Tasks may go to slots.
        """
        actions: list[PoolAction] = []
        for process, until in list(self._worn.items()):
            up = [slot for slot in self._mates(process) if slot.pid]
            if not up:
                del self._worn[process]
            elif now >= until or not any(slot.count and slot.reason == REPLACED for slot in up):
                self._worn[process] = math.inf
                actions.append(KillSlot(up[0].number))
        self._settle_suspects(actions, now, starts=starts)
        return actions

    # --- suspects -----------------------------------------------------------------------------------------

    def _settle_suspects(self, actions: list[PoolAction], now: float, *, starts: bool) -> None:
        suspects = self._scheduler.suspects
        for slot in list(self._alone.values()):
            if slot.state is SlotState.DOWN and not (suspects and starts):
                del self._slots[slot.number], self._alone[slot.number]
            elif slot.state is SlotState.UP and not slot.count and not slot.reason:
                order = self._scheduler.dispatch_suspect(slot, now) if starts else None
                if order is None:
                    slot.move(SlotCause.STOP)
                    self._disturb()
                    actions.append(StopSlot(slot.number))
                else:
                    actions.append(order)
        on_trial = [slot for slot in self._alone.values() if not slot.count or now - slot.heard < TRIAL_S]
        self._trial_ends = min([slot.heard + TRIAL_S for slot in on_trial if slot.count], default=math.inf)
        for _ in range(min(len(suspects), MOST_ALONE - len(on_trial)) if starts else 0):
            number = next(
                number for number in range(-1, -2 - len(self._alone), -1) if number not in self._alone
            )
            self._slots[number] = self._alone[number] = Slot(number)
            self._disturb()
