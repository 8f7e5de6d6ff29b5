"""The log of a slot's tasks: what they log, on its way to their caller."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from taskmesh.messages.runs import LONGEST_NAME, LogLine

BYTES_A_SECOND: Final = 256 << 10
LINES_A_SECOND: Final = 1_000
"""The most that one task may log: what is beyond is dropped, and the task never waits for it."""
LONGEST: Final = 16 << 10
"""Characters of one line."""
_FORMAT: Final = logging.Formatter("%(message)s")


class LineBudget:
    """The most that one task may log: what is beyond is dropped, counted, and told when it is over.

    Args:
        send: sends a line of the task with a serial.
    """

    def __init__(self, send: Callable[[int, LogLine], None]) -> None:
        self._send = send
        self._lock = threading.Lock()  # a task may have threads that log
        self._serial = -1
        self._since = 0.0
        self._lines = self._size = self._dropped = 0

    def add(self, serial: int, line: LogLine) -> None:
        """Send a line, or count it as dropped if its task has sent too much."""
        line.text, line.logger, line.path = map(_in_utf8, (line.text, line.logger, line.path))
        if len(line.text) > LONGEST:
            line.text = f"{line.text[:LONGEST]} ... ({len(line.text) - LONGEST:,} characters more)"
        size, now = len(line.text) + len(line.logger) + len(line.path), time.monotonic()
        with self._lock:
            if serial != self._serial or now - self._since >= 1.0:
                self._tell_dropped()
                self._serial, self._since = serial, now
                self._lines = self._size = 0
            self._lines += 1
            self._size += size
            if self._lines > LINES_A_SECOND or self._size > BYTES_A_SECOND:
                self._dropped += 1
                return
            self._send(serial, line)

    def tell_dropped(self) -> None:
        """Send how many lines were dropped since this was said last, if any were."""
        if self._dropped:
            with self._lock:
                self._tell_dropped()

    def _tell_dropped(self) -> None:
        if self._dropped:
            text = (
                f"{self._dropped:,} lines before this one were dropped: a task may log "
                f"{LINES_A_SECOND:,} lines and {BYTES_A_SECOND >> 10} KiB a second"
            )
            self._dropped = 0
            self._send(self._serial, LogLine(time.time(), logging.WARNING, __name__, text))


class TaskLog:
    """The log of a slot's tasks: passes on what the running one logs.

    Args:
        running: returns the serial of the task that runs; None between tasks.
        send: sends a line of the task with a serial.

    Attributes:
        budget: what goes on its way to the caller passes it.
        is_shared: other tasks run in the process at the same time, and may want more.
    """

    def __init__(self, running: Callable[[], int | None], send: Callable[[int, LogLine], None]) -> None:
        self.running = running
        self.budget = LineBudget(send)
        self.is_shared = False
        self._level = logging.WARNING

    def listen(self, level: int) -> None:
        """Have the root logger take what the caller takes; 0 leaves it as it is."""
        if level and level != self._level:
            self._level = level
            if not self.is_shared or level < logging.root.level:
                logging.root.setLevel(level)

    def add(self, serial: int, record: logging.LogRecord) -> None:
        """Send a record of the task with this serial.

        Raises:
            Exception: its arguments do not fit, or their code fails.
        """
        text = _FORMAT.format(record)
        path = record.pathname[-LONGEST_NAME:]
        name = record.name[:LONGEST_NAME]
        self.budget.add(
            serial, LogLine(record.created, max(1, record.levelno), name, text, path, record.lineno)
        )


class TaskLogHandler(logging.Handler):
    """The root logger's handler: passes on what tasks log; what is logged between them goes to stderr.

    It is there before any code of the user, so that `logging.basicConfig` in a module of the tasks leaves all
    as it is: the level is the caller's. Records of loggers that have handlers of their own, and do not
    propagate, stay in the worker.

    Args:
        find: returns the log of the task that calls it; None outside of tasks.
    """

    def __init__(self, find: Callable[[], TaskLog | None]) -> None:
        super().__init__()
        self._find = find

    def emit(self, record: logging.LogRecord) -> None:
        log = self._find()
        serial = None if log is None else log.running()
        if log is None or serial is None:
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        try:
            log.add(serial, record)
        except Exception:  # noqa: BLE001  its arguments do not fit, or their code fails
            self.handleError(record)


@contextmanager
def collected_elsewhere() -> Iterator[None]:
    """Within the block, records of tasks are left to other handlers of the root logger."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, TaskLogHandler)]
    for handler in ours:
        root.removeHandler(handler)
    try:
        yield
    finally:
        for handler in ours:
            root.addHandler(handler)


def _in_utf8(text: str) -> str:
    """Return a text as it can travel: lone surrogates are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
