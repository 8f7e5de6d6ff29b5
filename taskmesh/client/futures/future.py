"""TaskFuture: a concurrent.futures.Future that costs next to nothing until somebody waits for it.

What a Future makes when it is born (a condition, two lists) is made here when it is first asked for. The rule
that keeps this sound: the thread that takes a task out of the pending table ends its future, under its lock;
a future that has a condition is ended while that is held too, as concurrent.futures' own functions expect.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED, PENDING
from functools import partial
from threading import get_ident
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast

from taskmesh.client.futures.outcome import (
    Success,
    TaskState,
    Unretrieved,
    chunk_of,
    end_state,
    error_of,
    noted,
)
from taskmesh.client.futures.task_logs import TaskLogLine, TaskLogs
from taskmesh.client.futures.waiters import Waiter, WaiterPool, Waiters, loop_callback, running_loop
from taskmesh.core import ids
from taskmesh.errors import DependencyError, TaskMeshError
from taskmesh.messages.runs import (
    ATTACHMENT,
    CHUNK,
    DEPENDENCY,
    PICKLE,
    SAFE,
    SUCCESS,
    Failed,
    Progress,
    Spec,
)
from taskmesh.pool.slots.nested import in_slot
from taskmesh.serialize.dependencies import is_collecting, itself, reduced
from taskmesh.serialize.payload import Payload, loads, loads_encoded, loads_plain
from taskmesh.serialize.scalars import MALFORMED, PROTO, decode_scalars
from taskmesh.system.clock import monotonic

T = TypeVar("T")

_log = logging.getLogger("concurrent.futures")

RAW: Final = 0
VALUE: Final = 1
ERROR: Final = 2
REBUILT: Final = 3
IGNORED: Final = 4
"""Forms of a finished future's `_content`: a payload (or Unretrieved), a value, an error, soon a value; or
the call, where the result is ignored."""


class TaskTable(Protocol):
    """The part of the pending table that its futures and runs use."""

    lock: threading.RLock
    client: int
    decoding: dict[int, list[Any]]
    waiter_pool: WaiterPool
    logs: TaskLogs

    @property
    def connected(self) -> bool:
        """True if the hub answers."""
        ...

    def put(self, run: OpenRun, payload: Payload) -> TaskFuture[Any]:
        """Add a task and make its future."""
        ...

    def is_accepted(self, seq: int) -> bool:
        """Return True if the hub has confirmed the task."""
        ...

    def cancel(self, futures: Iterable[TaskFuture[Any]]) -> int:
        """Cancel tasks; return the number of those that were still pending."""
        ...

    def end_if_refused(self, future: TaskFuture[Any]) -> None:
        """End a future that is about to be waited for, if no outcome can come any more."""
        ...


class OpenRun:
    """The common part of tasks of one spec and group, and those of them that wait for the next drain.

    Attributes:
        after: futures that each of them waits for, beside those among its arguments.
        when: SUCCESS, DONE or FAILURE: the end of these for which it waits.
        start_at: the time on `monotonic()`'s scale before which they are not to start; 0 for none.
        at: the same on the clock on the wall, in seconds since the epoch; 0 unless the task was given a time
            there.
        tried: attempts of each that have failed already.
        part: the key of their limits, see `LimitRule.keyed`.
        ignores_result: the results of its tasks are None here, and may not have come.
    """

    __slots__ = (
        "after",
        "at",
        "dirty",
        "group",
        "ignores_result",
        "is_call",
        "key",
        "number",
        "part",
        "queued",
        "spec",
        "start_at",
        "table",
        "tried",
        "when",
    )

    def __init__(self, table: TaskTable, number: int, spec: Spec, group: int = 0, key: str = "") -> None:
        self.table = table
        self.number = number
        self.spec = spec
        self.ignores_result = (spec.ignore_result or bool(spec.sink)) and spec.kind != CHUNK
        self.is_call = spec.kind != CHUNK and spec.codec == PICKLE and not self.ignores_result
        self.group = group
        self.key = key
        self.after: tuple[TaskFuture[Any], ...] = ()
        self.when = SUCCESS
        self.start_at = 0.0
        self.at = 0.0
        self.tried = 0
        self.part = ""
        self.queued: list[TaskFuture[Any]] = []
        self.dirty = False


class TaskFuture(Future[T]):
    """The outcome of a submitted task: a `concurrent.futures.Future` that can also be awaited.

    `wait`, `as_completed`, callbacks, `asyncio.wrap_future` work as with any other Future. A result stays
    bytes until somebody asks for it, and is rebuilt once, in the thread that asks. Callbacks run in the
    mesh's callback thread, in order; cancelling an `await` cancels the task.
    """

    # For taskmesh's own modules: the pending table fills the slots of many futures in a loop, without calls.
    __slots__ = ("_content", "_extras", "_form", "_origin", "_run", "_seq", "_state")

    _content: Any
    _extras: Waiters | None
    _form: int
    _origin: Success | Failed | None
    _run: OpenRun
    _seq: int
    _state: str

    def __init__(self) -> None:
        raise TypeError("a TaskFuture comes from submit()")

    def result(self, timeout: float | None = None) -> T:
        """Return the task's value; wait up to `timeout` seconds for it.

        Raises:
            TimeoutError: the task has not ended in time.
            CancelledError: the task was cancelled.
            TaskError: the task ended without a value or an exception of its own; the text says how.
            Exception: the task's own exception.
        """
        if self._state is not FINISHED or self._extras is not None:
            timeout = self._wait_for_end(timeout)
        data = self._content  # before its form: if that is RAW, no other thread has put a value there yet
        form = self._form
        if form is not VALUE:
            if form is RAW and data.__class__ is bytes and self._run.is_call:
                try:
                    if data[0] != PROTO:
                        scalar: T = decode_scalars(data)[0]
                        return scalar
                except MALFORMED:
                    pass  # `_decode` says what is wrong with it
            if form is not ERROR:
                form = self._decode(timeout)
            if form is ERROR:
                try:
                    raise self._content
                finally:
                    # Its frames must not keep the future, which keeps it. No `del`: IPython shows arguments.
                    self = None  # type: ignore[assignment]  # noqa: PLW0642
            if form is not VALUE:  # it is ignored, even if it has come: for tasks that depend on it
                return cast(T, None)
        value: T = self._content
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the task's exception, None for a value; wait, and raise, as `result()` does."""
        if self._state is not FINISHED or self._extras is not None:
            timeout = self._wait_for_end(timeout)
        error: BaseException | None = self._content if self._decode(timeout) is ERROR else None
        return error

    def __await__(self) -> Generator[Any, None, T]:
        if self._state is PENDING:
            loop = running_loop()
            if loop is None:
                raise RuntimeError("a TaskFuture is awaited in an asyncio event loop; elsewhere use result()")
            waiter = loop.create_future()
            with self._run.table.lock:
                extras = self._ensure_waiters()
                if self._state is PENDING:
                    extras.awaiting.append((loop, waiter))
                else:
                    waiter.set_result(None)
            if self._run.table.waiter_pool.driver is not None:
                driving = loop.run_in_executor(None, self._wait_done, None)  # who waits does the work
                driving.add_done_callback(partial(_pass_error, waiter))
            try:
                yield from waiter
            except BaseException:  # asyncio's CancelledError
                self.cancel()
                raise
        if self._state is not FINISHED:
            raise sys.modules["asyncio"].CancelledError
        return self.result()

    def cancel(self) -> bool:
        """Cancel the task, running or not; return True if the future is cancelled now."""
        if self._state is PENDING:
            self._run.table.cancel((self,))
        return self._state is CANCELLED_AND_NOTIFIED

    def cancelled(self) -> bool:
        """Return True if the task was cancelled."""
        return self._state is CANCELLED_AND_NOTIFIED

    def running(self) -> bool:
        """Return True if the task is known to have started and not known to have ended."""
        extras = self._extras
        return self._state is PENDING and extras is not None and extras.progress is not None

    def done(self) -> bool:
        """Return True if there is an outcome."""
        return self._state is not PENDING

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn(future)` at the end, in the mesh's callback thread; at once if the task has ended."""
        fn = loop_callback(fn)
        with self._run.table.lock:
            extras = self._ensure_waiters()
            if self._state is PENDING or extras.delivering:
                extras.callbacks.append(fn)
                return
        self._call(fn)

    @property
    def task_id(self) -> str:
        """The task's id, 32 hexadecimal digits; of an attachment, that of the other task."""
        if self._run.spec.kind == ATTACHMENT:
            return self._run.key
        return ids.text_of(ids.task_id(self._run.table.client, self._seq))

    @property
    def state(self) -> TaskState:
        """The state of the task, as far as this client knows it."""
        if self._state is FINISHED:
            self._retrieved()
            return end_state(self._origin)
        if self._state is CANCELLED_AND_NOTIFIED:
            return TaskState.CANCELLED
        if not self._run.table.connected:
            return TaskState.UNREACHABLE
        if self.running():
            return TaskState.RUNNING
        return TaskState.QUEUED if self.accepted else TaskState.PENDING

    @property
    def accepted(self) -> bool:
        """True if the hub has confirmed that it has the task; if it has a journal, only once that has it."""
        return self._run.table.is_accepted(self._seq)

    @property
    def attempt(self) -> int:
        """The number of the attempt that led to the outcome or runs now, from 1; 0 while there is none."""
        news = self._news
        return news.attempt if news is not None else 0

    @property
    def worker(self) -> str:
        """The pool and slot of the attempt that led to the outcome or runs now; empty while there is none."""
        news = self._news
        return news.worker if news is not None else ""

    @property
    def progress(self) -> tuple[float, float] | None:
        """(done, total) as `current_task().progress()` last reported it; total 0 if unknown. None before."""
        extras = self._extras
        last = extras.progress if extras is not None else None
        return None if last is None or last.total < 0 else (last.done, last.total)

    def logs(self) -> list[TaskLogLine]:
        """Return the last 1,000 lines that the task has logged, and with `stream_logs=True` printed.

        What a task has logged before it ended is here before its outcome. Lines of a time in which this
        program had no link to the hub are not.
        """
        extras = self._extras
        return [] if extras is None or extras.lines is None else list(extras.lines)

    @property
    def traceback_text(self) -> str:
        """The traceback of the task's exception as the worker printed it; "" if there is none."""
        self._retrieved()
        return self._origin.traceback if self._state is FINISHED and isinstance(self._origin, Failed) else ""

    @property
    def _news(self) -> Success | Failed | Progress | None:
        if self._state is FINISHED:
            return self._origin
        return self._extras.progress if self._extras is not None else None

    def __repr__(self) -> str:
        return f"<TaskFuture {self._label} {self.state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle: in a call that is submitted as the outcome that comes, in a task's result as the value."""
        if in_slot() and self.done() and not is_collecting():
            return itself, (self.result(),)
        return reduced(self, self._run.table)

    # --- for concurrent.futures' own functions, which look inside

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # they only read it
        with self._run.table.lock:
            extras = self._ensure_waiters()
            if extras.condition is None:
                extras.condition = threading.Condition()
            return extras.condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        with self._run.table.lock:
            return self._ensure_waiters().waiters

    @property
    def _done_callbacks(self) -> list[Any]:
        with self._run.table.lock:
            return self._ensure_waiters().callbacks

    @property
    def _result(self) -> T | None:  # type: ignore[override]
        return self._content if self._state is FINISHED and self._decode(None) is VALUE else None

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self._content if self._state is FINISHED and self._decode(None) is ERROR else None

    def _get_snapshot(self) -> tuple[bool, bool, T | None, BaseException | None]:
        """Return what asyncio asks for from Python 3.14 on: done, cancelled, result, exception."""
        if self._state is FINISHED:
            return True, False, self._result, self._exception
        cancelled = self._state is CANCELLED_AND_NOTIFIED
        return cancelled, cancelled, None, None

    def _refuse(self, *_: object) -> NoReturn:
        """Refuse a call that would end the future: a mesh ends its futures itself."""
        raise InvalidStateError("a mesh ends its futures itself")

    set_running_or_notify_cancel = set_result = set_exception = _refuse  # type: ignore[assignment]

    # --- for the pending table, the callback thread and the gatherings

    def _ensure_waiters(self) -> Waiters:
        """Return the waiters, with the table's lock held; a mesh that is closed ends the future by this."""
        extras = self._extras
        if extras is None:
            extras = self._extras = Waiters()
            if self._state is PENDING:
                self._run.table.end_if_refused(self)
        return extras

    def _watch(self, watcher: Callable[[TaskFuture[Any]], None]) -> bool:
        """Call `watcher(self)` at the end, in the port's thread; return False if the future has ended."""
        with self._run.table.lock:
            extras = self._ensure_waiters()
            if self._state is PENDING:
                extras.watchers.append(watcher)
            return self._state is PENDING

    def _unwatch(self, watcher: Callable[[TaskFuture[Any]], None]) -> None:
        with self._run.table.lock:
            extras = self._ensure_waiters()  # a new list: the port's thread may be going through the old one
            extras.watchers = [other for other in extras.watchers if other is not watcher]

    def _wait_for_end(self, timeout: float | None) -> float | None:
        """Wait, and hand over what it has logged; return the time that is left. Raises as `result` does."""
        if self._state is not FINISHED:
            deadline = None if timeout is None else monotonic() + timeout
            if not self._wait_done(timeout):
                raise TimeoutError(f"{self._label} was not done within {timeout:g} s")
            if self._state is not FINISHED:
                raise CancelledError
            timeout = None if deadline is None else deadline - monotonic()
        if self._extras is not None and self._extras.lines is not None:
            self._run.table.logs.hand_over()
        return timeout

    def _wait_done(self, timeout: float | None) -> bool:
        self._run.table.waiter_pool.wait(self, timeout)
        return self._state is not PENDING

    def _retrieved(self) -> None:
        """Note that the caller knows of the failure: the log need not report it."""
        content = self._content
        if content.__class__ is Unretrieved:
            content.retrieved = True

    def _has_failed(self) -> bool:
        """Return True if it ended with an error, as far as that is known without rebuilding anything."""
        return self._state is FINISHED and (self._form is ERROR or isinstance(self._origin, Failed))

    def _decode(self, timeout: float | None) -> int:
        """Rebuild the value or the exception from the payload, once; return which of the two it is.

        A thread's turn at it is a list in `table.decoding`, put there in one atomic step; threads that come
        later add waiter_pool to it and wait.
        """
        run, seq = self._run, self._seq
        turns = run.table.decoding
        turn: list[Any] = [get_ident()]
        while turns.setdefault(seq, turn) is not turn:
            self._wait_for_turn(turns.get(seq, turn), timeout)
        form = self._form
        try:
            if form is RAW:
                if self._origin.__class__ is not Success:
                    self._content, form = self._error(), ERROR
                elif run.is_call:
                    value = loads(self._content, what="the result")
                    self._form = REBUILT
                    self._content, form = value, VALUE
                elif not run.ignores_result:
                    self._content, form = self._decoded(), VALUE
        except Exception as error:  # noqa: BLE001  whatever the user's unpickling raises is the outcome
            self._content, form = noted(error, self._label, self._origin), ERROR
        finally:  # interrupted, it is still RAW: the next one may try again
            self._form = form
            del turns[seq]
            if len(turn) > 1:
                for waiter in turn[1:]:
                    waiter(self)
        return form

    def _decoded(self) -> Any:
        """Return the value of a payload that is no pickle of one call's result."""
        spec = self._run.spec
        if spec.codec == SAFE:
            return loads_plain(self._content)
        if spec.kind != CHUNK:
            return loads_encoded(self._content)
        return chunk_of(self._content, self._label, cast(Success, self._origin))

    def _error(self) -> BaseException:
        failed = self._content.record(plain=self._run.spec.codec == SAFE)
        return self._blocked(failed) if failed.kind == DEPENDENCY else error_of(failed, self._label)

    def _blocked(self, failed: Failed) -> BaseException:
        """Return the error of a task that never started: its cause is the error of the first that failed."""
        path: list[TaskFuture[Any]] = [self]
        record: Success | Failed | None = failed
        while isinstance(record, Failed) and record.kind == DEPENDENCY:
            extras = path[-1]._extras
            edges = extras.edges if extras is not None else None
            upstream = [one for one in edges.upstream if one._seq == record.upstream] if edges else []
            if not upstream:
                break
            path.append(upstream[0])
            record = upstream[0]._origin if upstream[0]._state is FINISHED else None
        root = path[-1]
        error = DependencyError(
            f"{self._label} cannot start: {failed.text}",
            root.task_id,
            [one.task_id for one in reversed(path)],
        )
        if root is not self and root.done():  # its outcome may come later, over a link that lost it
            error.__cause__ = CancelledError() if root.cancelled() else root.exception()
        return error

    def _wait_for_turn(self, turn: list[Any], timeout: float | None) -> None:
        if turn[0] == get_ident():
            if self._run.table.decoding.get(self._seq) is turn:
                raise TaskMeshError(f"the result of {self._label} asks for itself while it is being rebuilt")
            return
        waiter = Waiter()
        turn.append(waiter)
        if self._run.table.decoding.get(self._seq) is turn and not waiter.wait(timeout):
            raise TimeoutError(f"{self._label}: another thread is still rebuilding its result")

    @property
    def _label(self) -> str:
        return f"{self._run.spec.name} {self.task_id}"

    def _call(self, fn: Callable[[Future[T]], object], caught: type[BaseException] = Exception) -> None:
        try:
            fn(self)
        except caught:
            _log.exception("exception calling callback for %r", self)

    def _deliver(self) -> None:
        """Run the callbacks, those that are added meanwhile too; the callback thread calls this."""
        while True:
            with self._run.table.lock:
                extras = self._ensure_waiters()
                callbacks, extras.callbacks = extras.callbacks, []
                if not callbacks:
                    extras.delivering = False
                    return
            for fn in callbacks:
                self._call(fn, BaseException)  # sys.exit() too: the thread has other callbacks


def lazy(future: TaskFuture[T]) -> T:
    """Return the future itself: for a type checker it is the value that the task gets in its place."""
    return cast(T, future)


def _pass_error(waiter: Any, driving: Any) -> None:
    """Have who awaits a future of an inline mesh hear why it cannot end."""
    error = None if driving.cancelled() else driving.exception()
    if error is not None and not waiter.done():
        waiter.set_exception(error)
