"""Slots whose processes have become old or large are due: the pool's machine replaces them between tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskmesh.core.events import SlotDue, SlotReady
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.slots.fork_server_client import SlotOptions
from taskmesh.system.session import private_memory

LOOK: Final = 0.25
"""Seconds between two looks."""


class ProcessLimits:
    """A timer of the pool's loop: it looks at the age and memory of slots, four times a second.

    A slot that takes more before its first task than it may is not replaced for that: its replacement would
    take as much.

    Args:
        options: has the limits.
        machine: the pool's machine.
        due: takes a slot that is due.
        complain: reports that the limit of memory is too low.
    """

    def __init__(
        self,
        options: SlotOptions,
        machine: PoolMachine,
        due: Callable[[SlotDue], None],
        complain: Callable[[str], None],
    ) -> None:
        self.deadline = 0.0
        self._options = options
        self._machine = machine
        self._due = due
        self._complain = complain
        self._too_large = False
        self._since: dict[int, float] = {}  # by process

    def ready(self, event: SlotReady) -> None:
        """Look at a slot before it has a task."""
        if event.pid in self._since:  # others of its process have had tasks
            return
        most, taken = self._options.max_memory, private_memory(event.pid)
        if most and taken > most and not self._too_large:
            self._too_large = True
            self._complain(
                f"pool {self._machine.config.pool}: a slot takes {taken >> 20:,} MiB before its first task, "
                f"more than --max-memory-per-child ({most >> 20:,} MiB): none is replaced for its memory"
            )

    def turn(self, now: float) -> None:
        self.deadline = now + LOOK
        up = [slot for slot in self._machine.slots.values() if slot.is_up and not slot.due]
        self._since = {slot.pid: self._since.get(slot.pid, now) for slot in up}
        age, most = self._options.max_age, 0 if self._too_large else self._options.max_memory
        for slot in up:
            if age and now - self._since[slot.pid] >= age:
                self._due(SlotDue(slot.number, "age"))
            elif most and private_memory(slot.pid) > most:
                self._due(SlotDue(slot.number, "memory"))
