"""Busy polling: a slot that is given short tasks one by one stays awake for the next.

A CPU that has gone to sleep costs a round trip more than all of our Python: it must be woken, in a virtual
machine by the host, and finds its caches cold. Measured on two virtual CPUs: the median round trip of an
embedded mesh took 718 us with a slot that sleeps between its tasks, 316 us with one that polls.

Under a limit of CPU time (a container's) what is polled in vain is taken from the tasks: below two CPUs'
worth nobody polls.
"""

from __future__ import annotations

import math
import os
import select
import time
from typing import Final

LONGEST: Final = 0.001
"""Seconds that are polled at most before the slot goes to sleep: a lone trip over tcp takes half of that."""
SHORT: Final = 0.0015
"""Seconds up to which a wait slept through shows that polling would have paid: it includes the waking."""
HABIT: Final = 2
"""So many short waits in a row before polling begins."""
COST: Final = 8
"""Short waits that make up for one that was polled in vain."""
TRUST: Final = 4 * COST
"""Most short waits that are remembered."""
DISTRUST: Final = 64
"""Short waits without polling once trust is used up: tasks never cost more than 3 % of a CPU in vain."""

_OWN: Final = "/proc/self/cgroup"
_V1: Final = "/sys/fs/cgroup/cpu"
_V2: Final = "/sys/fs/cgroup"


class BusyPoll:
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
        self._trust = -HABIT
        self._may = (usable_cpus() if cpus is None else cpus) >= 2
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, select.POLLIN)

    @property
    def pays(self) -> bool:
        """Whether the next wait begins with polling."""
        return self._may and self._trust >= 0

    def wait(self) -> bool:
        """Polls if that is likely to pay; True when one of the descriptors became readable meanwhile."""
        if not self.pays:
            return False
        poll, end = self._poll.poll, time.monotonic() + self._longest
        while not poll(0):
            if time.monotonic() >= end:
                self._trust = self._trust - COST if self._trust >= COST else -DISTRUST
                return False
            os.sched_yield()
        return True

    def waited(self, seconds: float) -> None:
        """Takes note of how long a wait took."""
        if seconds <= self._short:
            self._trust = min(self._trust + 1, TRUST) if self._trust else COST
        elif self._trust < 0:
            self._trust = min(self._trust, -HABIT)


def usable_cpus() -> float:
    """How many CPUs this process may keep busy: those it may run on, and the quotas of its control groups."""
    return min(len(os.sched_getaffinity(0)), _quota())


def _quota() -> float:
    """The least quota of our control groups and those above them, in CPUs; infinite where there is none."""
    try:
        with open(_OWN, encoding="utf-8") as groups:
            lines = groups.read().splitlines()
    except OSError:
        return math.inf
    least = math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            # A container without a namespace of its own for control groups sees its path on the host here,
            # and its own group at the top of the mount.
            read, folder = (_v1_quota if controllers else _v2_quota), path.rstrip("/")
            least = min(least, read(folder))
            while folder:
                folder = folder.rpartition("/")[0]
                least = min(least, read(folder))
    return least


def _v2_quota(folder: str) -> float:
    """`cpu.max`: microseconds of CPU time, or "max", in a period of so many."""
    quota, _, period = _content(f"{_V2}{folder}/cpu.max").partition(" ")
    return _ratio(quota, period)


def _v1_quota(folder: str) -> float:
    """The same in two files; -1 is no quota."""
    where = f"{_V1}{folder}/cpu.cfs_"
    return _ratio(_content(f"{where}quota_us"), _content(f"{where}period_us"))


def _ratio(quota: str, period: str) -> float:
    is_limit = quota.isdecimal() and period.isdecimal() and int(period) > 0
    return int(quota) / int(period) if is_limit else math.inf


def _content(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read().strip()
    except OSError:
        return ""
