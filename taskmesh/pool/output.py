"""What slots print: read off their pipes, passed on to our own stdout and stderr, and the last lines kept.

Passing on is a thread's work, since our stdout may be a pipe that nobody reads. While it cannot keep up, slots'
output is left in their pipes, and a slot that prints waits as it would at a slow terminal.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_READ: Final = 64 << 10
_LINES: Final = 100
_LINE: Final = 4096
_HIGH: Final = 1 << 20
_LOW: Final = 256 << 10
STDOUT, STDERR = 1, 2


class OutputTail:
    """The pipes of one slot's stdout and stderr, and its last 100 lines of both together."""

    def __init__(self) -> None:
        self.stdout, self.slot_stdout = os.pipe()
        try:
            self.stderr, self.slot_stderr = os.pipe()
        except OSError:
            os.close(self.stdout)
            os.close(self.slot_stdout)
            raise
        os.set_blocking(self.stdout, False)
        os.set_blocking(self.stderr, False)
        self._lines: deque[bytes] = deque(maxlen=_LINES)
        self._partial = {self.stdout: b"", self.stderr: b""}

    def let_go(self) -> None:
        """Closes the slot's ends here."""
        for fd in {self.slot_stdout, self.slot_stderr} - {-1}:
            os.close(fd)
        self.slot_stdout = self.slot_stderr = -1

    def read(self, fd: int) -> bytes | None:
        """What one of the pipes has, at most 64 KiB; None at its end, b"" when there is nothing just now."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return b""
        if not data:
            return None
        *lines, rest = (self._partial[fd] + data).split(b"\n")
        self._lines.extend(line[-_LINE:] for line in lines[-_LINES:])
        self._partial[fd] = rest[-_LINE:]
        return data

    def text(self) -> str:
        """The last lines."""
        lines = [*self._lines, *(rest for rest in self._partial.values() if rest)]
        return b"\n".join(lines[-_LINES:]).decode(errors="replace")

    def close(self) -> None:
        """Closes every end."""
        self.let_go()
        for fd in self._partial:
            os.close(fd)


class Tee:
    """Passes slots' output on to `sys.stdout` and `sys.stderr`, from a thread that starts when there is any.

    Args:
        relieved: called in that thread when so much has gone after `full` that more may be read.
    """

    def __init__(self, relieved: Callable[[], None]) -> None:
        self._relieved = relieved
        self._queue: deque[tuple[int, bytes] | None] = deque()
        self._wake = threading.Condition()
        self._held = 0
        self._thread: threading.Thread | None = None

    @property
    def full(self) -> bool:
        """Whether so much waits that no more should be read."""
        return self._held > _HIGH

    def put(self, stream: int, data: bytes) -> None:
        """Queues output of STDOUT or STDERR."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taskmesh-output", daemon=True)
            self._thread.start()
        with self._wake:
            self._queue.append((stream, data))
            self._held += len(data)
            self._wake.notify()

    def close(self, timeout: float) -> None:
        """Writes what is queued and ends the thread; gives up after `timeout` seconds."""
        if self._thread is not None:
            with self._wake:
                self._queue.append(None)
                self._wake.notify()
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    self._wake.wait()
                item = self._queue.popleft()
            if item is None:
                return
            stream, data = item
            _write(sys.stdout if stream == STDOUT else sys.stderr, data)
            with self._wake:
                before = self._held
                self._held -= len(data)
                relieved = before >= _LOW > self._held
            if relieved:
                self._relieved()


def _write(stream: object, data: bytes) -> None:
    """Writes to a text stream that may be closed, replaced by anything, or None."""
    try:
        stream.write(data.decode(errors="replace"))  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001  the user's stream may fail as it likes; output is lost then, nothing else
        return
