"""A pipe: items go through several tasks in turn, and only the last results come back.

An item is a chain of tasks, each of which depends on the one before; but for the last they ignore their
results, which stay between hub and pools. The consumer's thread draws the source, some items at a time, and
submits their chains at one stroke, so that a hub has a chain whole.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from taskmesh.client.functions import EncodedFunction
from taskmesh.errors import ConfigError, ForkedMeshError, SerializationError, TooLarge
from taskmesh.future import OpenRun, TaskFuture
from taskmesh.outcomes.waiters import Edges, LockEvent
from taskmesh.serialize.code import Carried
from taskmesh.serialize.payload import Payload, check_size, dumps_call
from taskmesh.serialize.values import FutureFound
from taskmesh.system.clock import monotonic
from taskmesh.wire.runs import DEPENDENCY, Failed

if TYPE_CHECKING:
    from taskmesh.client.client import Client

MOST_DRAWN = 250
"""Items that are submitted at one stroke: with seven tasks each they still make one Submit."""
MOST_BYTES = 1 << 20
"""Bytes of items after which they are submitted."""
OVERTAKEN = 2
"""Times `buffersize` that others may come before an item: a hub has those first whose turn came last."""
DRAW_S = 0.002
"""Seconds for which items of a quick source are gathered; one that takes longer goes at once."""


class Unsent(NamedTuple):
    """An item that could not be submitted."""

    error: BaseException


End: TypeAlias = TaskFuture[Any] | Unsent
"""The last task of an item's chain, or why it has none."""


class DrawnItem(NamedTuple):
    """An item of the source, as the first task gets it."""

    run: OpenRun
    payload: Payload
    edges: Edges | None


class Stages:
    """The tasks of one pipe, as its chains are made of them.

    Args:
        client: where they are submitted.
        encoded: the functions, with the options of their stages, and what they carry.
        group: the group of the tasks.

    Attributes:
        client: as given.
        count: how many they are.
        label: the name of the first.
    """

    def __init__(
        self,
        client: Client,
        encoded: Sequence[tuple[EncodedFunction, tuple[Carried, ...]]],
        group: int,
    ) -> None:
        self.client = client
        self._group = group
        self._first, self._carried = encoded[0]
        self._runs = [each.grouped(self._group) for each, _ in encoded]
        self._later = [carried for _, carried in encoded[1:]]
        self.count = len(encoded)
        self.label = self._runs[0].spec.name

    def encode(self, item: Any) -> DrawnItem:
        """Return an item as the first task gets it; raises as `submit` does."""
        client, run = self.client, self._runs[0]
        first: tuple[Any, ...] = (item,)
        if self._first.options.by is not None:
            run = self._first.parted(self._first.part_of(first, {}), self._group)
        first += self._carried
        try:
            payload = dumps_call(first, {}, where=self.label, memfd=client.table.memfd)
        except FutureFound:
            return DrawnItem(run, *client.collect(run, first, {}))
        check_size(payload, client.max_payload, f"the call of {self.label}", first)
        return DrawnItem(run, payload, None)

    def submit(self, items: Iterable[DrawnItem]) -> list[TaskFuture[Any]]:
        """Submit chains for items; return the futures of their last tasks.

        Under the table's lock, so that the port takes all or nothing: the first task of a chain might end
        before it has the second one, and would have to run again.
        """
        client, table, chain = self.client, self.client.table, []
        with table.lock:
            try:
                chain = [table.put(*item) for item in items]
                for run, carried in zip(self._runs[1:], self._later, strict=True):
                    chain = [table.put(run, *client.collect(run, (end, *carried), {})) for end in chain]
            except BaseException:
                self.cancel(chain)
                raise
        return chain

    def cancel(self, ends: Iterable[TaskFuture[Any]]) -> None:
        """Cancel the chains of these last tasks."""
        self.client.table.cancel([future for end in ends for future in self._chain(end)])

    def _chain(self, future: TaskFuture[Any]) -> Iterator[TaskFuture[Any]]:
        """Yield the tasks of a chain, the last one first."""
        yield future
        for _ in range(self.count - 1):
            upstream = _needs(future)
            if not upstream:
                return
            future = upstream[0]
            yield future

    def outcome(self, future: TaskFuture[Any]) -> tuple[Any, BaseException | None]:
        """Return the value of a chain that has ended, or the error of the task of it that failed first."""
        for guilty in self._chain(future):
            origin = None if guilty.cancelled() else guilty._origin
            if not isinstance(origin, Failed) or origin.kind != DEPENDENCY:
                break
        if guilty.cancelled():
            return None, CancelledError()
        error = guilty.exception()
        if error is None and guilty is not future:  # it had succeeded, and failed when it ran again
            error = future.exception()
        return (None, error) if error is not None else (future.result(), None)


def _needs(future: TaskFuture[Any]) -> Sequence[TaskFuture[Any]]:
    extras = future._extras
    return extras.edges.needs if extras is not None and extras.edges is not None else ()


class Arrivals:
    """The ends of chains in the order in which they come; the pipe itself may be dropped meanwhile."""

    __slots__ = ("event", "items")

    def __init__(self) -> None:
        self.items: deque[End] = deque()
        self.event = LockEvent()

    def __call__(self, future: TaskFuture[Any]) -> None:
        """Report an end; the port's thread calls this."""
        self.items.append(future)
        self.event.set()


class PipeResults:
    """An iterator over the results of a pipe.

    An item's error is raised in its place; the next `next()` goes on with the item after it. When the
    iterator is closed or dropped, what is under way is cancelled.

    Args:
        stages: the tasks.
        source: the items.
        bound: how many items may be between source and taker.
        owner: what must not be finalized before the last of them.
        ordered: results come in the order of the items.
        timeout: seconds from now within which every result has to be there.
        return_exceptions: errors of items are given in their places, not raised.
    """

    def __init__(
        self,
        stages: Stages,
        source: Iterator[Any],
        bound: int,
        owner: object,
        *,
        ordered: bool,
        timeout: float | None,
        return_exceptions: bool,
    ) -> None:
        self._flying: OrderedDict[End, int] = OrderedDict()  # first: __del__ asks for it
        self._stages = stages
        self._source = source
        self._owner = owner
        self._client = stages.client
        self._bound = min(bound, max(1, self._client.config.client.max_pending // stages.count))
        self._ordered = ordered
        self._timeout = timeout
        self._deadline = None if timeout is None else monotonic() + timeout
        self._return_exceptions = return_exceptions
        self._drawn: list[DrawnItem | Unsent] = []
        self._count = 0  # of items, each of which has a number in `_flying`
        self._arrivals = Arrivals()
        self._exhausted = False
        self._failure: BaseException | None = None
        self._is_slow = False
        self._turn = threading.RLock()
        self._is_busy = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next result; raise its error in its place.

        Raises:
            TimeoutError: it was not there in time.
            ValueError: the source asks for a result, which waits for it.
        """
        value, error = self._next()
        if error is None:
            return value
        if self._return_exceptions:
            return error
        if isinstance(error, StopIteration):  # as it is, it would end the caller's loop without a word
            raise RuntimeError("a task of a pipe raised StopIteration") from error
        raise error

    def next_chunk(self) -> list[tuple[Any, BaseException | None]]:
        """Return the next item's outcome; nothing at the end."""
        try:
            value, error = self._next()
        except StopIteration:
            return []
        except BaseException as failure:  # noqa: BLE001  raised in its place
            return [(None, failure)]
        return [(error, None)] if error is not None and self._return_exceptions else [(value, error)]

    def close(self) -> None:
        """Draw no more items, and cancel those that are under way."""
        self._exhausted = True
        flying, self._flying = self._flying, OrderedDict()
        self._drawn.clear()
        self._arrivals = Arrivals()
        self._stages.cancel([end for end in flying if not isinstance(end, Unsent)])

    def __del__(self) -> None:
        if self._flying:
            with suppress(Exception):
                self.close()

    def _next(self) -> tuple[Any, BaseException | None]:
        with self._turn:
            if self._is_busy:
                raise ValueError("a pipe was asked for a result by its own source, which it waits for")
            self._is_busy = True
            try:
                end = self._take()
            except KeyboardInterrupt:  # at a prompt the traceback keeps the iterator of a `for` loop
                self.close()
                raise
            finally:
                self._is_busy = False
        return (None, end.error) if isinstance(end, Unsent) else self._stages.outcome(end)

    # --- out ------------------------------------------------------------------------------------------------

    def _take(self) -> End:
        """Return the next chain that has ended; draw items as there is room for them."""
        while True:
            end = self._ready()
            if not self._exhausted and (end is None or not self._is_slow) and self._has_room(end is None):
                self._submit_more()
                continue
            if end is not None:
                del self._flying[end]
                return end
            if not self._flying:
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                raise StopIteration
            self._wait()

    def _has_room(self, is_idle: bool) -> bool:
        """Return True if items are to be drawn now: rarely and many, or one if there is nothing else."""
        room = self._bound - len(self._flying) - len(self._drawn)
        if self._flying:
            is_overtaken = self._count - next(iter(self._flying.values())) >= OVERTAKEN * self._bound
            if is_overtaken or self._client.table.weight >= self._client.config.client.max_bytes:
                return False
        return room >= (1 if is_idle and not self._flying else max(1, self._bound // 4))

    def _ready(self) -> End | None:
        """Return the chain whose turn it is, if it has ended."""
        if not self._ordered:
            while self._arrivals.items:
                end = self._arrivals.items.popleft()
                if end in self._flying:
                    self._arrivals.items.appendleft(end)
                    return end
            return None
        head = next(iter(self._flying), None)
        return head if head is None or isinstance(head, Unsent) or head.done() else None

    def _wait(self) -> None:
        """Wait for a chain to end.

        Raises:
            TimeoutError: none has in time.
        """
        if isinstance(self._client.table.refusal, ForkedMeshError):
            raise ForkedMeshError(
                "this pipe belongs to the parent process: call pipe() of a mesh opened here"
            )
        left = None if self._deadline is None else max(0.0, self._deadline - monotonic())
        if self._ordered:
            head = next(iter(self._flying))
            ended = isinstance(head, Unsent) or head._wait_done(left)
        else:
            event = self._arrivals.event
            event.clear()
            ended = bool(self._arrivals.items) or event.wait(left)
        if not ended:
            label = f"the pipe that begins with {self._stages.label}"
            raise TimeoutError(f"not all results of {label} came within {self._timeout:g} s")

    # --- in -------------------------------------------------------------------------------------------------

    def _submit_more(self) -> None:
        self._draw()
        drawn, self._drawn = self._drawn, []
        items = [item for item in drawn if not isinstance(item, Unsent)]
        try:
            ends = iter(self._stages.submit(items)) if items else iter(())
        except Exception as error:  # noqa: BLE001  it is not one of the items, it is the mesh
            self._exhausted, self._failure = True, error
            return
        for item in drawn:
            end: End = item if isinstance(item, Unsent) else next(ends)
            self._flying[end] = self._count
            self._count += 1
            if not self._ordered and (isinstance(end, Unsent) or not end._watch(self._arrivals)):
                self._arrivals.items.append(end)

    def _draw(self) -> None:
        """Draw items: as many as a quick source has at once, one of a slow source."""
        table, limits = self._client.table, self._client.config.client
        most = min(MOST_DRAWN, self._bound - len(self._flying))
        most_bytes = min(MOST_BYTES, limits.max_bytes - table.weight)
        size, began, seconds = 0, monotonic(), 0.0
        while len(self._drawn) < most and size <= most_bytes and seconds < DRAW_S:
            try:
                item = next(self._source)
            except StopIteration:
                self._exhausted = True
                break
            except Exception as error:  # noqa: BLE001  the user's own: it takes the place of the next item
                self._exhausted, self._failure = True, error
                break
            size += self._encode(item)
            seconds = monotonic() - began
        self._is_slow = seconds >= DRAW_S * max(1, len(self._drawn))

    def _encode(self, item: Any) -> int:
        """Encode a drawn item; return its bytes."""
        try:
            drawn = self._stages.encode(item)
        except (SerializationError, TooLarge, ConfigError, TypeError) as error:
            self._drawn.append(Unsent(error))
            return 0
        self._drawn.append(drawn)
        return len(drawn.payload)
