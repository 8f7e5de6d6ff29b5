"""Did the kernel kill it for memory? Counters of the memory cgroup (v1 or v2) tell."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MOUNT: Final = Path("/sys/fs/cgroup")
_ROOTS: Final = (
    _MOUNT / "memory" / "memory.oom_control",
    _MOUNT / "memory.events",
)  # a container sees its own here


class OomCounter:
    """How often the kernel's out-of-memory killer struck in the cgroups of this process and its children."""

    def __init__(self) -> None:
        self._owed = 0
        self._seen: dict[Path, int] = {}
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

    def _look(self, files: list[Path]) -> int:
        """By how much the counters have moved since the last look; a file not seen before counts from 0."""
        moved = 0
        for file in files:
            count = _count(file)
            if count is not None:
                moved = max(moved, count - self._seen.get(file, 0))
                self._seen[file] = count
        return moved


def _counter_files(pid: str) -> list[Path]:
    """The counters of the memory cgroups that a process is in; the whole machine's when it is in none."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            files += [_MOUNT / "memory" / path.lstrip("/") / "memory.oom_control"]
        elif not controllers:
            files += [_MOUNT / path.lstrip("/") / "memory.events"]
    for candidates in (files, _ROOTS):
        readable = [file for file in candidates if _count(file) is not None]
        if readable:
            return readable
    return [Path("/proc/vmstat")]


def _count(file: Path) -> int | None:
    """The `oom_kill` line of a counter file."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None
