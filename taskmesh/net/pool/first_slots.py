"""How the starts of a pool's slots go: what people are told, and when there is no hope of a slot at all."""

from __future__ import annotations

import signal
from collections.abc import Callable

from taskmesh.core.events import SlotExited
from taskmesh.core.pool.machine import PoolMachine
from taskmesh.errors import TaskMeshError
from taskmesh.pool.host import NO_PROCESS
from taskmesh.system.clock import monotonic

PATIENCE = 60.0
"""Seconds in which a program's first slot has to come up: no caller waits for it, and when a machine starts
many programs at once processes may be short for a while."""
LONGEST = 1000
"""Characters of a slot's last output that are told."""


class FirstSlots:
    """Watches the starts of a pool's slots.

    A shortage may pass, so they are tried again. When a slot has been up once there is always hope: it is
    this moment that lacks something, not the place.

    Args:
        patience: seconds in which one has to come up.
        complain: told of a slot that cannot be started, and why; the same reason once.
    """

    def __init__(self, machine: PoolMachine, patience: float, complain: Callable[[str], None]) -> None:
        self._machine = machine
        self._patience = patience
        self._complain = complain
        self._since = monotonic()
        self._hopeful = False
        self._told = ""

    def came(self) -> None:
        """A slot is up."""
        self._hopeful = True

    def failed(self, exited: SlotExited) -> None:
        """A slot has ended before it was up.

        Raises:
            TaskMeshError: there is no hope: each slot has failed again and again, and the patience is over.
        """
        machine = self._machine
        if machine.state == "draining":
            return
        why, waited = why_of(exited), monotonic() - self._since
        if why != self._told:
            self._told = why
            pool = machine.config.pool
            self._complain(f"pool {pool}: slot {exited.slot} cannot be started, trying again: {why}")
        if self._hopeful or waited < self._patience:
            return
        if all(slot.is_broken for slot in machine.slots.values()):
            raise TaskMeshError(f"no slot could be started within {waited:.0f} s: {why}")


def why_of(exited: SlotExited) -> str:
    """Why a slot did not come up, for people: how it ended, and what it had printed last."""
    log = exited.log[-LONGEST:].strip()
    if exited.oom:
        how = "it was killed for lack of memory"
    elif exited.status < 0:
        how = f"its process was killed by {_name(-exited.status)}"
    elif exited.status != NO_PROCESS or not log:
        how = f"its process ended with exit code {exited.status}"
    else:
        return log
    return f"{how} before it was ready{f': {log}' if log else ''}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"
