"""The fork server's session: what is left of it ends, and what the slots' process groups in it take."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator
from typing import Final

_ROUNDS: Final = 5


def members(session: int) -> list[int]:
    """The live processes of a session other than its leader; none where there is no /proc."""
    return [pid for pid, _, own in _processes() if own == session and pid != session]


def memory_of_groups(leaders: Collection[int]) -> dict[int, dict[int, int]]:
    """What the live processes of process groups take: by leader, the bytes of each process.

    Pages of files are not counted: killing a process frees none of them.
    """
    taken: dict[int, dict[int, int]] = {leader: {} for leader in leaders}
    for pid, group, _ in _processes():
        if group in taken:
            taken[group][pid] = _taken(pid)
    return taken


def _processes() -> Iterator[tuple[int, int, int]]:
    """Each live process with its group and session."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    fields = stat.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                yield int(name), int(fields[2]), int(fields[3])


def _taken(pid: int) -> int:
    """Bytes of a process that are no file's."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            lines = [line.split() for line in status]
    except OSError:
        return 0
    return sum(int(line[1]) << 10 for line in lines if line[0] in {"RssAnon:", "RssShmem:"})


def end_session(session: int) -> None:
    """SIGKILLs every process of a session but its leader.

    The caller is the leader, or its parent and has not reaped it yet: so the session's id cannot be
    another's. A process that made a session of its own is left alone.
    """
    for _ in range(_ROUNDS):  # a process may fork while we look
        left = members(session)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
