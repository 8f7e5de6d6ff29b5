"""The runner of a slot that is a thread. Nothing can stop a thread, so it may have to be left to its task."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from taskmesh.core.ids import task_id, text_of
from taskmesh.errors import TaskMeshError
from taskmesh.messages.runs import CHUNK, LaneRun, Spec
from taskmesh.pool.slots import nested
from taskmesh.pool.slots.middleware import NO_CALL, SlotMiddleware
from taskmesh.pool.slots.output import TaskPrints
from taskmesh.pool.slots.runner import SlotEnds, TaskRunner
from taskmesh.pool.slots.slot import (
    SlotLink,
    serve,
)
from taskmesh.pool.slots.soft_timeout import timed_out
from taskmesh.pool.slots.streams import Streams
from taskmesh.serialize import payload

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")

AGAIN_S: Final = 1.0
"""Seconds that a cancelled coroutine has to end before its slot goes on without it."""
CLEAN_UP_S: Final = 5.0
"""Seconds that a cancelled task has which looks at `current_task().cancelled`."""
LOOK_S: Final = 0.25
"""Seconds between two looks at the loop, while coroutines run."""
here: ContextVar[ThreadRunner | None] = ContextVar("taskmesh_runner", default=None)
"""The runner of the task that runs in this context."""


class GivenUp(BaseException):
    """A task's function has returned in a thread that was left to it."""


class ThreadLimit:
    """The soft time limit of a task in a thread: a coroutine is cancelled, a function is left to its thread.

    Args:
        watch: called with the seconds until `SlotThreads` has to act.
    """

    is_blocked = False

    def __init__(self, watch: Callable[[float], None]) -> None:
        self.fired = False
        self._watch = watch

    def call(self, seconds: float, function: Callable[..., _T], *args: Any) -> _T:
        """Call function(*args); raise TaskTimeout if it is a coroutine that was cancelled for its time."""
        if seconds <= 0:
            return function(*args)
        self.fired = False
        self._watch(seconds)
        try:
            return function(*args)
        except BaseException as error:
            if self.fired and isinstance(error, import_module("asyncio").CancelledError):
                raise timed_out(seconds) from None
            raise
        finally:
            self._watch(math.inf)

    def block(self) -> None:
        """Do nothing: no signal comes."""

    def unblock(self) -> None:
        """Do nothing: no signal comes."""


class Threads(Protocol):
    """The slots of a process, as one of them sees them; `SlotThreads` says more."""

    streams: Streams
    middleware: SlotMiddleware

    def look_at(self, at: float) -> None: ...

    def ended(self, runner: ThreadRunner) -> None: ...

    def returned(self) -> None: ...


class ThreadRunner(TaskRunner):
    """Run the tasks of a slot in a thread.

    Args:
        threads: the slots of the process.
        link: to the supervisor.
        ends: of the slot.
        stacks: the descriptor of the outbox, behind which stacks are written.

    Attributes:
        link: as given.
        ends: as given.
        stacks: as given.
        until: the time at which the running task is to be ended.
        waits: a coroutine is in the loop for it, or about to begin there.
        coroutine: its asyncio task, once it has begun.
        is_lost: its thread was left to a task; another runner has the slot.
    """

    is_thread = True

    def __init__(self, threads: Threads, link: SlotLink, ends: SlotEnds, stacks: int) -> None:
        super().__init__(link, ends, threads.streams, ThreadLimit(self._watch))
        self.middleware.share(threads.middleware)
        self.log.is_shared = True
        self.link = link
        self.ends = ends
        self.stacks = stacks
        self.until = math.inf
        self.waits = False
        self.coroutine: asyncio.Task[Any] | None = None
        self.is_lost = False
        self._threads = threads
        self._thread = 0
        self._lock = threading.Lock()
        self._prints: TaskPrints | None = None
        self._calls = False  # the task's function has been called and has not returned
        self._is_cancelled_now = False  # the task has been cancelled
        self._is_struck = False  # its coroutine has been cancelled, or is not to begin
        self._seconds = 0.0  # the running task's limit; 0 without one
        self._left: float | None = None  # the limit of a task that the thread before was left to

    def work(self) -> None:
        """Run tasks until the slot ends, or this thread is left to one of them."""
        self._thread = threading.get_ident()
        here.set(self)
        try:
            if self._left is not None:
                self._report_left(self._left)
            serve(self.link, self)
        except GivenUp:
            self._threads.returned()
        else:
            self.children.place.close()
            self._threads.ended(self)

    # --- what differs from a slot with a process of its own ---

    def _result(self, spec: Spec, function: Callable[..., Any], run: LaneRun) -> payload.Payload:
        with self._lock:
            self._calls, self._is_cancelled_now = True, False
        try:
            serial = self._first + self._index
            if self._batcher.outbox.was_cancelled(serial):
                raise TaskMeshError("the task was cancelled")
            self._prints = TaskPrints(serial) if spec.stream_logs else None
            return super()._result(spec, function, run)
        finally:
            prints, self._prints = self._prints, None
            if prints is not None:
                prints.end()
                self._send_prints(prints)
            with self._lock:
                self._calls = False
                self.until = math.inf
            if self.is_lost:
                raise GivenUp

    def _check_goes_on(self) -> None:
        """Raise an error if a chunk is not to go on with its next item."""
        super()._check_goes_on()
        if self.is_lost:
            raise GivenUp
        if self._is_cancelled_now:
            raise TaskMeshError("the task was cancelled")

    def printed(self, stream: int, text: str) -> None:
        """Take what the running task has printed to stdout (0) or stderr (1)."""
        prints = self._prints
        if prints is not None:
            prints.add(stream, text)
            self._send_prints(prints)

    def _send_prints(self, prints: TaskPrints) -> None:
        lines = prints.take()
        if lines and not self.is_lost:
            self._batcher.send_lines(prints.serial, lines)

    @property
    def takes_prints(self) -> bool:
        """True if what the running task prints goes into its log."""
        return self._prints is not None and not self.is_forked_child

    def _complete(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the task's function, in a context of its own."""
        return copy_context().run(super()._complete, function, *args, **kwargs)

    def _fail(self, stage: str, error: BaseException) -> None:
        if type(error) is GivenUp:
            raise error
        super()._fail(stage, error)

    def _serial(self) -> int | None:
        return None if self.is_lost else super()._serial()

    def _is_cancelled(self, serial: int) -> bool:
        return self.is_lost or super()._is_cancelled(serial)

    def _running(self) -> nested.RunningTask | None:
        return None if self.is_lost else super()._running()

    def is_here(self) -> bool:
        """Return True in the slot's own thread."""
        return threading.get_ident() == self._thread

    def wait_for(self, coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
        """Run a task's coroutine to its end in the loop."""
        has_ended = threading.Lock()
        has_ended.acquire()

        def start() -> None:
            task = loop.create_task(coroutine)
            task.add_done_callback(lambda _: has_ended.release())
            with self._lock:
                self.coroutine = task
                is_late = self._is_struck or self.is_lost
            if is_late:
                task.cancel()  # before its first step

        with self._lock:
            self.waits, self._is_struck = True, False
        loop.call_soon_threadsafe(start)
        self._threads.look_at(time.monotonic() + LOOK_S)
        has_ended.acquire()
        with self._lock:
            task, self.coroutine, self.waits = self.coroutine, None, False
        return None if task is None else task.result()

    def _watch(self, seconds: float) -> None:
        with self._lock:
            self._seconds = 0.0 if seconds == math.inf else seconds
            if self._is_cancelled_now:
                return  # it is to end, whatever its limit
            self.until = time.monotonic() + seconds
        self._threads.look_at(self.until)

    # --- called by the thread that watches ---

    def cancel(self, serial: int) -> None:
        """End the task with this serial, if it runs."""
        with self._lock:
            if self._calls and self._serial() == serial:
                self._is_cancelled_now, self._limit.fired = True, False
                looks = not self.waits and self._batcher.outbox.is_watched(serial)
                self.until = time.monotonic() + (CLEAN_UP_S if looks else 0.0)

    def strike(self) -> ThreadRunner | None:
        """End the running task if its time is over, or it was cancelled.

        Returns:
            The runner of the slot's next thread, if this one is left to the task.
        """
        reading = self.children.lock
        if not reading.acquire(blocking=False):  # the task reads the slot's socket
            self.until = time.monotonic() + LOOK_S
            return None
        try:
            with self._lock:
                if not self._calls or time.monotonic() < self.until:
                    return None
                if self.waits and not self._is_struck:
                    self._strike_coroutine()
                    return None
                self.until = math.inf
                self.is_lost = True
                return ThreadRunner(self._threads, self.link, self.ends, self.stacks)._inherit(self)
        finally:
            reading.release()

    def _strike_coroutine(self) -> None:
        """Cancel the coroutine, or have it not begin."""
        self._limit.fired = self._seconds > 0 and not self._is_cancelled_now
        self._is_struck = True
        self.until = time.monotonic() + AGAIN_S
        if self.coroutine is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.coroutine.get_loop().call_soon_threadsafe(self.coroutine.cancel)

    def _inherit(self, before: ThreadRunner) -> ThreadRunner:
        """Take over the slot, and the task that is to be reported as failed."""
        self._take_over(before)
        self.log.is_shared = True
        self._left = 0.0 if before._is_cancelled_now else before._seconds
        before.children = nested.NestedTasks(before.link, before._limit, before.middleware)
        return self

    def _report_left(self, seconds: float) -> None:
        """Report that the task to which the thread before was left has failed.

        Args:
            seconds: its limit; 0 if it was cancelled.
        """
        run, error = self._run, TaskMeshError("the task was cancelled")
        spec = None if run is None else self._specs.get(run.spec)
        stage = "exception"
        if seconds:
            error = timed_out(seconds)
            error.add_note("It goes on in its thread, which nothing can stop, until it returns.")
            self._limit.fired = spec is None or spec.kind != CHUNK
            stage = "hard_timeout"  # of a chunk: its items run again, one by one
        self._fail(stage, error)
        self._batcher.flush()
        self.children.place.close()  # its logs would go the way of the thread before
        self._run, self._left, self.middleware.call = None, None, NO_CALL

    def describe(self) -> str:
        """Return the name and the id of the running task."""
        run, index = self._run, self._index
        spec = None if run is None else self._specs.get(run.spec)
        if run is None or spec is None or index >= len(run.seqs):  # it has just ended
            return "a task"
        return f"{spec.name} {text_of(task_id(run.client, run.seqs[index]))}"

    def stack(self) -> str:
        """Return where the running task is, the latest call first, as faulthandler does."""
        task, found = self.coroutine, sys._current_frames().get(self._thread)
        frames: list[FrameType] = []
        if task is None:
            while found is not None:
                frames.append(found)
                found = found.f_back
        else:
            awaited: Any = task.get_coro()
            while awaited is not None:
                frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
                frames[:0] = [] if frame is None else [frame]
                awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        return "\n".join(["Thread of the slot (most recent call first):", *map(line_of, frames)])


def line_of(frame: FrameType) -> str:
    """Return a frame as faulthandler writes it."""
    return f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
