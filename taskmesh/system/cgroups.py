"""The control groups (cgroups of version 1 or 2) that a process is in: a container's limits stand there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_GROUPS: Final = "/proc/{}/cgroup"
_MOUNT: Final = "/sys/fs/cgroup"
_MACHINE: Final = "/proc/meminfo"
CACHE_COUNTS: Final = 0.8
"""Share of a limit from which on it matters how much of what is used are files' pages."""


@dataclass(frozen=True, slots=True)
class Group:
    """One control group.

    Attributes:
        folder: where its files are.
        unified: it is of version 2.
    """

    folder: str
    unified: bool

    def read(self, name: str) -> str:
        """The content of one of its files, "" where there is no such file."""
        return _content(f"{self.folder}/{name}")

    def number(self, name: str) -> int | None:
        """The number in one of its files; None where there is none, such as "max"."""
        text = self.read(name)
        return int(text) if text.isdecimal() else None

    @property
    def memory_limit(self) -> int | None:
        """Bytes of memory that its processes may take together; None for any number."""
        return self.number("memory.max" if self.unified else "memory.limit_in_bytes")

    def memory_left(self, limit: int) -> int:
        """Bytes until the kernel kills for lack of memory.

        Cached pages of files do not count: the kernel drops them first, those that were read twice (active)
        too. It swaps before it kills.
        """
        used = self.number("memory.current" if self.unified else "memory.usage_in_bytes") or 0
        if used < CACHE_COUNTS * limit:  # the exact figure takes longer, and matters to nobody
            return limit - used
        prefix = "" if self.unified else "total_"
        cached = {f"{prefix}inactive_file", f"{prefix}active_file"}
        for line in self.read("memory.stat").splitlines():
            name, _, size = line.partition(" ")
            if name in cached:
                used -= int(size)
        return limit - used + self._swap_left()

    def _swap_left(self) -> int:
        free = machine_memory("SwapFree")
        if not free:
            return 0
        swap = "memory.swap" if self.unified else "memory.memsw"
        most = self.number(f"{swap}.max" if self.unified else f"{swap}.limit_in_bytes")
        used = self.number(f"{swap}.current" if self.unified else f"{swap}.usage_in_bytes") or 0
        return free if most is None else max(0, min(free, most - used))


def groups_of(controller: str, pid: int | str = "self") -> Iterator[Group]:
    """The groups of a controller ("cpu", "memory") that limit a process: its own, and all above that.

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


def memory_limits() -> Iterator[tuple[int, Group]]:
    """The limits of memory that this process lives under, in bytes, each with its group."""
    for group in groups_of("memory"):
        limit = group.memory_limit
        if limit:
            yield limit, group


def memory_limit() -> int:
    """Bytes of memory that this process may take, with all that share its groups; the machine's, if less."""
    return min([machine_memory("MemTotal") or 1 << 62, *(limit for limit, _ in memory_limits())])


class LimitedMemory:
    """The memory of the control groups that limit this process, and of all processes in them.

    A limit that is raised or lowered later counts; one above the machine's memory is none.
    """

    def __init__(self) -> None:
        most = machine_memory("MemTotal") or 1 << 62
        self._groups = [group for limit, group in memory_limits() if limit < most]

    def __bool__(self) -> bool:
        """Whether there is a limit."""
        return bool(self._groups)

    def least_left(self) -> tuple[int, int]:
        """Bytes that are left until the kernel kills, and the limit, of the group where they are fewest."""
        limits = [(group, group.memory_limit or 1 << 62) for group in self._groups]
        return min((group.memory_left(limit), limit) for group, limit in limits)


def machine_memory(name: str) -> int:
    """Bytes that a line of /proc/meminfo tells ("MemTotal", "SwapFree"); 0 where there is none."""
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
