"""Gates: places where tasks wait until the test lets them go."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Gate:
    """The test's side of a file that it has locked; the tasks' side is `wait_at(gate.path)`.

    Once it is open, it is open for every task that comes.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._inode = os.fstat(self._fd).st_ino
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def reached(self) -> bool:
        """Return True if a task waits here."""
        # 1: -> FLOCK  ADVISORY  READ 4711 fe:01:1234 0 EOF
        rows = (row.split() for row in Path("/proc/locks").read_text().splitlines())
        return any(row[1:3] == ["->", "FLOCK"] and row[6].endswith(f":{self._inode}") for row in rows)

    def open(self) -> None:
        """Let every task go that waits here or will come."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def wait_at(path: str) -> str:
    """Wait until the test opens the gate; processes that wait can be stopped and killed."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
    return "passed"


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Make gates that tasks wait at; they are opened at the end."""
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(tmp_path / f"gate-{len(made)}"))
        return made[-1]

    yield make
    for gate in made:
        gate.open()
