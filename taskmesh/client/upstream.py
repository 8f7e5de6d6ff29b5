"""Upstream tasks: the futures that pending tasks depend on, and their outcomes for hubs that lack them.

A hub that dies takes the outcomes that it held along, and a task may end while one that depends on it is on
its way. So the client keeps the outcome of each task that a pending one depends on until the last of these
has ended, as it came: decoding it for the caller does not change what the hub is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from taskmesh.future import ERROR, RAW, REBUILT, TaskFuture
from taskmesh.outcomes.waiters import Edges
from taskmesh.serialize.payload import Payload, dumps, dumps_encoded, dumps_plain
from taskmesh.wire.runs import PICKLE, SAFE, Failed, Spec, Value

KEPT_VALUE = Spec(b"", "taskmesh.put")
"""The spec of values that a client puts into the mesh: no task runs for them."""


class UpstreamTasks:
    """The tasks of one client that pending ones depend on.

    Args:
        lock: the pending table's; all methods but `values_of` are called with it held.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._futures: dict[int, TaskFuture[Any]] = {}
        self._values: dict[int, Value] = {}

    def hold(self, edges: Edges) -> None:
        """Hold the upstream of a task that is pending from now on."""
        for future in edges.upstream:
            waiters = future._ensure_waiters()
            if waiters.edges is None:
                waiters.edges = Edges()
            waiters.edges.dependents += 1
            self._futures[future._seq] = future

    def succeeded(self, future: TaskFuture[Any], edges: Edges, payload: Payload, attempt: int) -> None:
        """Keep the result of a task with edges, if others depend on it."""
        if edges.dependents:
            spec = future._run.spec
            self._values[future._seq] = Value(future._seq, payload, spec.name, attempt, spec.codec)
        self._release(edges)
        edges.needs, edges.after = (), ()  # a chain of futures must not keep all of its links

    def failed(self, future: TaskFuture[Any], edges: Edges, failure: Failed) -> None:
        """Keep the bad end of a task with edges, if others depend on it."""
        if edges.dependents:
            name = future._run.spec.name
            self._values[future._seq] = Value(future._seq, b"", name, failure.attempt, failed=failure)
        self._release(edges)

    def _release(self, edges: Edges) -> None:
        """Release the upstream of a task that is not pending any more."""
        for future in edges.upstream:
            other = future._ensure_waiters().edges
            if other is not None:
                other.dependents -= 1
                if not other.dependents:
                    self._futures.pop(future._seq, None)
                    self._values.pop(future._seq, None)

    def values_of(self, seqs: Iterable[int]) -> list[Value]:
        """Return the outcomes of those of these tasks that have ended and that pending ones depend on."""
        found = []
        with self._lock:
            for seq in seqs:
                value = self._values.get(seq)
                if value is None and (future := self._futures.get(seq)) is not None and future.done():
                    value = self._values[seq] = _value_of(future)
                if value is not None:
                    found.append(value)
        return found


def _value_of(future: TaskFuture[Any]) -> Value:
    """Return the outcome of a task that ended before any other depended on it."""
    spec, seq = future._run.spec, future._seq
    if future.cancelled():
        return Value(seq, name=spec.name, failed=Failed(0, seq, 0, "cancelled"))
    origin, form = future._origin, future._form
    if form is REBUILT:  # another thread is about to be done with it
        form = future._decode(None)
    if isinstance(origin, Failed) or form is ERROR:
        failure = (
            origin if isinstance(origin, Failed) else Failed(0, seq, 0, "lost", text=str(future._content))
        )
        return Value(seq, b"", spec.name, future.attempt, failed=failure)
    payload = future._content if form is RAW else _encoded(future._content, spec.codec)
    return Value(seq, payload, spec.name, future.attempt, spec.codec, is_kept=spec is KEPT_VALUE)


def _encoded(value: object, codec: str) -> Payload:
    """Encode a result once more that its caller has taken already."""
    if codec == PICKLE:
        return dumps(value)
    return dumps_plain(value) if codec == SAFE else dumps_encoded(value)
