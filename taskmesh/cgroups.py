"""The control groups (cgroups of version 1 or 2) that a process is in: a container's limits stand there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_GROUPS: Final = "/proc/{}/cgroup"
_MOUNT: Final = "/sys/fs/cgroup"
_MACHINE: Final = "/proc/meminfo"


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
        limit = group.number("memory.max" if group.unified else "memory.limit_in_bytes")
        if limit:
            yield limit, group


def memory_limit() -> int:
    """Bytes of memory that this process may take, with all that share its groups; the machine's, if less."""
    machine = [
        int(line.split()[1]) << 10 for line in _content(_MACHINE).splitlines() if line.startswith("MemTotal:")
    ]
    limits = [*machine, *(limit for limit, _ in memory_limits())]
    return min(limits, default=1 << 62)


def _content(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read().strip()
    except OSError:
        return ""
