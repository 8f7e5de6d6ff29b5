"""The facts that a running task can learn about itself: `current_task()`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskmesh.errors import TaskMeshError

if TYPE_CHECKING:
    from datetime import datetime

LARGEST_WHOLE = 1 << 53
"""The largest whole number that a message has room for; larger ones are reported as floats."""


def _nothing(done: float, total: float) -> None:
    """Drop the progress of a task to which nobody listens."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The attempt that is running. It is made on demand, so that a task which never asks pays nothing.

    Attributes:
        id: the task id, 32 hexadecimal digits.
        name: the task's name.
        attempt: the number of the attempt, from 1.
        queue: the task's queue.
        deadline: the time of the soft limit on `time.monotonic()`'s scale; None without a limit.
        report: called with the progress; the runner of the task sets it.
        ask: returns True once the task is cancelled; the runner of the task sets it.
        slot: the number of the slot in its pool, from 0, by which tasks can choose a GPU. No two processes of
            a pool have the same number at a time; the environment has it as TASKMESH_SLOT. While tasks wait
            for tasks of their own there are more slots than `concurrency`.
        tick: the time for which a schedule has fired, in seconds since the epoch; None of other tasks.
        headers: the small texts that travel with the call, from `Middleware.around_submit`, and with those
            that the task submits.
    """

    id: str
    name: str
    attempt: int
    queue: str = "default"
    deadline: float | None = None
    report: Callable[[float, float], None] = field(default=_nothing, repr=False)
    ask: Callable[[], bool] = field(default=_never, repr=False)
    slot: int = 0
    tick: float | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def cancelled(self) -> bool:
        """True if the task has been cancelled, or another pool has it now: its result will be dropped.

        A task that has looked at this gets five seconds to clean up and return. A task that never looks is
        killed at once.
        """
        return self.ask()

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, not below 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def scheduled_for(self) -> datetime | None:
        """The time for which a schedule has fired, in UTC; None in a task that no schedule runs.

        A task that starts late, or is made up for, has its own time all the same, and so has each of its
        retries.
        """
        if self.tick is None:
            return None
        from datetime import UTC, datetime  # slots need it for nothing else

        return datetime.fromtimestamp(self.tick, UTC)

    def progress(self, done: float, total: float = 0.0) -> None:
        """Report to the submitter that `done` of `total` (0 if unknown) is done.

        Reports travel about once a second, and may be skipped; the last one comes with the task's outcome.

        Raises:
            TaskMeshError: `done` or `total` is negative or not a number.
        """
        try:
            sound = done >= 0 and total >= 0
        except TypeError:
            sound = False
        if not sound:
            raise TaskMeshError(f"progress(done, total) takes numbers >= 0, not ({done!r}, {total!r})")
        self.report(_plain(done), _plain(total))

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the task."""
        logger = logging.getLogger("taskmesh.task")
        task = {"task_name": self.name, "task_id": self.id, "task_attempt": self.attempt}
        return _TaskLog(logger, task)


def _plain(number: float) -> float:
    """Return a number as messages carry it; a whole one stays whole."""
    return number if type(number) is int and number <= LARGEST_WHOLE else float(number)


class _TaskLog(logging.LoggerAdapter[logging.Logger]):
    """Add the task to the beginning of every line, and to the record's attributes."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        task = dict(self.extra or {})
        kwargs["extra"] = {**task, **(kwargs.get("extra") or {})}
        return f"[{task['task_name']} {task['task_id']} #{task['task_attempt']}] {msg}", kwargs


_sources: list[Callable[[], TaskContext | None]] = []
_bound: ContextVar[TaskContext | None] = ContextVar("taskmesh_task", default=None)


def install(source: Callable[[], TaskContext | None] | None) -> None:
    """Set the function by which this process finds its running task; a slot calls it once.

    Args:
        source: returns None while no task runs. None removes the function.
    """
    _sources[:] = [] if source is None else [source]


class _Running:
    """The block of `running`, written out as contextlib assigns to exceptions, which frozen ones forbid."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def __enter__(self) -> TaskContext:
        self._token = _bound.set(self._context)
        return self._context

    def __exit__(self, *error: object) -> None:
        _bound.reset(self._token)


def headers_here() -> Mapping[str, str]:
    """Return the headers of the task that this code runs in; none outside a task."""
    context = _bound.get() or (_sources[0]() if _sources else None)
    return {} if context is None else context.headers


def running(context: TaskContext) -> AbstractContextManager[TaskContext]:
    """Make `context` the current task of this thread or asyncio task while the block runs."""
    return _Running(context)


def current_task() -> TaskContext:
    """Return the task that this code runs in.

    Raises:
        TaskMeshError: called outside a task.
    """
    context = _bound.get()
    if context is None and _sources:
        context = _sources[0]()
    if context is None:
        raise TaskMeshError("current_task() was called outside a task: call it in code that a mesh runs")
    return context
