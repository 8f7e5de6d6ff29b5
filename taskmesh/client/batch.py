"""Batches: tasks that are counted together, cancelled together, and have one end to wait for."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from taskmesh.client.client import Client
from taskmesh.client.current_mesh import enter, leave
from taskmesh.client.map import MapJob
from taskmesh.client.promises import fulfilment, promised
from taskmesh.client.submitter import Submitter
from taskmesh.errors import BatchError, ConfigError, Tally
from taskmesh.future import OpenRun, TaskFuture
from taskmesh.outcomes.waiters import Edges
from taskmesh.serialize.payload import Payload

KEEP = 60.0
"""Seconds for which a hub keeps the end of a batch that overtakes its beginning."""


class Batch(Submitter):
    """Tasks that belong together: submit them with it, or with their own `submit()` in its `with` block.

    Leaving the block seals it: it takes no more tasks, and ends when all that it has have ended.

    Attributes:
        id: the task id of `done`, by which `taskmesh batch` knows it.
        name: the name that people see.
        done: its end: the tally if all tasks have succeeded, else BatchError. Tasks may depend on it.
    """

    def __init__(
        self,
        client: Client,
        options: Mapping[str, Any],
        name: str,
        owner: object,
        *,
        fail_fast: bool = False,
    ) -> None:
        super().__init__(client, options, owner, group=client.new_group())
        self._put, self._on_map = self._put_task, self._put_map
        self.name = name
        self._key = f"batch {name} {secrets.token_hex(8)}"
        self._fail_fast = fail_fast
        self._lock = threading.RLock()
        self._open: set[TaskFuture[Any] | MapJob] = set()
        self._arriving = 0  # tasks that are counted, and that the table does not have yet
        self._total = self._succeeded = self._failed = self._cancelled = 0
        self._first_error = ""
        self._sealed = False
        self._cancelling = False
        self._over = False
        client.batches.add(self)
        self.done: TaskFuture[Tally] = promised(
            client, self._key, None, group=self._group, on_client_loss="cancel"
        )
        self.id = self.done.task_id

    def __repr__(self) -> str:
        """Return the batch in one line."""
        return f"<Batch {self.name or self.id}: {self.tally()}>"

    def seal(self) -> None:
        """Take no more tasks. A second call does nothing."""
        with self._lock:
            self._sealed = True
        self._end_if_over()

    def cancel(self) -> int:
        """Cancel all tasks that have not ended, and seal the batch; return how many were cancelled."""
        before = self.tally().cancelled
        self._cancel_open()
        self._end_if_over()
        return self.tally().cancelled - before

    def tally(self) -> Tally:
        """Count the tasks by state."""
        with self._lock:
            pending = self._total - self._succeeded - self._failed - self._cancelled
            return Tally(self._total, pending, self._succeeded, self._failed, self._cancelled)

    def __enter__(self) -> Self:
        """Make the batch what tasks' own `submit()` submits to."""
        enter(self, self._client)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Seal the batch; cancel its tasks if the block was left by an exception."""
        leave(self, self._client)
        if error is None:
            self.seal()
        else:
            self.cancel()

    # --- members ------------------------------------------------------------------------------------------

    def _put_task(self, run: OpenRun, payload: Payload, edges: Edges | None = None) -> TaskFuture[Any]:
        with self._lock:  # look and count at once: another thread that seals the batch has to wait for this
            self._check_open()
            self._total += 1
            self._arriving += 1
        try:
            future = self._client.table.put(run, payload, edges)
        except BaseException:
            with self._lock:
                self._total -= 1
                self._arriving -= 1
            self._end_if_over()
            raise
        with self._lock:
            self._arriving -= 1
            self._open.add(future)
            cancelling = self._cancelling
        if cancelling:  # meanwhile
            future.cancel()
        if not future._watch(self._on_end):
            self._on_end(future)
        return future

    def _put_map(self, job: MapJob) -> None:
        """Take a map in that is about to begin: it reports its items."""
        with self._lock:
            self._check_open()
            self._open.add(job)
            job.batch = self

    def on_close(self) -> None:
        """Seal the batch as its mesh closes, which waits for its end; no map draws items for a consumer."""
        self.seal()
        with self._lock:
            jobs = [member for member in self._open if isinstance(member, MapJob)]
        for job in jobs:
            job.stop_drawing()

    def on_items(self, count: int) -> None:
        """Count items that a map submits."""
        with self._lock:
            self._total += count

    def on_items_ended(self, succeeded: int, cancelled: int, errors: Sequence[str]) -> None:
        """Count items of a map that have ended; one text for each that failed."""
        with self._lock:
            self._succeeded += succeeded
            self._cancelled += cancelled
            for text in errors:
                self._note_failure(text)
        if errors:
            self._fail()

    def on_map_over(self, job: MapJob) -> None:
        """Take a map out whose items have all ended."""
        with self._lock:
            self._open.discard(job)
        self._end_if_over()

    def _on_end(self, future: TaskFuture[Any]) -> None:
        """Count a task that has ended; the port's thread calls this."""
        failed = future._has_failed()
        with self._lock:
            self._open.discard(future)
            if future.cancelled():
                self._cancelled += 1
            elif failed:
                self._note_failure(f"task {future._label} {future.state}")
            else:
                self._succeeded += 1
        if failed:
            self._fail()
        self._end_if_over()

    def _note_failure(self, text: str) -> None:
        self._failed += 1
        self._first_error = self._first_error or text

    def _fail(self) -> None:
        """Cancel the others after a failure, if the batch is to fail fast."""
        if self._fail_fast:
            self._fail_fast = False  # once
            self._cancel_open()

    def _cancel_open(self) -> None:
        with self._lock:
            self._sealed = self._cancelling = True
            members = list(self._open)
        jobs = [member for member in members if isinstance(member, MapJob)]
        for job in jobs:
            job.cancel()
        self._client.table.cancel(member for member in members if not isinstance(member, MapJob))

    def _check_open(self) -> None:
        if self._sealed:
            raise ConfigError(
                f"the batch {self.name or self.id} is sealed and takes no more tasks: submit them before its "
                "block ends, or to the mesh"
            )

    def _end_if_over(self) -> None:
        with self._lock:
            if self._over or not self._sealed or self._open or self._arriving:
                return
            self._over = True
        tally = self.tally()
        error = None
        if tally.succeeded < tally.total:
            reason = f", the first: {self._first_error}" if self._first_error else ""
            error = BatchError(
                f"of {tally.total} tasks of the batch {self.name or self.id} {tally.failed} failed and "
                f"{tally.cancelled} were cancelled{reason}",
                tally,
            )
        self._client.fulfil_later(fulfilment(self._client, self._key, tally, error, KEEP))
