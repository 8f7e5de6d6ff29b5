"""Polling for a moment for the answer to a lone task before the loop goes to sleep."""

from __future__ import annotations

from taskmesh.core.pool.machine import PoolMachine
from taskmesh.pool.busy_poll import BusyPoll
from taskmesh.system.clock import monotonic

POLLED = 0.0001
"""Seconds that are polled at most. A lone task's answer comes in 20 to 60 us; to be woken, on a CPU that has
gone idle, takes as long."""
SHORT = 0.0002
"""Seconds up to which an answer that was slept for shows that polling would have paid."""


class Answers:
    """Decides whether a pool's loop polls while a lone task is under way, by how soon the last answers came.

    Where there are several the CPU, and in a user's program the GIL, have better to do.

    Args:
        pool: whose slots. fds: readable when one of them, or anybody else who should not wait, has something.
    """

    def __init__(self, pool: PoolMachine, *fds: int) -> None:
        self._pool = pool
        self._polling = BusyPoll(*fds, longest=POLLED, short=SHORT)
        self._asleep_since = 0.0

    def came(self) -> bool:
        """Called before the loop sleeps: True when there is something now."""
        under_way = 0
        for slot in self._pool.slots.values():
            under_way += slot.count
            if under_way > 1:
                return False
        if not under_way:
            return False
        if self._polling.wait():
            return True
        self._asleep_since = monotonic()
        return False

    def awake(self) -> None:
        """Called when the loop has slept, or has had no reason to."""
        if self._asleep_since:
            self._polling.waited(monotonic() - self._asleep_since)
            self._asleep_since = 0.0
