"""Busy polling: a slot that is given short tasks one by one stays awake for the next.

A CPU that has gone to sleep costs a round trip more than all of our Python: it must be woken, in a virtual
machine by the host, and finds its caches cold. Measured on two virtual CPUs: the median round trip of an
embedded mesh took 718 us with a slot that sleeps between its tasks, 316 us with one that polls.

Under a limit of CPU time (a container's) useless polling takes time from the tasks: with less than two CPUs
no slot polls.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Final

from taskmesh.system.cgroups import usable_cpus
from taskmesh.system.clock import monotonic

if TYPE_CHECKING:
    from taskmesh.pool.machine.machine import PoolMachine

LONGEST: Final = 0.001
"""Seconds that are polled at most before the slot goes to sleep: a lone trip over tcp takes half of that."""
SHORT: Final = 0.0015
"""Seconds up to which a wait slept through shows that polling would have paid: it includes the waking."""
MIN_SHORT_WAITS: Final = 2
"""So many short waits in a row before polling begins."""
COST: Final = 8
"""Short waits that make up for one useless poll."""
MAX_CREDIT: Final = 4 * COST
"""Most short waits that are remembered."""
PENALTY: Final = 64
"""Short waits without polling once trust is used up: useless polling never takes more than 3 % of a CPU."""

POLLED: Final = 0.0001
"""Seconds that are polled at most. A lone task's answer comes in 20 to 60 us; to be woken, on a CPU that has
gone idle, takes as long."""
SHORT_ANSWER: Final = 0.0002
"""Seconds up to which an answer that was slept for shows that polling would have paid."""


class SpinWait:
    """Decides before each wait for a descriptor whether to poll it for a while, by how long the last took.

    It is asked, and told, of waits after a lone task only: where many are under way the CPU has better to do.

    Args:
        fds: what is waited for. cpus: how many CPUs this process may use, `usable_cpus()` if None; with
            less than two nobody could answer while we poll.
        longest, short: seconds that are polled at most, and up to which a wait is short.
    """

    def __init__(
        self, *fds: int, cpus: float | None = None, longest: float = LONGEST, short: float = SHORT
    ) -> None:
        self._longest = longest
        self._short = short
        self._trust = -MIN_SHORT_WAITS
        self._may = (usable_cpus() if cpus is None else cpus) >= 2
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, select.POLLIN)

    @property
    def pays(self) -> bool:
        """True if the next wait begins with polling."""
        return self._may and self._trust >= 0

    def wait(self) -> bool:
        """Poll if that is likely to pay; True when one of the descriptors became readable meanwhile."""
        if not self.pays:
            return False
        poll, end = self._poll.poll, time.monotonic() + self._longest
        while not poll(0):
            if time.monotonic() >= end:
                self._trust = self._trust - COST if self._trust >= COST else -PENALTY
                return False
            os.sched_yield()
        return True

    def waited(self, seconds: float) -> None:
        if seconds <= self._short:
            self._trust = min(self._trust + 1, MAX_CREDIT) if self._trust else COST
        elif self._trust < 0:
            self._trust = min(self._trust, -MIN_SHORT_WAITS)


class SlotWait:
    """Decides whether a pool's loop polls while a lone task is under way, by how soon the last answers came.

    Where several tasks are under way the CPU, and in a user's program the GIL, have better to do.

    Args:
        pool: the machine whose slots are waited for.
        fds: readable when one of them, or another source that must not wait, has something.
    """

    def __init__(self, pool: PoolMachine, *fds: int) -> None:
        self._pool = pool
        self._polling = SpinWait(*fds, longest=POLLED, short=SHORT_ANSWER)
        self._asleep_since = 0.0

    def came(self) -> bool:
        """Poll, if that is likely to pay, before the loop sleeps; return True when there is something now."""
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
        """Take note that the loop has slept, or had no reason to."""
        if self._asleep_since:
            self._polling.waited(monotonic() - self._asleep_since)
            self._asleep_since = 0.0
