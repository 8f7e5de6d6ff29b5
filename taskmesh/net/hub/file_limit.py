"""A hub at its limit of open files: it takes no further connections until some have ended, and says so."""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable

from taskmesh.core.events import Shortage
from taskmesh.net.hub.listening import Listeners
from taskmesh.net.wires import BACKLOG

SHARE = 8
"""One of so many files is kept for connections that the kernel has let in when the door is shut, and as many
for what the hub itself opens."""
DIALLED = 3
"""Listeners that strangers dial."""
FASTEST = 2000.0
"""Connections a second that are reckoned with between two looks."""
SHORTEST, LONGEST = 0.05, 1.0
"""Seconds between two looks."""


class FileLimit:
    """A part of the hub's loop that closes the listeners' door in time.

    libzmq cannot be told to accept nobody: where a connection waits and there is no descriptor for it, its
    thread tries again and again, and takes a whole CPU. Lanes go on listening, for they are for pools that
    have been let in.

    Args:
        files: how many may be open.
        listeners: what strangers dial.
        hub: the hub's events. record: told when it begins and ends.
    """

    pending = False

    def __init__(
        self,
        files: int,
        listeners: Listeners,
        hub: deque[object],
        record: Callable[[str, dict[str, object]], None],
    ) -> None:
        self.events: deque[object] = deque()
        self.deadline = 0.0
        self._files = files
        self._spare = max(DIALLED * 2, min(DIALLED * (BACKLOG + 1), files // SHARE))
        self._listeners = listeners
        self._hub = hub
        self._record = record
        self._reserve: list[int] = []
        listeners.let_wait(self._spare // DIALLED - 1)  # the kernel lets in one more
        self._keep()

    def turn(self, now: float) -> None:
        """Counts the open files."""
        opened = min(_open_files(), self._files)
        left = self._files - opened
        if not self._listeners.shut and left < self._spare:
            self._listeners.shut_door()
            self._let_go()  # those that wait to be accepted get them
            self._tell(opened)
        elif self._listeners.shut and left >= 3 * self._spare:
            self._listeners.open_door()
            self._keep()
            self._tell(opened)
        self.deadline = now + min(LONGEST, max(SHORTEST, (left - self._spare) / FASTEST))

    def _tell(self, opened: int) -> None:
        cure = ""
        if self._listeners.shut:
            cure = (
                f"{opened} files of {self._files} are open: nobody else is let in until some are closed. "
                "Cure: raise the limit of open files (ulimit -n, or the container's), start the hub again, "
                "or have fewer programs dial it"
            )
        self._hub.append(Shortage(cure))
        fields: dict[str, object] = {"open_files": opened, "limit": self._files}
        self._record(*(("files.short", {**fields, "cure": cure}) if cure else ("files.enough", fields)))

    def _keep(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._reserve) < self._spare:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _let_go(self) -> None:
        for descriptor in self._reserve:
            os.close(descriptor)
        self._reserve.clear()

    def close(self) -> None:
        """Keeps nothing any more."""
        self._let_go()
        self.deadline = math.inf


def _open_files() -> int:
    """The number of files that this process has open; above its limit where not even that can be seen."""
    try:
        return len(os.listdir("/dev/fd")) - 1
    except OSError:
        return 1 << 30
