"""The log of a slot's tasks: what they log, and print where that is asked for, on its way to their caller."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Final, TextIO

from taskmesh.messages.runs import LONGEST_NAME, PRINTED, LogLine

BYTES_A_SECOND: Final = 256 << 10
LINES_A_SECOND: Final = 1_000
"""The most that one task may log: what is beyond is dropped, and the task never waits for it."""
LONGEST: Final = 16 << 10
"""Characters of one line."""
_FORMAT: Final = logging.Formatter("%(message)s")


class TaskLog(logging.Handler):
    """The root logger's handler: passes on what the running task logs.

    It is there before any code of the user, so that `logging.basicConfig` in a module of the tasks leaves all
    as it is: the level is the caller's. Records of loggers that have handlers of their own, and do not
    propagate, stay in the worker.

    Args:
        running: returns the serial of the task that runs; None between tasks, whose lines go to stderr.
        send: sends a line of the task with a serial.
    """

    def __init__(self, running: Callable[[], int | None], send: Callable[[int, LogLine], None]) -> None:
        super().__init__()
        self.running = running
        self._send = send
        self._level = logging.WARNING
        self._budget = threading.Lock()  # a task may have threads that log
        self._serial = -1
        self._since = 0.0
        self._lines = self._size = self._dropped = 0
        self._printed: tuple[PrintedLines, ...] = ()
        logging.getLogger().addHandler(self)

    def listen(self, level: int) -> None:
        """Have the root logger take what the caller takes; 0 leaves it as it is."""
        if level and level != self._level:
            self._level = level
            logging.getLogger().setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        serial = self.running()
        if serial is None:
            if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
            return
        try:
            text = _FORMAT.format(record)
        except Exception:  # noqa: BLE001  its arguments do not fit, or their code fails
            self.handleError(record)
            return
        path = record.pathname[-LONGEST_NAME:]
        name = record.name[:LONGEST_NAME]
        self.add(serial, LogLine(record.created, max(1, record.levelno), name, text, path, record.lineno))

    def add(self, serial: int, line: LogLine) -> None:
        """Send a line, or count it as dropped if its task has sent too much."""
        line.text, line.logger, line.path = map(_in_utf8, (line.text, line.logger, line.path))
        if len(line.text) > LONGEST:
            line.text = f"{line.text[:LONGEST]} ... ({len(line.text) - LONGEST:,} characters more)"
        size, now = len(line.text) + len(line.logger) + len(line.path), time.monotonic()
        with self._budget:
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

    def finish(self) -> None:
        """Send what is left to be said of a task: its outcome comes next."""
        for printed in self._printed:
            printed.end()
        if self._dropped:
            with self._budget:
                self._tell_dropped()

    def _tell_dropped(self) -> None:
        if self._dropped:
            text = (
                f"{self._dropped:,} lines before this one were dropped: a task may log "
                f"{LINES_A_SECOND:,} lines and {BYTES_A_SECOND >> 10} KiB a second"
            )
            self._dropped = 0
            self._send(self._serial, LogLine(time.time(), logging.WARNING, __name__, text))

    @contextmanager
    def prints(self) -> Iterator[None]:
        """Within the block, what tasks print in Python goes where their records go."""
        out, err = PrintedLines(self, "stdout", sys.stdout), PrintedLines(self, "stderr", sys.stderr)
        self._printed = (out, err)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                yield
        finally:
            self.finish()
            self._printed = ()


@contextmanager
def collected_elsewhere() -> Iterator[None]:
    """Within the block, records of tasks are left to other handlers of the root logger."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, TaskLog)]
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


class PrintedLines(io.TextIOBase):
    """A text stream whose lines go to a log; between tasks they go to the stream behind it."""

    def __init__(self, log: TaskLog, name: str, behind: TextIO) -> None:
        self._log = log
        self._name = name
        self._behind = behind
        self._rest = ""
        self._serial: int | None = None  # whose the rest is

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        serial = self._log.running()
        if serial != self._serial:
            self.end()
            self._serial = serial
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._pass_on(line)
        if len(self._rest) > LONGEST:
            self.end()
        return len(text)

    def end(self) -> None:
        """Pass on what has no line end."""
        rest, self._rest = self._rest, ""
        if rest:
            self._pass_on(rest)

    def fileno(self) -> int:
        return self._behind.fileno()

    def _pass_on(self, text: str) -> None:
        if self._serial is None:
            self._behind.write(text + "\n")
        else:
            self._log.add(self._serial, LogLine(time.time(), PRINTED, self._name, text))
