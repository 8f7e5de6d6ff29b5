"""Batches: futures of tasks that are counted together, cancelled together, and waited for together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self

from taskmesh.client.client import Client
from taskmesh.client.current_mesh import enter, leave
from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.futures.outcome import TaskState
from taskmesh.client.futures.waiters import Edges
from taskmesh.client.submitter import Submitter
from taskmesh.errors import ConfigError
from taskmesh.serialize.payload import Payload


class Batch(Submitter):
    """A `with` block that holds the futures of the tasks that are submitted in it, in their order.

    They are those of tasks' own `submit()` in the block, and of the batch's. What `map` and `pipe` submit
    is in no batch: their loop counts and cancels it.

    Attributes:
        done: ends when the block has been left and all futures have ended, with None however they have. The
            program alone knows of it: tasks depend on the futures, `after=list(batch)`.
    """

    def __init__(self, client: Client, options: Mapping[str, Any], owner: object) -> None:
        super().__init__(client, options, owner, group=client.new_group())
        self._put = self._put_task
        self._lock = threading.Lock()
        self._futures: list[TaskFuture[Any]] = []
        self._open = 1  # the block, and tasks that have not ended
        self._left = False
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # nobody can cancel it, as asyncio.wait_for would

    def __repr__(self) -> str:
        """Return the batch in one line."""
        return f"<Batch: {', '.join(f'{count} {state}' for state, count in self.counts().items())}>"

    def __iter__(self) -> Iterator[TaskFuture[Any]]:
        """Iterate over the futures that it holds now."""
        return iter(self._futures.copy())

    def counts(self) -> Counter[TaskState]:
        """Count the futures by state."""
        return Counter(future.state for future in self)

    def cancel(self) -> int:
        """Cancel the tasks that have not ended; return how many those were."""
        return self._client.table.cancel(self)

    def __enter__(self) -> Self:
        """Make the batch what tasks' own `submit()` submits to."""
        enter(self, self._client)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take no more tasks; cancel those that it has if the block was left by an exception."""
        leave(self, self._client)
        with self._lock:
            already, self._left = self._left, True
        if error is not None:
            self.cancel()
        if not already:
            self._end_one()

    def _put_task(self, run: OpenRun, payload: Payload, edges: Edges | None = None) -> TaskFuture[Any]:
        with self._lock:  # look and count at once: another thread may leave the block
            if self._left:
                raise ConfigError(
                    "the block of this batch has been left, and it takes no more tasks: submit them in the "
                    "block, or to the mesh"
                )
            self._open += 1
        try:
            future = self._client.table.put(run, payload, edges)
        except BaseException:
            self._end_one()
            raise
        self._futures.append(future)
        if not future._watch(self._end_one):
            self._end_one()
        return future

    def _end_one(self, _: object = None) -> None:
        """Note that the block, or a task, has ended; the port's thread calls this of tasks."""
        with self._lock:
            self._open -= 1
            is_over = not self._open
        if is_over:
            end = partial(self.done.set_result, None)
            if not self._client.callbacks.put((end,)):  # the mesh has closed
                end()
