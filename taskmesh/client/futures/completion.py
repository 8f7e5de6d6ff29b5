"""Futures that end together: their states are set under one lock, then waiters are woken outside it."""

from __future__ import annotations

import threading
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED
from typing import Any, TypeAlias

from taskmesh.client.futures.callbacks import CallbackThread
from taskmesh.client.futures.future import ERROR, IGNORED, RAW, TaskFuture
from taskmesh.client.futures.outcome import Success, Unretrieved
from taskmesh.client.futures.waiters import LoneWaiter, Waiters, wake
from taskmesh.messages.runs import DEPENDENCY, Failed
from taskmesh.serialize.payload import Payload

_PATIENCE_S = 0.02


End: TypeAlias = "Failed | BaseException | tuple[Payload, Success] | Success | None"
"""The end of a future: the record of a failure, the error of a table that has closed, a result with the
attempt that led to it, that attempt alone if the result is ignored, or None for a cancellation."""


def end_of(record: Failed) -> End:
    return None if record.kind == "cancelled" else record


class Completion:
    """Futures that end together: `add` them with the table's lock held, `notify` after it is released.

    A future that has a condition (concurrent.futures' wait() or as_completed() has looked at it) changes its
    state only while the condition is held: those functions rely on it. A thread that runs user code may hold
    it, so the port's thread waits for it only briefly.
    """

    __slots__ = ("_callbacks", "_ended", "_guarded")

    def __init__(self, callbacks: CallbackThread) -> None:
        self._callbacks = callbacks
        self._ended: list[TaskFuture[Any]] = []
        self._guarded: list[tuple[TaskFuture[Any], End]] = []

    def add(self, future: TaskFuture[Any], end: End) -> None:
        """End a pending future that the caller has taken out of the table."""
        extras = future._extras
        if extras is None or self.collect(future, extras, end):
            complete(future, end, self._callbacks)

    def collect(self, future: TaskFuture[Any], extras: Waiters, end: End) -> bool:
        """Collect a future that has waiters; return True if the caller sets its state now.

        If it has a condition, `notify` sets it.
        """
        if extras.condition is not None:
            self._guarded.append((future, end))
            return False
        extras.delivering = bool(extras.callbacks)
        self._ended.append(future)
        return True

    def notify(self) -> None:
        """Wake all waiters and start the callbacks; it never blocks for long."""
        for future, end in self._guarded:
            condition = future._condition
            if condition.acquire(timeout=_PATIENCE_S):
                try:
                    self._end_guarded(future, end)
                finally:
                    condition.release()
                self._ended.append(future)
            else:
                threading.Thread(
                    target=self._end_later, args=(future, end), name="taskmesh-end", daemon=True
                ).start()
        if self._ended:
            self._notify(self._ended)

    def _end_later(self, future: TaskFuture[Any], end: End) -> None:
        with future._condition:
            self._end_guarded(future, end)
        self._notify([future])

    def _end_guarded(self, future: TaskFuture[Any], end: End) -> None:
        with future._run.table.lock:
            extras = future._ensure_waiters()
            extras.delivering = bool(extras.callbacks)
            complete(future, end, self._callbacks)
        for waiter in extras.waiters:
            if end is None:
                waiter.add_cancelled(future)
            elif isinstance(end, tuple):
                waiter.add_result(future)
            else:
                waiter.add_exception(future)
        future._condition.notify_all()

    def _notify(self, ended: list[TaskFuture[Any]]) -> None:
        awaiting = []
        deliveries = []
        lone = None
        for future in ended:
            extras = future._extras
            if extras is None:
                continue
            for watcher in extras.watchers:
                if watcher.__class__ is LoneWaiter:
                    lone = watcher
                else:
                    watcher(future)
            awaiting += extras.awaiting
            extras.watchers, extras.awaiting = [], []
            if extras.delivering:
                deliveries.append(future._deliver)
        if awaiting:
            wake(awaiting)
        if deliveries:
            self._callbacks.put(deliveries)
        if lone is not None:
            lone(None)  # last: it may take the GIL from us


def complete(future: TaskFuture[Any], end: End, callbacks: CallbackThread) -> None:
    """Set the future's final state. Readers look at the state first and without a lock: so it is set last."""
    if end is None:
        future._state = CANCELLED_AND_NOTIFIED  # it keeps its arguments until the port has drained it
        return
    future._form = RAW
    if isinstance(end, Success):  # its call stays: it may have to run again for others
        future._origin, future._form = end, IGNORED
    elif isinstance(end, tuple):
        future._content, future._origin = end
    elif isinstance(end, Failed):
        future._content = Unretrieved(end, future._label, callbacks.put)
        future._content.retrieved = end.kind == DEPENDENCY  # the log tells of the first that failed
        future._origin = end
    else:
        future._content, future._origin, future._form = end, None, ERROR
    future._state = FINISHED
