"""A place where tasks wait until the test lets them go: a file that the test has locked."""

import fcntl
import os
from pathlib import Path


class Gate:
    """The test's side; the tasks' is `wait_at(gate.path)`. Once open it is open for everybody."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def open(self) -> None:
        """Let every task go that waits here or will come."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def wait_at(path: str) -> None:
    """Wait until the test opens the gate; processes that wait can be stopped and killed."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
