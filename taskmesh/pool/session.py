"""Ending what is left of a session: the fork server leads one, and what slots start is in it."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

_ROUNDS: Final = 5


def members(session: int) -> list[int]:
    """The live processes of a session other than its leader; none where there is no /proc."""
    found = []
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit() and int(name) != session:
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    fields = stat.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(name))
    return found


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
