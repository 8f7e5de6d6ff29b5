"""A pool's start: its first slots are watched, and a failure is explained."""

from __future__ import annotations

import logging
from collections.abc import Callable

from taskmesh.core.events import SlotExited
from taskmesh.errors import TaskMeshError
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.slots import how_ended
from taskmesh.pool.slots.supervisor import NO_PROCESS
from taskmesh.system.clock import monotonic

_log = logging.getLogger("taskmesh")

PATIENCE = 60.0
"""Seconds in which a program's first slot must come up: no caller waits for it, and when a machine starts
many programs at once processes may be short for a while."""
LONGEST_OUTPUT = 1000
"""Characters of a slot's last output that are reported."""


class SlotStarts:
    """Watches the starts of a pool's slots.

    A shortage may pass, so a slot that did not come up is tried again. Once a slot has been up the place is
    known to be good: then the pool goes on trying for ever.

    Args:
        machine: the pool's machine.
        patience: seconds in which one slot must come up; a TaskMeshError ends the loop if none does.
        complain: reports a slot that cannot be started, and why; the same reason once. By default it is
            logged.
    """

    def __init__(
        self, machine: PoolMachine, patience: float, complain: Callable[[str], None] = _log.warning
    ) -> None:
        self._machine = machine
        self._patience = patience
        self.complain = complain
        self._since = monotonic()
        self._one_was_up = False
        self._reported = ""

    def ready(self) -> None:
        self._one_was_up = True

    def failed(self, exited: SlotExited) -> None:
        """Report a slot that has ended before it was up.

        Raises:
            TaskMeshError: none has ever been up, each has failed again and again, and the patience is over.
        """
        machine = self._machine
        if machine.state == "draining" or machine.recycling.is_trial(exited.slot):
            return
        reason, waited = start_failure(exited), monotonic() - self._since
        if reason != self._reported:
            self._reported = reason
            pool = machine.config.pool
            self.complain(f"pool {pool}: slot {exited.slot} cannot be started, trying again: {reason}")
        if self._one_was_up or waited < self._patience:
            return
        if all(slot.is_broken for slot in machine.slots.values()):
            raise TaskMeshError(f"no slot could be started within {waited:.0f} s: {reason}")


def start_failure(exited: SlotExited) -> str:
    """Return why a slot did not come up: how its process ended, and its last output."""
    log = exited.log[-LONGEST_OUTPUT:].strip()
    if exited.status == NO_PROCESS and log:
        return log
    return f"{how_ended(exited)} before it was ready{f': {log}' if log else ''}"
