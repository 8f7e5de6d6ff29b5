"""What a running task can learn about itself: `current_task()`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from taskmesh.errors import TaskMeshError


class TaskContext:
    """The attempt that is running: made when asked for, so that a task which never asks pays nothing.

    Attributes:
        id: the task id, 32 hexadecimal digits. name, queue: the task's.
        attempt: counts from 1.
        deadline: when the soft limit strikes, on `time.monotonic()`'s scale; None without a limit.
    """

    __slots__ = ("_cancelled", "_report", "attempt", "deadline", "id", "name", "queue")

    def __init__(
        self,
        *,
        id: str,
        name: str,
        attempt: int,
        queue: str = "default",
        deadline: float | None = None,
        report: Callable[[float, float], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.attempt = attempt
        self.queue = queue
        self.deadline = deadline
        self._report = report
        self._cancelled = cancelled

    @property
    def cancelled(self) -> bool:
        """Whether the task has been cancelled and should end soon; a process slot is killed instead."""
        return self._cancelled is not None and self._cancelled()

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline (not below 0), None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def progress(self, done: float, total: float = 0.0) -> None:
        """Tells the submitter how far the task is: `done` of `total` (0 when unknown). News, may be lost.

        Raises:
            TaskMeshError: `done` or `total` is negative.
        """
        if done < 0 or total < 0:
            raise TaskMeshError(f"progress(done, total) takes numbers >= 0, not ({done!r}, {total!r})")
        if self._report is not None:
            self._report(float(done), float(total))

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the task; to stderr unless the worker's code has configured logging."""
        return _TaskLog(_logger(), {"task": self})

    def __repr__(self) -> str:
        return f"<TaskContext {self.name} {self.id} attempt {self.attempt}>"


class _TaskLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: object, kwargs):  # type: ignore[no-untyped-def]
        task = self.extra["task"]  # type: ignore[index]
        return f"[{task.name} {task.id} #{task.attempt}] {msg}", kwargs


def _logger() -> logging.Logger:
    logger = logging.getLogger("taskmesh.task")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger


_source: Callable[[], TaskContext | None] | None = None
_bound: ContextVar[TaskContext | None] = ContextVar("taskmesh_task", default=None)


def install(source: Callable[[], TaskContext | None] | None) -> None:
    """Says how this process finds out what it is running: a slot calls it once, with None to take it back.

    `source` returns None while no task runs.
    """
    global _source
    _source = source


@contextmanager
def running(context: TaskContext) -> Iterator[TaskContext]:
    """Makes `context` the current task of this thread or asyncio task (inline meshes, thread slots)."""
    token = _bound.set(context)
    try:
        yield context
    finally:
        _bound.reset(token)


def current_task() -> TaskContext:
    """The task that this code runs in.

    Raises:
        TaskMeshError: called outside a task.
    """
    context = _bound.get()
    if context is None and _source is not None:
        context = _source()
    if context is None:
        raise TaskMeshError("current_task() was called outside a task; call it in code that a mesh runs")
    return context
