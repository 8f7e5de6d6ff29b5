"""Did the kernel kill it for memory? Counters of the memory cgroup (v1 or v2) tell."""

from __future__ import annotations

from typing import Final

_V1: Final = "/sys/fs/cgroup/memory{}/memory.oom_control"
_V2: Final = "/sys/fs/cgroup{}/memory.events"
_ROOTS: Final = (_V1.format(""), _V2.format(""))  # a container sees its own here


class OomCounter:
    """How often the kernel's out-of-memory killer struck in the cgroups of this process and its children."""

    def __init__(self) -> None:
        self._owed = 0
        self._seen: dict[str, int] = {}
        self._look([*_counter_files("self"), *_ROOTS])

    def refresh(self) -> None:
        """Forgets kills so far: they were of processes that are not slots."""
        self._look(_counter_files("self"))
        self._owed = 0

    def has_struck(self, pid: int) -> bool:
        """Whether a SIGKILL of our child `pid`, not reaped yet or just now, was the out-of-memory killer's.

        A counter that has moved by one explains one death.
        """
        files = [*_counter_files("self"), *_counter_files(str(pid))]
        self._owed += self._look(list(dict.fromkeys(files)))
        if self._owed:
            self._owed -= 1
            return True
        return False

    def _look(self, files: list[str]) -> int:
        """By how much the counters have moved since the last look; a file not seen before counts from 0."""
        moved = 0
        for file in files:
            count = _count(file)
            if count is not None:
                moved = max(moved, count - self._seen.get(file, 0))
                self._seen[file] = count
        return moved


def _counter_files(pid: str) -> list[str]:
    """The counters of the memory cgroups that a process is in; the whole machine's when it is in none."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as groups:
            lines = groups.read().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            files.append(_V1.format(path.rstrip("/")))
        elif not controllers:
            files.append(_V2.format(path.rstrip("/")))
    for candidates in (files, _ROOTS):
        readable = [file for file in candidates if _count(file) is not None]
        if readable:
            return readable
    return ["/proc/vmstat"]


def _count(file: str) -> int | None:
    """The `oom_kill` line of a counter file."""
    try:
        with open(file, encoding="utf-8") as counters:
            lines = counters.read().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None
