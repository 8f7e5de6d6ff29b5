"""The control groups (cgroups of version 1 or 2) of a process: a container's limits of memory and CPU time.

They also count the kernel's kills for memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from taskmesh.system.clock import monotonic

_GROUPS: Final = "/proc/{}/cgroup"
_MOUNT: Final = "/sys/fs/cgroup"
_MACHINE: Final = "/proc/meminfo"
_VMSTAT: Final = "/proc/vmstat"
CACHE_COUNTS: Final = 0.8
"""Share of a limit above which cached pages are subtracted: below, nobody needs the exact figure."""
LONGEST_DEATH: Final = 2.0
"""Seconds that a killed process may take to be gone."""


@dataclass(frozen=True, slots=True)
class Group:
    """One control group.

    Attributes:
        folder: the directory of its files.
        unified: True for version 2.
    """

    folder: str
    unified: bool

    def read(self, name: str) -> str:
        """Return the content of one of its files, "" if there is no such file."""
        return _content(f"{self.folder}/{name}")

    def number(self, name: str) -> int | None:
        """Return the number in one of its files; None if it has none, or says "max"."""
        text = self.read(name)
        return int(text) if text.isdecimal() else None

    @property
    def memory_limit(self) -> int | None:
        """Bytes of memory that its processes may take together; None without a limit."""
        return self.number("memory.max" if self.unified else "memory.limit_in_bytes")

    def memory_left(self, limit: int) -> int:
        """Return how many bytes are left until the kernel kills for lack of memory.

        Cached pages of files do not count, not even those that were read twice (active): the kernel drops
        them first. It swaps before it kills.
        """
        used = self.number("memory.current" if self.unified else "memory.usage_in_bytes") or 0
        if used < CACHE_COUNTS * limit:  # the exact figure takes longer
            return limit - used
        prefix = "" if self.unified else "total_"
        cached = {f"{prefix}inactive_file", f"{prefix}active_file"}
        for line in self.read("memory.stat").splitlines():
            name, _, size = line.partition(" ")
            if name in cached:
                used -= int(size)
        return limit - used + self._swap_left()

    @property
    def oom_kills(self) -> int | None:
        """The number of kills for memory among its processes; None if the kernel does not count them."""
        return _kills(f"{self.folder}/{'memory.events' if self.unified else 'memory.oom_control'}")

    @property
    def cpus(self) -> float:
        """The number of CPUs that its processes may keep busy together; infinite without a quota."""
        if self.unified:
            quota, _, period = self.read("cpu.max").partition(" ")
        else:
            quota, period = self.read("cpu.cfs_quota_us"), self.read("cpu.cfs_period_us")
        is_limit = quota.isdecimal() and period.isdecimal() and int(period) > 0
        return int(quota) / int(period) if is_limit else math.inf

    def _swap_left(self) -> int:
        free = machine_memory("SwapFree")
        if not free:
            return 0
        swap = "memory.swap" if self.unified else "memory.memsw"
        most = self.number(f"{swap}.max" if self.unified else f"{swap}.limit_in_bytes")
        used = self.number(f"{swap}.current" if self.unified else f"{swap}.usage_in_bytes") or 0
        return free if most is None else max(0, min(free, most - used))


def groups_of(controller: str, pid: int | str = "self") -> Iterator[Group]:
    """Yield the groups of a controller ("cpu", "memory") that limit a process: its own, then all above.

    A container without a namespace of its own for control groups sees its path on the host in /proc, and its
    own group at the top of the mount: so the top always counts too.
    """
    for line in _content(_GROUPS.format(pid)).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mount = f"{_MOUNT}/{controller}" if controllers else _MOUNT
            path = path.rstrip("/")
            while path:
                yield Group(mount + path, not controllers)
                path = path.rpartition("/")[0]
            yield Group(mount, not controllers)


def usable_cpus() -> float:
    """Return how many CPUs this process may keep busy: by its affinity and its groups' quotas."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # the system has none, or a sandbox refuses it
        allowed = os.cpu_count() or 1
    return min(allowed, *(group.cpus for group in groups_of("cpu")), math.inf)


def memory_limits() -> Iterator[tuple[int, Group]]:
    """Yield the limits of memory of this process, in bytes, each with its group."""
    for group in groups_of("memory"):
        limit = group.memory_limit
        if limit:
            yield limit, group


def memory_limit() -> int:
    """Return the bytes that this process and all that share its groups may take; the machine's, if less."""
    return min([machine_memory("MemTotal") or 1 << 62, *(limit for limit, _ in memory_limits())])


class LimitedMemory:
    """The memory of the control groups that limit this process.

    A limit that is raised or lowered later counts; one above the machine's memory is none.
    """

    def __init__(self) -> None:
        most = machine_memory("MemTotal") or 1 << 62
        self._groups = [group for limit, group in memory_limits() if limit < most]

    def __bool__(self) -> bool:
        return bool(self._groups)

    def least_left(self) -> tuple[int, int]:
        """Return the bytes left until the kernel kills, and the limit, of the group where they are fewest."""
        limits = [(group, group.memory_limit or 1 << 62) for group in self._groups]
        return min((group.memory_left(limit), limit) for group, limit in limits)


class OomCounter:
    """Counts how often the kernel's out-of-memory killer struck in the groups of this process and a child."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._count("self")
        self._unexplained: list[float] = []  # the times at which kills were noticed that explain no death yet

    def refresh(self) -> None:
        """Forget the kills that were noticed long ago: they were of processes that are not slots.

        A slot that was killed a moment ago may still be dying, until the kernel has freed its memory.
        """
        now = monotonic()
        self._unexplained = [noticed for noticed in self._unexplained if now - noticed < LONGEST_DEATH]
        self._unexplained += [now] * self._count("self")

    def explains(self, pid: int) -> bool:
        """Return True if a SIGKILL of our child `pid`, not reaped yet or just now, was for memory.

        A counter that has moved by one explains one death.
        """
        self._unexplained += [monotonic()] * max(self._count("self"), self._count(pid))
        if not self._unexplained:
            return False
        self._unexplained.pop()
        return True

    def _count(self, pid: int | str) -> int:
        """Return by how much the counter of a process has moved; one not seen before counts from 0."""
        for group in groups_of("memory", pid):
            if (count := group.oom_kills) is not None:
                return self._moved(group.folder, count)
        return self._moved(_VMSTAT, _kills(_VMSTAT) or 0) if pid == "self" else 0

    def _moved(self, counter: str, count: int) -> int:
        moved = count - self._seen.get(counter, 0)
        self._seen[counter] = count
        return moved


def _kills(file: str) -> int | None:
    for line in _content(file).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None


def machine_memory(name: str) -> int:
    """Return the bytes in a line of /proc/meminfo ("MemTotal", "SwapFree"); 0 if there is none."""
    for line in _content(_MACHINE).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def _content(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read().strip()
    except OSError:
        return ""
