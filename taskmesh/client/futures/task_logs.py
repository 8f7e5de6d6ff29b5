"""Lines that tasks have logged, at their caller: kept with their futures, and handed to its loggers."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from contextlib import suppress
from contextvars import Context
from typing import Final, NamedTuple

from taskmesh.messages.runs import Progress
from taskmesh.serialize.sources import LOGGER

MOST_KEPT: Final = 1_000
"""Lines that a future keeps."""
MOST_WAITING: Final = 10_000
"""Lines that may wait for the caller's loggers; what comes then is kept with its future alone."""


_told: set[str] = set()
"""Other sources that a worker has told of: each of its slots does."""


class TaskLogLine(NamedTuple):
    """A record that a task has logged, or with `stream_logs=True` a line that it has printed.

    Attributes:
        time: seconds since the epoch.
        level: as in `logging`; 0 for a print.
        logger: the name of its logger; "stdout" or "stderr" for a print.
        text: the message, with the traceback of its exception.
        path: the file that it comes from; empty for a print.
        line: the line there.
        attempt: the number of the attempt, from 1.
        worker: the pool and slot.
    """

    time: float
    level: int
    logger: str
    text: str
    path: str
    line: int
    attempt: int
    worker: str


class TaskLogs:
    """Lines on their way to the caller's loggers and streams, in their order.

    A handler of the caller's may block. So not the port's thread passes them on, but the callback thread, or
    who asks for the outcome of a task that has logged, if that comes first.

    Attributes:
        context: that of the task whose tasks these are, for its log; None outside of tasks.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler may submit a task and wait for it
        self._waiting: deque[tuple[str, str, TaskLogLine]] = deque()
        self._dropped = 0
        self.context: Context | None = None

    def add(self, name: str, task: str, news: Progress) -> list[TaskLogLine]:
        """Return the lines of a task, which `hand_over` passes on."""
        made = [
            TaskLogLine(
                line.time, line.level, line.logger, line.text, line.path, line.line, news.attempt, news.worker
            )
            for line in news.lines
        ]
        fits = made[: max(0, MOST_WAITING - len(self._waiting))]
        self._waiting += [(name, task, line) for line in fits]
        self._dropped += len(made) - len(fits)
        return made

    def hand_over(self) -> None:
        """Hand all lines that wait to the loggers of their names."""
        with self._lock:
            while self._waiting:
                waiting = self._waiting.popleft()
                if self.context is None:
                    _hand_over(*waiting)
                else:
                    self.context.copy().run(_hand_over, *waiting)  # a copy: a handler may come back here
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                logging.getLogger(__name__).warning(
                    "%d lines of tasks came faster than the handlers of this program take them: they are in "
                    "`future.logs()` alone",
                    dropped,
                )


def _hand_over(name: str, task: str, line: TaskLogLine) -> None:
    if not line.level:
        stream = sys.stderr if line.logger == "stderr" else sys.stdout
        with suppress(AttributeError, OSError, ValueError):  # it is None, or closed
            stream.write(f"({name} {task[:8]} {line.worker}) {line.text}\n")
        return
    if line.logger == LOGGER:
        if line.text in _told:
            return
        if len(_told) >= MOST_KEPT:
            _told.clear()
        _told.add(line.text)
    logger = logging.getLogger(line.logger)
    if logger.isEnabledFor(line.level):
        record = logger.makeRecord(
            line.logger,
            line.level,
            line.path,
            line.line,
            line.text,
            (),
            None,
            extra={"task_id": task, "task_name": name, "task_attempt": line.attempt, "worker": line.worker},
        )
        record.created = line.time
        record.msecs = line.time % 1 * 1000
        logger.handle(record)
