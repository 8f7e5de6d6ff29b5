"""Progress bars of a block: one for each function and for each map."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, Self

from taskmesh.client.client import Client
from taskmesh.client.current_mesh import enter, leave
from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.futures.waiters import Edges
from taskmesh.client.progress import ProgressCounter
from taskmesh.client.progress_display import counter_of
from taskmesh.client.submitter import Submitter
from taskmesh.serialize.payload import Payload


class ProgressBars(Submitter):
    """A `with` block that shows a bar for each function of its tasks, and one for each of its maps.

    They are those of tasks' own `submit()` in the block, and of its own `submit()`, `map()` and `starmap()`.
    When the block is left, the bars of functions stay as they are.
    """

    def __init__(self, client: Client, options: Mapping[str, Any], owner: object) -> None:
        super().__init__(client, options, owner)
        self._put = self._put_task
        self._progress = True
        self._lock = Lock()
        self._counters: dict[str, ProgressCounter | None] = {}

    def __enter__(self) -> Self:
        """Make the block what tasks' own `submit()` submits to."""
        enter(self, self._client)
        return self

    def __exit__(self, *_: object) -> None:
        """Show the bars a last time."""
        leave(self, self._client)
        for counter in self._counters.values():
            if counter is not None:
                counter.end()

    def _put_task(self, run: OpenRun, payload: Payload, edges: Edges | None = None) -> TaskFuture[Any]:
        """Submit a task, and count it for the bar of its function."""
        future = self._client.table.put(run, payload, edges)
        name = run.spec.name
        with self._lock:
            if (counter := self._counters.get(name)) is None:
                counter = self._counters[name] = counter_of(True, name, 0, self._client.callbacks.put)
        if counter is not None:
            counter.add(0, expected=1)

            def ended(future: TaskFuture[Any]) -> None:
                counter.add(1, future._has_failed())

            if not future._watch(ended):
                ended(future)
        return future
