"""A map: it turns items into chunks, submits them as results make room, and splits chunks that crashed.

The consumer does the work while it waits for results, else the callback thread does. An iterable with a
`buffersize` is drawn by the consumer alone, as Executor.map does.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

from taskmesh.client.chunk_size import ChunkSizer
from taskmesh.client.client import Client
from taskmesh.client.functions import EncodedFunction
from taskmesh.client.items import MapItems
from taskmesh.errors import ForkedMeshError, SerializationError, TooLarge
from taskmesh.future import OpenRun, TaskFuture
from taskmesh.outcomes.outcome import ChunkResult, Success
from taskmesh.outcomes.waiters import LockEvent
from taskmesh.serialize.code import Carried
from taskmesh.serialize.payload import Payload, check_size, dumps_call, dumps_chunk
from taskmesh.serialize.values import FutureFound
from taskmesh.wire.runs import Failed

_CRASHES = frozenset({"crash", "oom", "hard_timeout"})


class Chunk:
    """MapItems that travel together, and what became of them.

    Attributes:
        items: as the source gave them; None once they are not needed any more.
        count: how many they are.
        future: of the task that they are; None when it could not be submitted for `error`.
        parts: what it was split into.
        result: of a part that needs no task any more: its share of the whole chunk's.
        completed: it has its outcome.
    """

    __slots__ = ("_job", "completed", "count", "error", "future", "items", "parts", "result")

    def __init__(self, job: MapJob, items: Sequence[Any]) -> None:
        self._job = job
        self.items: Sequence[Any] | None = items
        self.count = len(items)
        self.future: TaskFuture[Any] | None = None
        self.error: BaseException | None = None
        self.parts: list[Chunk] | None = None
        self.result: ChunkResult | None = None
        self.completed = False

    def __call__(self, future: object) -> None:
        """Report the end of the task; the port's thread calls this."""
        self._job.arrive(self)


class MapJob:
    """One map on its way.

    Attributes:
        source: the items that are left.
        wakeup: set when the consumer should look.
        is_consumer_waiting: the consumer waits, and will do the work itself.
    """

    def __init__(
        self,
        client: Client,
        encoded: EncodedFunction,
        carried: tuple[Carried, ...],
        source: MapItems,
        sizer: ChunkSizer,
        *,
        ordered: bool = True,
        buffersize: int | None = None,
        group: int = 0,
    ) -> None:
        self.source = source
        self.wakeup = LockEvent()
        self.is_consumer_waiting = False
        self._client = client
        self._sizer = sizer
        self._ordered = ordered
        self._buffersize = buffersize
        self._ready: deque[Chunk] = deque()  # all of them in order, or those with their outcome
        self._untaken = 0
        self._held = 0
        self._flying: set[Chunk] = set()
        self._arrivals: deque[Chunk] = deque()
        self._scheduled = False  # the callback thread has a job to work here
        self._torn = False  # an interrupt may have lost a chunk, which must not be waited for
        self._asked = 0  # calls of `work` that a thread has to answer, which is at it until there are none
        self._turn = threading.Lock()  # for `_asked`
        group = group or client.new_group()
        self._single: OpenRun = encoded.grouped(group)
        self._chunk: OpenRun = encoded.chunked(group)
        self._encoded = encoded
        self._carried = carried
        self._group = group
        self._early = encoded.options.acks == "early"
        self._retries = bool(encoded.options.retries.max) and not self._early

    @property
    def label(self) -> str:
        return self._single.spec.name

    @property
    def active(self) -> bool:
        """True if it will submit more by itself, or waits for the end of chunks."""
        if self._torn or self._is_forked:
            return False
        return bool(self._flying) or (self._buffersize is None and not self.source.exhausted)

    @property
    def futures(self) -> list[TaskFuture[Any]]:
        """The futures of the chunks that have not ended."""
        return [chunk.future for chunk in list(self._flying) if chunk.future is not None]

    @property
    def ended(self) -> bool:
        """True if all chunks have been taken, or an interrupt has lost the rest."""
        return self._torn or (self.source.exhausted and not self._untaken)

    def start(self) -> None:
        """Submit the first chunks, in the caller's thread.

        Raises:
            MeshClosed: the mesh is closed; or why it cannot be opened.
        """
        try:
            self._client.open()
            if self._buffersize is None:
                self._client.maps.add(self)
            self.work(draw=True)
        except BaseException:  # Ctrl-C: the caller gets nothing that could be closed
            self.cancel()
            raise

    def stop(self) -> None:
        self.source.exhausted = True
        self._client.maps.discard(self)
        self._client.table.nudge()
        self.wakeup.set()

    def cancel(self) -> None:
        """Submit no more items, and cancel those that have no outcome yet."""
        self.stop()
        self._client.table.cancel(self.futures)

    # --- the consumer's side

    def check_process(self) -> None:
        """Refuse to go on in a forked child, where nothing arrives and a lock may stay held for ever.

        Raises:
            ForkedMeshError: this is one.
        """
        if self._is_forked:
            raise ForkedMeshError("this map belongs to the parent process: call map() of a mesh opened here")

    @property
    def _is_forked(self) -> bool:
        return isinstance(self._client.table.refusal, ForkedMeshError)

    def take(self) -> Chunk | None:
        """Return the next chunk with its outcome, None if that is not here yet."""
        ready = self._ready
        while ready and (parts := ready[0].parts) is not None:
            ready.popleft()
            ready.extendleft(reversed(parts))
        if ready and ready[0].completed:
            self._untaken -= 1
            return ready.popleft()
        return None

    def interrupted(self) -> None:
        """Cancel the rest after Ctrl-C has struck the consumer.

        At a prompt the traceback keeps the iterator of a `for` loop, which the user cannot reach to close it:
        the rest would go on running, and later tasks would queue behind it.
        """
        if self._flying or not self.source.exhausted:
            self._break_off("its results were waited for")

    def given(self, count: int) -> None:
        """Make room for others after all results of a chunk have gone to the user."""
        self._held -= count

    # --- the port's side

    def arrive(self, chunk: Chunk) -> None:
        self._arrivals.append(chunk)
        self.wakeup.set()
        if not self.is_consumer_waiting:
            self.schedule()

    def schedule(self) -> None:
        """Leave the work, if there is any, to the callback thread."""
        if self._arrivals and not self._scheduled:
            self._scheduled = True
            self._client.callbacks.put((self._work_unattended,))

    # --- the work

    def work(self, *, draw: bool) -> None:
        """Take arrivals in and submit what there is room for, or leave that to the thread that is at it."""
        mine = False
        try:
            with self._turn:  # no interrupt comes between this and the count, as it may after acquire()
                mine = not self._asked
                self._asked += 1
            while mine:
                asked = self._asked
                self._take_turn(draw=draw)
                with self._turn:
                    self._asked -= asked
                    mine = self._asked > 0
        finally:
            if mine:  # an interrupt has come upon the work
                try:
                    self._tear()
                finally:
                    self._asked = 0

    def resume(self) -> None:
        """Have the callback thread do work that an interrupt may have left undone."""
        self._client.callbacks.put((self._work_unattended,))

    def _take_turn(self, *, draw: bool) -> None:
        """Do the work once, in the only thread that is at it."""
        while True:
            while self._arrivals:
                self._complete(self._arrivals.popleft())
            if draw or self._buffersize is None:
                self._submit_more()
            if not self._arrivals:  # of chunks that could not be submitted
                break
        if self.source.exhausted and not self._flying and self in self._client.maps:
            self.stop()  # here: no other thread has drawn items meanwhile

    def _tear(self) -> None:
        """Give the rest up after an interrupt of the work, which may have lost a chunk."""
        self._torn = True
        lost = [chunk for chunk in self._flying if chunk.future is None and chunk not in self._arrivals]
        self._arrivals.extend(lost)
        self._break_off("it submitted items")

    def _break_off(self, when: str) -> None:
        if self.source.failure is None:
            self.source.failure = CancelledError(
                f"the map of {self.label} was interrupted while {when}, and the rest of it was "
                "cancelled: call map() again for what is missing"
            )
        self.cancel()

    def _work_unattended(self) -> None:
        self._scheduled = False
        self.work(draw=False)
        self.wakeup.set()  # a consumer that came meanwhile left the work to us, and we may not draw for it

    def _submit_more(self) -> None:
        source = self.source
        bound = self._buffersize
        while not source.exhausted:
            size = self._sizer.size(source.left)
            if bound is None:
                if len(self._flying) >= self._sizer.ahead:
                    return
            else:
                size = min(size, bound)
                if self._held and self._held + size > bound:
                    return
            items = source.draw(size)
            if items:
                chunk = Chunk(self, items)
                if self._ordered:
                    self._ready.append(chunk)
                self._submit(chunk)

    def _submit(self, chunk: Chunk, run: OpenRun | None = None) -> None:
        """Submit a chunk. Its error, if that fails, is the outcome."""
        self._untaken += 1
        self._held += chunk.count
        self._flying.add(chunk)
        try:
            chunk.future = self._put(chunk.items or [], run or self._single)
        except (TooLarge, FutureFound) as error:
            if chunk.count > 1:
                self._flying.discard(chunk)
                self._split(chunk)
                return
            chunk.error = error
        except Exception as error:  # noqa: BLE001  raised in its place
            chunk.error = error
            if not isinstance(error, SerializationError):  # it is not this item, it is the mesh
                self.source.exhausted = True
        except BaseException as error:
            if not self._client.callbacks.is_here:  # an interrupt of the caller's own
                raise
            chunk.error = error  # raised by an item; the callback thread has no caller to raise it to
        finally:
            if chunk.parts is None and (chunk.future is None or not chunk.future._watch(chunk)):
                self._arrivals.append(chunk)

    def _put(self, items: Sequence[Any], run: OpenRun) -> TaskFuture[Any]:
        memfd = self._client.table.memfd
        starred = self.source.starred
        label = self.label
        first: tuple[Any, ...] = items[0] if starred else (items[0],)
        if len(items) > 1:
            payload = dumps_chunk(items, self._carried, where=label, memfd=memfd, starred=starred)
            self._sizer.observe_bytes(len(items), len(payload) - sum(map(len, self._carried)))
            self._check_size(payload, first)
            return self._client.table.put(self._chunk, payload)
        if run is self._single and self._encoded.options.by is not None:
            run = self._encoded.parted(self._encoded.part_of(first, {}), self._group)
        first += self._carried
        try:
            payload = dumps_call(first, {}, where=label, memfd=memfd)
        except FutureFound:
            return self._client.table.put(run, *self._client.collect(run, first, {}))
        self._check_size(payload, first)
        return self._client.table.put(run, payload)

    def _check_size(self, payload: Payload, first: tuple[Any, ...]) -> None:
        if self._client.max_payload:  # two calls less for each chunk of an embedded mesh
            check_size(payload, self._client.max_payload, f"the call of {self.label}", first)

    def _complete(self, chunk: Chunk) -> None:
        self._flying.discard(chunk)
        future = chunk.future
        origin = None if future is None or future.cancelled() else future._origin
        if isinstance(origin, Success):
            self._sizer.observe_time(chunk.count, origin.seconds)
            if self._retries and chunk.count > 1 and self._retry(chunk):
                return
        elif isinstance(origin, Failed) and future is not None:
            future._retrieved()  # by the map, which raises it in its place
            if self._should_split(chunk, origin):
                self._split(chunk)
                return
        chunk.items = None
        chunk.completed = True
        if not self._ordered:
            self._ready.append(chunk)

    def _should_split(self, chunk: Chunk, failed: Failed) -> bool:
        if chunk.count == 1 or chunk.items is None or self._client.closed:
            return False
        return failed.kind == "argument" or (failed.kind in _CRASHES and not self._early)

    def _split(self, chunk: Chunk) -> None:
        """Submit each item as a task of its own, so that only the guilty one is blamed."""
        items = chunk.items or []
        chunk.items = None
        self._untaken -= 1
        self._held -= chunk.count
        parts = [Chunk(self, [item]) for item in items]
        for part in parts:
            self._submit(part)
        chunk.parts = parts

    def _retry(self, chunk: Chunk) -> bool:
        """Submit the items that failed and may be tried again, each alone; return False if there are none."""
        items, future = chunk.items, chunk.future
        if items is None or future is None or self._client.closed:
            return False
        try:
            result: ChunkResult = future.result()
        except Exception:  # noqa: BLE001  nothing of it can be rebuilt: the consumer gets the error
            return False
        if not result.retryable:
            return False
        chunk.items = None
        self._untaken -= 1
        self._held -= chunk.count
        parts: list[Chunk] = []
        start = 0
        for index, seconds in sorted(result.retryable.items()):
            if start < index:
                parts.append(self._part(result, start, index))
            part = Chunk(self, [items[index]])
            self._submit(part, self._encoded.retried(self._group, self._retry_delay(seconds)))
            parts.append(part)
            start = index + 1
        if start < chunk.count:
            parts.append(self._part(result, start, chunk.count))
        chunk.parts = parts
        return True

    def _retry_delay(self, seconds: float) -> float:
        """Return the seconds before a second attempt: those that the task has asked for, or the policy's."""
        if seconds >= 0:
            return seconds
        spec = self._single.spec
        delay = spec.retry_delay(1)
        return delay * random.uniform(0.5, 1.0) if spec.jitter else delay  # noqa: S311  no secret

    def _part(self, result: ChunkResult, start: int, end: int) -> Chunk:
        """Return consecutive items of a chunk that need no further attempt."""
        part = Chunk(self, ())
        part.count = end - start
        errors = {index - start: error for index, error in result.errors.items() if start <= index < end}
        part.result = ChunkResult(result.values[start:end], errors, {})
        part.completed = True
        self._untaken += 1
        self._held += part.count
        if not self._ordered:
            self._ready.append(part)
        return part
