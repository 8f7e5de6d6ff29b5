"""A hub's limit of open files: how many pools it can have, and that it takes no connections while it is near.

libzmq cannot be told to accept nobody: where a connection waits and there is no descriptor for it, its thread
tries again and again, and takes a whole CPU.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from taskmesh.core.events import Shortage
from taskmesh.errors import ConfigError
from taskmesh.hub.listeners import Listeners
from taskmesh.link.socket_profiles import BACKLOG
from taskmesh.shm.blob import keep_open
from taskmesh.sockets.context import MAX_SOCKETS
from taskmesh.system.process import raise_file_limit

FILES_PER_POOL = 4
"""Its lane's socket and link, its links to collector and control."""
RESERVED = 128
"""Files for the program itself and for clients, at least."""
SPARE_SOCKETS = 1024
SHARE = 8
"""One file of so many is kept for connections that the kernel has accepted when the listeners are shut, and
as many for the hub's own."""
DIALLED = 3
"""Listeners that peers dial."""
FASTEST = 2000.0
"""Connections a second that are expected between two looks, at most."""
SHORTEST, LONGEST = 0.05, 1.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class FileBudget:
    """Limits that follow from the limit of open files.

    Attributes:
        files: number of files that may be open.
        pools: number of pools that may have a session.
    """

    files: int
    pools: int


def file_budget(max_pools: int) -> FileBudget:
    """Raise the limit of open files as far as possible; return it, and the number of pools that it allows.

    Raises:
        ConfigError: not even one pool could be served.
    """
    files = raise_file_limit()
    pools = min(max_pools, (files - RESERVED) // FILES_PER_POOL)
    if pools < 1:
        raise ConfigError(
            f"{files} open files are too few for a hub, which needs {RESERVED} and {FILES_PER_POOL} for each "
            "pool: raise the limit (ulimit -n)"
        )
    return FileBudget(files, pools)


def socket_limit(pools: int) -> int:
    """Return how many sockets a hub's context may have: lanes that are being closed count too."""
    return min(MAX_SOCKETS, 2 * pools + SPARE_SOCKETS)


class FileLimit:
    """A part of the hub's loop that shuts the listeners before the files run out, and bounds payloads' files.

    Lanes go on listening: only pools that have been let in dial them.

    Args:
        files: number of files that may be open.
        listeners: the sockets that peers dial.
        hub: the hub's events.
        record: logs when a shortage begins and ends.
    """

    def __init__(
        self,
        files: int,
        listeners: Listeners,
        hub: deque[object],
        record: Callable[[str, dict[str, object]], None],
    ) -> None:
        self.deadline = 0.0
        self._files = files
        self._spare = max(DIALLED * 2, min(DIALLED * (BACKLOG + 1), files // SHARE))
        self._listeners = listeners
        self._hub = hub
        self._record = record
        self._reserve: list[int] = []
        listeners.limit_queue(self._spare // DIALLED - 1)  # the kernel lets in one more
        self._fill_reserve()

    def turn(self, now: float) -> None:
        """Count the open files; shut or open the listeners."""
        opened = min(_open_files(), self._files)
        left = self._files - opened
        keep_open(max(0, left - 2 * self._spare))
        if not self._listeners.are_shut and left < self._spare:
            self._listeners.shut()
            self._free_reserve()  # for connections that wait to be accepted
            self._report(opened)
        elif self._listeners.are_shut and left >= 3 * self._spare:
            self._listeners.open()
            self._fill_reserve()
            self._report(opened)
        self.deadline = now + min(LONGEST, max(SHORTEST, (left - self._spare) / FASTEST))

    def _report(self, opened: int) -> None:
        fields: dict[str, object] = {"open_files": opened, "limit": self._files}
        if not self._listeners.are_shut:
            self._hub.append(Shortage(""))
            self._record("files.enough", fields)
            return
        text = (
            f"{opened} files of {self._files} are open: nobody else is let in until some are closed. "
            "Raise the limit of open files (ulimit -n, or the container's) and start the hub again, "
            "or have fewer programs dial it"
        )
        self._hub.append(Shortage(text))
        self._record("files.short", {**fields, "text": text})

    def _fill_reserve(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._reserve) < self._spare:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _free_reserve(self) -> None:
        for descriptor in self._reserve:
            os.close(descriptor)
        self._reserve.clear()

    def close(self) -> None:
        self._free_reserve()
        keep_open(self._files)
        self.deadline = math.inf


def _open_files() -> int:
    """Return how many files this process has open; above its limit where not even that can be found out."""
    try:
        return len(os.listdir("/dev/fd")) - 1
    except OSError:
        return 1 << 30
