"""The end of a batch of futures: their states are set under one lock, then waiters are woken outside it."""

from __future__ import annotations

import threading
from concurrent.futures._base import CANCELLED_AND_NOTIFIED, FINISHED
from typing import Any, NamedTuple

from taskmesh.client.callbacks import CallbackThread
from taskmesh.future import ERROR, RAW, TaskFuture
from taskmesh.outcomes.outcome import Success, Unretrieved
from taskmesh.outcomes.waiters import LoneWaiter, Waiters, wake
from taskmesh.wire.runs import DEPENDENCY, Failed

_PATIENCE_S = 0.02


class FutureEnd(NamedTuple):
    """The outcome of a future.

    Attributes:
        state: the final state, in concurrent.futures' words.
        content: the payload of the value, or an exception. A failed task's content stands in its origin.
        origin: the attempt that led to it, None if the task never ran.
        form: the form of the content: RAW or ERROR.
    """

    state: str
    content: Any = None
    origin: Success | Failed | None = None
    form: int = RAW


CANCELLED = FutureEnd(CANCELLED_AND_NOTIFIED)


def broken(error: BaseException) -> FutureEnd:
    """Return the outcome of a future whose task has no outcome of its own."""
    return FutureEnd(FINISHED, error, None, ERROR)


def outcome_of(record: Failed) -> FutureEnd:
    """Return the outcome that a hub's record reports."""
    return CANCELLED if record.kind == "cancelled" else FutureEnd(FINISHED, None, record)


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
        self._guarded: list[tuple[TaskFuture[Any], FutureEnd]] = []

    def add(self, future: TaskFuture[Any], outcome: FutureEnd) -> None:
        """End a pending future that the caller has taken out of the table."""
        extras = future._extras
        if extras is not None and not self.collect(future, extras):
            self.guard(future, outcome)
        else:
            complete(future, outcome, self._callbacks)

    def collect(self, future: TaskFuture[Any], extras: Waiters) -> bool:
        """Collect a future that has waiters; return False if it has a condition: see `guard`.

        After True the caller sets its state.
        """
        if extras.condition is not None:
            return False
        extras.delivering = bool(extras.callbacks)
        self._ended.append(future)
        return True

    def guard(self, future: TaskFuture[Any], outcome: FutureEnd) -> None:
        """End a future that has a condition; `notify` sets its state."""
        self._guarded.append((future, outcome))

    def notify(self) -> None:
        """Wake all waiters and start the callbacks; it never blocks for long."""
        for future, outcome in self._guarded:
            condition = future._condition
            if condition.acquire(timeout=_PATIENCE_S):
                try:
                    self._end_guarded(future, outcome)
                finally:
                    condition.release()
                self._ended.append(future)
            else:
                threading.Thread(
                    target=self._end_later, args=(future, outcome), name="taskmesh-end", daemon=True
                ).start()
        if self._ended:
            self._notify(self._ended)

    def _end_later(self, future: TaskFuture[Any], outcome: FutureEnd) -> None:
        with future._condition:
            self._end_guarded(future, outcome)
        self._notify([future])

    def _end_guarded(self, future: TaskFuture[Any], outcome: FutureEnd) -> None:
        with future._batch.table.lock:
            extras = future._ensure_waiters()
            extras.delivering = bool(extras.callbacks)
            complete(future, outcome, self._callbacks)
        for waiter in extras.waiters:
            if outcome.state is CANCELLED_AND_NOTIFIED:
                waiter.add_cancelled(future)
            elif isinstance(outcome.origin, Success):
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


def complete(future: TaskFuture[Any], outcome: FutureEnd, callbacks: CallbackThread) -> None:
    """Set the future's final state. Readers look at the state first and without a lock: so it is set last."""
    if outcome.state is FINISHED:  # a cancelled one keeps its arguments until the port has drained it
        origin = outcome.origin
        if isinstance(origin, Failed):
            future._content = Unretrieved(origin, future._label, callbacks.put)
            future._content.retrieved = origin.kind == DEPENDENCY  # the log tells of the first that failed
        else:
            future._content = outcome.content
        future._origin = origin
        future._form = outcome.form
    future._state = outcome.state
