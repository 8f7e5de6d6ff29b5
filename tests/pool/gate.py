"""A place where a task waits until the test lets it go: a named pipe."""

import os
from pathlib import Path


class Gate:
    """The test's side; the task's is `wait_at(gate.path)`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._fd: int | None = None

    def reached(self) -> bool:
        """Whether a task waits here."""
        if self._fd is None:
            try:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return False
        return True

    def open(self) -> None:
        """Let the task go; it must have been reached."""
        assert self._fd is not None
        self.close()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def wait_at(path: str) -> str:
    """Wait until the test opens the gate."""
    with open(path, encoding="utf-8") as pipe:
        pipe.read()
    return "passed"
