"""A pipe: items go through several tasks in turn, and only the last results come back.

An item is a chain of tasks, each of which depends on the one before; but for the last they ignore their
results, which stay between hub and pools. The consumer's thread draws the source, some items at a time, and
submits their chains at one stroke, so that a hub has a chain whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from taskmesh.client.client import Call, Client
from taskmesh.client.functions import EncodedFunction
from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.maps.results import Outcomes, Source
from taskmesh.errors import ConfigError, SerializationError, TooLarge
from taskmesh.messages.runs import DEPENDENCY, Failed
from taskmesh.serialize.code import Trailers
from taskmesh.system.clock import monotonic

MOST_DRAWN = 250
"""Items that are submitted at one stroke: with seven tasks each they still make one Submit."""
MOST_BYTES = 1 << 20
"""Bytes of items after which they are submitted."""
OVERTAKEN = 2
"""Times `buffersize` that others may come before an item: a hub has those first whose turn came last."""
DRAW_S = 0.002
"""Seconds for which items of a quick source are gathered; one that takes longer goes at once."""

End: TypeAlias = TaskFuture[Any] | Exception
"""The last task of an item's chain, or why it has none."""


class Pipe(Source):
    """One pipe on its way.

    Args:
        client: where its tasks are submitted.
        source: the items.
        stages: the functions, with the options of their stages, and the trailers of their calls.
        group: the group of the tasks.
        bound: how many items may be between source and taker.
        ordered: results come in the order of the items.
    """

    def __init__(
        self,
        client: Client,
        source: Iterator[Any],
        stages: Sequence[tuple[EncodedFunction, Trailers]],
        group: int,
        bound: int,
        *,
        ordered: bool,
    ) -> None:
        super().__init__(client, f"the pipe that begins with {stages[0][0].call.spec.name}")
        self._source = source
        (self._run, self._function, self._trailers), *self._later = [
            (each.grouped(group), each, trailers) for each, trailers in stages
        ]
        self._limits = client.config.client
        self._bound = min(bound, max(1, self._limits.max_pending // len(stages)))
        self._ordered = ordered
        self._flying: dict[int, End] = {}  # by the number of the item, the oldest first
        self._count = 0
        self._exhausted = False
        self._is_slow = False
        self._arrivals: deque[int] = deque()

    @property
    def ended(self) -> bool:
        """True if there are no more results."""
        return self._exhausted and not self._flying

    def take(self) -> Outcomes | None:
        """Draw items as there is room for them, then return the outcome of one that has ended."""
        ready = self._ready()
        while not self._exhausted and (ready is None or not self._is_slow) and self._has_room():
            self._submit(self._draw())
            ready = self._ready()
        if ready is None:
            return None
        value, error = self._outcome(self._flying.pop(ready))
        return [value], {} if error is None else {0: error}

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end of the chain whose turn it is, or of any; return False after `timeout` seconds."""
        head = next(iter(self._flying.values()), None)
        if self._ordered and isinstance(head, TaskFuture):
            return head._wait_done(timeout)
        return super().wait(timeout)

    def cancel(self) -> None:
        """Draw no more items, and cancel those that are under way."""
        self._exhausted = True
        flying, self._flying = self._flying, {}
        self._cancel(flying.values())

    def _cancel(self, ends: Iterable[End]) -> None:
        chains = [self._chain(end) for end in ends if isinstance(end, TaskFuture)]
        self.client.table.cancel(chain.from_iterable(chains))

    def _ready(self) -> int | None:
        """Return the item whose turn it is, if it has ended."""
        if self._ordered:
            number = next(iter(self._flying), None)
            end = None if number is None else self._flying[number]
            return None if isinstance(end, TaskFuture) and not end.done() else number
        while self._arrivals and self._arrivals[0] not in self._flying:
            self._arrivals.popleft()
        return self._arrivals[0] if self._arrivals else None

    def _has_room(self) -> bool:
        """Return True if items are to be drawn now: rarely and many, or one if there is nothing else."""
        if not self._flying:
            return True
        is_overtaken = self._count - next(iter(self._flying)) >= OVERTAKEN * self._bound
        if is_overtaken or self.client.table.weight >= self._limits.max_bytes:
            return False
        return self._bound - len(self._flying) >= max(1, self._bound // 4)

    def _draw(self) -> list[Call | Exception]:
        """Draw items: as many as a quick source has at once, one of a slow source."""
        most = min(MOST_DRAWN, self._bound - len(self._flying))
        most_bytes = min(MOST_BYTES, self._limits.max_bytes - self.client.table.weight)
        drawn: list[Call | Exception] = []
        size, began, seconds = 0, monotonic(), 0.0
        while len(drawn) < most and size <= most_bytes and seconds < DRAW_S:
            try:
                item = next(self._source)
            except StopIteration:
                self._exhausted = True
                break
            except Exception as error:  # noqa: BLE001  the user's own: it takes the place of the next item
                self._exhausted, self.failure = True, error
                break
            try:
                call = self.client.call_of(self._run, self._function, self._trailers, (item,))
                size += len(call[1])
                drawn.append(call)
            except (SerializationError, TooLarge, ConfigError, TypeError) as error:
                drawn.append(error)
            seconds = monotonic() - began
        self._is_slow = seconds >= DRAW_S * max(1, len(drawn))
        return drawn

    def _submit(self, drawn: list[Call | Exception]) -> None:
        """Submit chains for items; if they are refused, that is the mesh's error, and the pipe's end."""
        try:
            ends = iter(self._chains([each for each in drawn if not isinstance(each, Exception)]))
        except Exception as error:  # noqa: BLE001  raised after the results of what is under way
            self._exhausted, self.failure = True, error
            return
        for each in drawn:
            number, end = self._count, each if isinstance(each, Exception) else next(ends)
            self._count += 1
            self._flying[number] = end
            if self._ordered:
                continue
            if isinstance(end, Exception) or not end._watch(partial(self._arrive, number)):
                self._arrivals.append(number)

    def _chains(self, calls: list[Call]) -> list[TaskFuture[Any]]:
        """Submit chains that begin with these calls; return the futures of their last tasks.

        Under the table's lock, so that the port takes all or nothing: the first task of a chain might end
        before it has the second one, and would have to run again.
        """
        client, put, ends = self.client, self.client.table.put, list[TaskFuture[Any]]()
        with client.table.lock:
            try:
                ends.extend(put(*call) for call in calls)
                for run, _, trailers in self._later:
                    ends = [put(run, *client.collect(run, (end, *trailers), {})) for end in ends]
            except BaseException:
                self._cancel(ends)
                raise
        return ends

    def _arrive(self, number: int, _: object) -> None:
        """Report the end of a chain; the port's thread calls this."""
        self._arrivals.append(number)
        self.wakeup.set()

    def _chain(self, end: TaskFuture[Any]) -> Iterator[TaskFuture[Any]]:
        """Yield the tasks of a chain, the last one first."""
        yield end
        for _ in self._later:
            edges = end._extras.edges if end._extras is not None else None
            if edges is None or not edges.needs:
                return
            end = edges.needs[0]
            yield end

    def _outcome(self, end: End) -> tuple[Any, BaseException | None]:
        """Return the value of a chain that has ended, or the error of the task of it that failed first."""
        if isinstance(end, Exception):
            return None, end
        guilty = end
        for guilty in self._chain(end):
            origin = None if guilty.cancelled() else guilty._origin
            if not isinstance(origin, Failed) or origin.kind != DEPENDENCY:
                break
        if guilty.cancelled():
            return None, CancelledError()
        error = guilty.exception()
        if error is None and guilty is not end:  # it had succeeded, and failed when it ran again
            error = end.exception()
        return (None, error) if error is not None else (end.result(), None)
