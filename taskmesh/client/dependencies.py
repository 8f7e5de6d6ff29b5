"""Upstream tasks: the futures that pending tasks depend on, and their outcomes for hubs that lack them.

A hub that dies takes the outcomes that it held along, and a task may end while one that depends on it is on
its way. So the client keeps the outcome of each task that a pending one depends on until the last of these
has ended, as it came: decoding it for the caller does not change what the hub is sent. Where a result is
ignored it keeps the call instead, and what that needs in turn: the task runs again if a hub lacks its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures._base import FINISHED
from typing import Any

from taskmesh.client.futures.future import ERROR, IGNORED, RAW, REBUILT, OpenRun, TaskFuture, TaskTable
from taskmesh.client.futures.waiters import Edges
from taskmesh.client.runs import by_run, dependent_run
from taskmesh.core import ids
from taskmesh.core.specs import spec_number
from taskmesh.errors import ConfigError
from taskmesh.messages.runs import ATTACHMENT, ATTACHMENT_NAME, SAFE, Failed, Run, Spec, Value
from taskmesh.serialize.payload import Payload, dumps, dumps_plain

KEPT_VALUE = Spec(b"", "taskmesh.put")
"""The spec of values that a client puts into the mesh: no task runs for them."""


class UpstreamTasks:
    """The tasks of one client that pending ones depend on.

    Args:
        lock: the pending table's; all methods but `values_of` and `calls_of` are called with it held.
        on_call_dropped: called with the number of a task that has ended and will not run again.
    """

    def __init__(self, lock: threading.RLock, on_call_dropped: Callable[[int], object]) -> None:
        self._lock = lock
        self._on_call_dropped = on_call_dropped
        self._futures: dict[int, TaskFuture[Any]] = {}
        self._values: dict[int, Value] = {}

    def hold(self, edges: Edges) -> None:
        """Hold the upstream of a task that is pending from now on."""
        edges.holds = True
        left = [edges]
        while left:
            edges = left.pop()
            for future in edges.upstream:
                own = _edges_of(future)
                own.dependents += 1
                self._futures[future._seq] = future
                if not own.holds and future._run.ignores_result:  # it may run again
                    own.holds = True
                    left.append(own)

    def succeeded(self, future: TaskFuture[Any], edges: Edges, payload: Payload, attempt: int) -> None:
        """Keep the result of a task with edges, if others depend on it."""
        edges.is_over = True
        if future._run.ignores_result and not len(payload):
            if not edges.dependents:
                self._release(edges)
            return
        if edges.dependents:
            self._values[future._seq] = Value(future._seq, payload, future._run.spec.name, attempt)
        self._release(edges)
        edges.needs, edges.after = (), ()  # a chain of futures must not keep all of its links

    def failed(self, future: TaskFuture[Any], edges: Edges, failure: Failed) -> None:
        """Keep the bad end of a task with edges, if others depend on it."""
        edges.is_over = True
        if edges.dependents:
            name = future._run.spec.name
            self._values[future._seq] = Value(future._seq, b"", name, failure.attempt, failed=failure)
        self._release(edges)

    def keeps_call(self, seq: int) -> bool:
        """Return True if a task that ends now may have to run again."""
        future = self._futures.get(seq)
        return future is not None and future._run.ignores_result

    def _release(self, edges: Edges) -> None:
        """Release the upstream of a task that is not pending any more, and will not run again."""
        left = [edges]
        while left:
            edges = left.pop()
            if not edges.holds:
                continue
            edges.holds = False
            for future in edges.upstream:
                own = _edges_of(future)
                own.dependents -= 1
                if not own.dependents:
                    self._futures.pop(future._seq, None)
                    self._values.pop(future._seq, None)
                    if own.is_over:
                        self._on_call_dropped(future._seq)
                        left.append(own)

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

    def calls_of(self, seqs: Iterable[int]) -> tuple[list[tuple[int, Spec]], list[Run]]:
        """Rebuild those of these tasks whose results are ignored, and such that they need, to run again."""
        with self._lock:
            futures = self._with_upstream(seqs)
            specs = {future._run.number: future._run.spec for future in futures}
            runs: list[Run] = []
            for run, own in by_run(futures):
                runs.append(dependent_run(run, own, again=True))
                runs[-1].rerun = max(1, *(future.attempt for future in own))
            return list(specs.items()), runs

    def _with_upstream(self, seqs: Iterable[int]) -> list[TaskFuture[Any]]:
        """Return those of these tasks whose results are ignored, after all such that they need in turn."""
        ranks: dict[TaskFuture[Any], int] = {}
        asked = [self._futures[seq] for seq in seqs if seq in self._futures]
        left = [future for future in asked if future._run.ignores_result]
        while left:
            future = left[-1]
            upstream = [other for other in _edges_of(future).needs if _is_ignored(other)]
            missing = [other for other in upstream if other not in ranks]
            if missing:
                left += missing
            else:
                ranks[left.pop()] = 1 + max((ranks[other] for other in upstream), default=0)
        return sorted(ranks, key=ranks.__getitem__)  # of one rank, as they were found


def _edges_of(future: TaskFuture[Any]) -> Edges:
    """Return the edges of a task, made when first asked for."""
    waiters = future._ensure_waiters()
    if waiters.edges is None:
        waiters.edges = Edges()
        waiters.edges.is_over = future.done()
    return waiters.edges


def _is_ignored(future: TaskFuture[Any]) -> bool:
    """Return True if the task has succeeded, and this client does not have its result."""
    return future._state is FINISHED and future._form is IGNORED


def _value_of(future: TaskFuture[Any]) -> Value:
    """Return the outcome of a task that ended before any other depended on it."""
    spec, seq = future._run.spec, future._seq
    if future.cancelled():
        return Value(seq, name=spec.name, failed=Failed(0, seq, 0, "cancelled"))
    if future._form is IGNORED:
        return Value(seq, name=spec.name, attempt=future.attempt)
    origin, form = future._origin, future._form
    if form is REBUILT:  # another thread is about to be done with it
        form = future._decode(None)
    if isinstance(origin, Failed) or form is ERROR:
        failure = (
            origin if isinstance(origin, Failed) else Failed(0, seq, 0, "lost", text=str(future._content))
        )
        return Value(seq, b"", spec.name, future.attempt, failed=failure)
    payload = future._content
    if form is not RAW:  # its caller has taken it already
        payload = dumps_plain(payload) if spec.codec == SAFE else dumps(payload)
    return Value(seq, payload, spec.name, future.attempt, is_kept=spec is KEPT_VALUE)


def attached(table: TaskTable, task_id: str, codec: str) -> TaskFuture[Any]:
    """Return a future that ends as the task with this id does, which somebody else has submitted.

    Args:
        table: of the client that waits for it.
        task_id: the id of the other task, as `checked_id` gives it.
        codec: the client's `result_codec`.

    Raises:
        MeshClosed: the mesh is closed.
    """
    spec = Spec(b"", ATTACHMENT_NAME, on_client_loss="cancel", codec=codec, kind=ATTACHMENT)
    return table.put(OpenRun(table, spec_number(spec), spec, key=task_id), b"")


def checked_id(text: object) -> str:
    """Return a task id as `TaskFuture.task_id` shows it.

    Raises:
        ConfigError: it is no task id.
    """
    try:
        return ids.text_of(ids.parse(text if isinstance(text, str) else ""))
    except ValueError:
        raise ConfigError(
            f"a task id has 32 hexadecimal digits, as `future.task_id` shows it, not {text!r:.200}"
        ) from None
