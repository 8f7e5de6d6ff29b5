"""How many CPUs this process may keep busy: what it may run on, and what a container's limits leave of it."""

from __future__ import annotations

import math
import os
from typing import Final

_OWN: Final = "/proc/self/cgroup"
_V1: Final = "/sys/fs/cgroup/cpu"
_V2: Final = "/sys/fs/cgroup"


def usable_cpus() -> float:
    """How many CPUs this process may keep busy: those it may run on, and the quotas of its control groups."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # there is no such thing here, or a sandbox refuses it
        allowed = os.cpu_count() or 1
    return min(allowed, _quota())


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
