"""A map: it turns items into chunks, submits them as results make room, and splits chunks that crashed.

One thread of the client submits for all of its maps, while their consumers wait or are away. An iterable with
a `buffersize` is drawn by its consumer, as Executor.map does, who submits what he has drawn.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

from taskmesh.client.client import Call, Client
from taskmesh.client.functions import EncodedFunction
from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.futures.outcome import ChunkResult, Success
from taskmesh.client.maps.chunk_size import ChunkSizer
from taskmesh.client.maps.items import MapItems
from taskmesh.client.maps.results import Outcomes, Source
from taskmesh.errors import SerializationError, TooLarge
from taskmesh.messages.runs import Failed
from taskmesh.serialize.code import Trailers
from taskmesh.serialize.payload import check_size, dumps_chunk
from taskmesh.serialize.values import FutureFound

_CRASHES = frozenset({"crash", "oom", "hard_timeout"})


class Chunk:
    """Items that travel together, and what became of them.

    Attributes:
        items: as they were drawn; None once they are not needed any more.
        count: how many they are.
        future: of the task that they are; None when it could not be submitted for `error`.
        parts: what it was split into.
        result: of a part that needs no task any more: its share of the whole chunk's.
        completed: it has its outcome.
    """

    __slots__ = ("completed", "count", "error", "future", "items", "parts", "result")

    def __init__(self, items: Sequence[Any]) -> None:
        self.items: Sequence[Any] | None = items
        self.count = len(items)
        self.future: TaskFuture[Any] | None = None
        self.error: BaseException | None = None
        self.parts: list[Chunk] | None = None
        self.result: ChunkResult | None = None
        self.completed = False

    def outcomes(self) -> Outcomes:
        """Return what its items have become, rebuilt in the consumer's thread."""
        future, error, result = self.future, self.error, self.result
        if future is not None and not future.cancelled():
            error = future.exception()
            if error is None:
                value = future.result()
                if self.count == 1:
                    return [value], {}
                result = value
        if result is not None:
            return result.values, result.errors
        return [None] * self.count, dict.fromkeys(range(self.count), error or CancelledError())


class MapJob(Source):
    """One map on its way: the source of its results.

    Args:
        client: where its chunks are submitted.
        encoded, trailers: the function, with its options, and the trailers of its calls.
        group: the group of its tasks.
        items: those that are left.
        sizer: tells how many make a chunk, and how many may be drawn and not yet given out.
        ordered: results come in the order of the items.
    """

    def __init__(
        self,
        client: Client,
        encoded: EncodedFunction,
        trailers: Trailers,
        group: int,
        items: MapItems,
        sizer: ChunkSizer,
        *,
        ordered: bool,
    ) -> None:
        super().__init__(client, f"the map of {encoded.call.spec.name}")
        self.items = items
        self._sizer = sizer
        self._ordered = ordered
        self._buffersize = sizer.bound
        self._ready: deque[Chunk] = deque()  # all of them in order, or those with their outcome
        self._flying: set[Chunk] = set()
        self._arrivals: deque[Chunk] = deque()
        self._scheduled = False  # the thread of the maps has been told to work here
        self._submitted = False  # all that there will be
        self._cancelled = False
        self._held = 0  # items drawn, and not given out
        self._taken = 0  # items in the consumer's hand
        self._group = group
        self._single: OpenRun = encoded.grouped(group)
        self._chunk: OpenRun = encoded.chunked(group)
        self._encoded = encoded
        self._trailers = trailers
        self._early = encoded.options.acks == "early"
        self._retries = bool(encoded.options.retries.max) and not self._early

    @property
    def active(self) -> bool:
        """True if it will submit more by itself, or waits for the end of chunks."""
        return not self._cancelled and bool(self._flying or not (self._submitted or self._buffersize))

    @property
    def futures(self) -> list[TaskFuture[Any]]:
        """The futures of the chunks that have not ended."""
        return [chunk.future for chunk in list(self._flying) if chunk.future is not None]

    @property
    def ended(self) -> bool:
        """True if there are no more results."""
        return self._submitted and not self._flying and not self._ready

    def start(self) -> None:
        """Submit the first chunks, in the caller's thread.

        Raises:
            MeshClosed: the mesh is closed; or why it cannot be opened.
        """
        try:
            self.client.open()
            self.client.map_thread.start()
            if self._buffersize is None:
                self.client.maps.add(self)
            self._scheduled = True  # by this thread, which does the first of the work
            self._submit_more()
            self._scheduled = False
            if self._arrivals or not (self._submitted or self._buffersize):
                self._schedule()
        except BaseException:  # Ctrl-C: the caller gets nothing that could be closed
            self.cancel()
            raise

    def stop(self) -> None:
        """Submit no more items."""
        self.items.exhausted = self._submitted = True
        self.client.maps.discard(self)
        self.client.table.nudge()
        self.wakeup.set()

    def cancel(self) -> None:
        """Submit no more items, and cancel those that have no outcome yet."""
        self._cancelled = True
        self.stop()
        self.client.table.cancel(self.futures)

    # --- the consumer's side

    def take(self) -> Outcomes | None:
        """Draw items, if that is left to the consumer and there is room; return the next outcomes."""
        self._held -= self._taken
        self._taken = 0
        if self._buffersize is not None:
            self._submit_more()
        ready = self._ready
        while ready and (parts := ready[0].parts) is not None:
            ready.popleft()
            ready.extendleft(reversed(parts))
        if not ready or not ready[0].completed:
            return None
        chunk = ready.popleft()
        self._taken = chunk.count
        return chunk.outcomes()

    # --- the work

    def _arrive(self, chunk: Chunk) -> None:
        """Take in a chunk whose task has ended, or could not be submitted.

        The port's thread calls this, and leaves to the thread of the maps what may wait, or run user code.
        """
        future = chunk.future
        origin = None if future is None or future.cancelled() else future._origin
        again = False
        if isinstance(origin, Success):
            self._sizer.observe_time(chunk.count, origin.seconds)
            again = self._retries
        elif isinstance(origin, Failed) and future is not None:
            future._retrieved()  # by the map, which raises it in its place
            again = origin.kind == "argument" or (origin.kind in _CRASHES and not self._early)
        if again and chunk.count > 1:
            self._arrivals.append(chunk)
        else:
            self._finish(chunk)
        if self._arrivals or not (self._submitted or self._buffersize):
            self._schedule()

    def _finish(self, chunk: Chunk) -> None:
        """Take in the outcome of a chunk."""
        chunk.items = None
        chunk.completed = True
        if not self._ordered:
            self._ready.append(chunk)
        if self.progress is not None:
            self.progress.add(chunk.count)
        self._take_off(chunk)

    def _take_off(self, chunk: Chunk) -> None:
        self._flying.discard(chunk)  # after all else: a consumer that finds nothing more has seen the end
        if self._submitted and not self._flying and self in self.client.maps:
            self.stop()
        self.wakeup.set()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            if not self.client.map_thread.put((self._work,)):  # the mesh has closed: little is left to do
                self._work()

    def _work(self) -> None:
        """Submit what there is room for, and what has to run again; the thread of the maps calls this."""
        self._scheduled = False
        while self._arrivals:
            chunk = self._arrivals.popleft()
            if self.client.closed:
                self._finish(chunk)
            elif isinstance(chunk.future, TaskFuture) and isinstance(chunk.future._origin, Success):
                self._retry(chunk, chunk.future)
            else:
                self._split(chunk)
        if self._buffersize is None:
            self._submit_more()

    def _submit_more(self) -> None:
        items, bound = self.items, self._buffersize
        while not items.exhausted:
            size = self._sizer.size(items.left)
            if bound is None:
                if len(self._flying) >= self._sizer.ahead:
                    return
            else:
                size = min(size, bound)
                if self._held and self._held + size > bound:
                    return
            drawn = items.draw(size)
            self.failure = items.failure
            if drawn:
                self._held += len(drawn)
                chunk = Chunk(drawn)
                if self._ordered:
                    self._ready.append(chunk)
                self._submit(chunk)
        if not self._submitted:
            self._submitted = True
            if not self._flying:
                self.stop()

    def _submit(self, chunk: Chunk, run: OpenRun | None = None) -> None:
        """Submit a chunk. Its error, if that fails, is the outcome."""
        self._flying.add(chunk)
        try:
            chunk.future = self.client.table.put(*self._call(chunk.items or (), run or self._single))
        except (TooLarge, FutureFound) as error:
            if chunk.count > 1:
                self._split(chunk)
                return
            chunk.error = error
        except Exception as error:  # noqa: BLE001  raised in its place
            chunk.error = error
            if not isinstance(error, SerializationError):  # it is not this item, it is the mesh
                self.items.exhausted = True
        except BaseException as error:
            if not self.client.map_thread.is_here:  # an interrupt of the caller's own
                self._finish(chunk)
                raise
            chunk.error = error  # raised by an item; the thread has no caller to raise it to
        if chunk.future is None or not chunk.future._watch(lambda _: self._arrive(chunk)):
            self._arrive(chunk)
        elif self._cancelled:  # meanwhile
            chunk.future.cancel()

    def _call(self, items: Sequence[Any], run: OpenRun) -> Call:
        client, starred = self.client, self.items.starred
        first: tuple[Any, ...] = items[0] if starred else (items[0],)
        if len(items) == 1:
            return client.call_of(run, self._encoded, self._trailers, first)
        name, memfd = self._single.spec.name, client.table.memfd
        payload = dumps_chunk(items, self._trailers, where=name, memfd=memfd, starred=starred)
        self._sizer.observe_bytes(len(items), len(payload) - sum(map(len, self._trailers)))
        check_size(payload, client.max_payload, f"the call of {name}", first)
        return self._chunk, payload, None

    def _split(self, chunk: Chunk) -> None:
        """Submit each item as a task of its own, so that only the guilty one is blamed."""
        parts = [Chunk([item]) for item in chunk.items or ()]
        for part in parts:
            self._submit(part)
        self._replace(chunk, parts)

    def _replace(self, chunk: Chunk, parts: list[Chunk]) -> None:
        chunk.items = None
        chunk.parts = parts
        self._take_off(chunk)

    def _retry(self, chunk: Chunk, future: TaskFuture[ChunkResult]) -> None:
        """Submit the items that failed and may be tried again, each alone."""
        items = chunk.items or ()
        try:
            result = future.result()
        except Exception:  # noqa: BLE001  nothing of it can be rebuilt: the consumer gets the error
            self._finish(chunk)
            return
        if not result.retryable:
            self._finish(chunk)
            return
        parts: list[Chunk] = []
        start = 0
        for index, seconds in [*sorted(result.retryable.items()), (chunk.count, 0.0)]:
            if start < index:
                parts.append(self._part(result, start, index))
            if index < chunk.count:
                part = Chunk([items[index]])
                self._submit(part, self._encoded.retried(self._group, self._retry_delay(seconds)))
                parts.append(part)
            start = index + 1
        self._replace(chunk, parts)

    def _retry_delay(self, seconds: float) -> float:
        """Return the seconds before a second attempt: those that the task has asked for, or the policy's."""
        if seconds >= 0:
            return seconds
        spec = self._single.spec
        delay = spec.retry_delay(1)
        return delay * random.uniform(0.5, 1.0) if spec.jitter else delay  # noqa: S311  no secret

    def _part(self, result: ChunkResult, start: int, end: int) -> Chunk:
        """Return consecutive items of a chunk that need no further attempt."""
        part = Chunk(range(start, end))
        errors = {index - start: error for index, error in result.errors.items() if start <= index < end}
        part.result = ChunkResult(result.values[start:end], errors, {})
        self._finish(part)
        return part
