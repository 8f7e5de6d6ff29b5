"""The results of a map, as the caller iterates over them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import chain
from typing import Any, Generic, Self, TypeAlias, TypeVar

from taskmesh.client.map import Chunk, MapJob
from taskmesh.outcomes.waiters import running_loop
from taskmesh.system.clock import monotonic

R_co = TypeVar("R_co", covariant=True)
Outcome: TypeAlias = "tuple[Any, BaseException | None]"


class MapResults(Generic[R_co]):
    """An iterator over the results of a map.

    An item's error is raised in its place (StopIteration as the cause of a RuntimeError); the next `next()`
    goes on with the item after it. When the iterator is closed or dropped after it was begun, the rest of
    the map is cancelled.

    Attributes:
        job: where they come from.
        owner: what must not be finalized before the last of them.
        return_exceptions: errors of items are given in their places, not raised.
    """

    def __init__(
        self, job: MapJob, timeout: float | None, owner: object = None, *, return_exceptions: bool = False
    ) -> None:
        self._begun = False  # first: __del__ asks for it whatever fails here
        self.job = job
        self.owner = owner
        self.return_exceptions = return_exceptions
        self._timeout = timeout
        self._deadline = None if timeout is None else monotonic() + timeout
        self._taken = 0
        self._rest: Iterator[R_co] = iter(())
        self._chain: Iterator[R_co] | None = None
        self._turn = threading.RLock()
        self._number = 0  # of the chunk in hand
        self._fetching = False

    def __iter__(self) -> Iterator[R_co]:
        """Go on where the iteration stands; a chain, since that costs a tenth of calling `__next__`.

        Raises:
            ValueError: the map's own input asks for a result, which waits for it; or a signal handler, while
                one is waited for.
        """
        return chain.from_iterable(self._rests())

    def __next__(self) -> R_co:
        """Return the next result; raise its error in its place, and ValueError as `iter()` does."""
        with self._turn:  # two calls at once in one chain crash the interpreter
            results, self._chain = self._chain or iter(self), None
            result = next(results)  # if it raises it may be spent; the items that are left are not
            self._chain = results
            return result

    def close(self) -> None:
        """Cancel the rest of the map."""
        self.job.cancel()

    def next_chunk(self) -> list[Outcome]:
        """Return the next items' outcomes, as many as are here at once; wait for one; none at the end."""
        for rest in self._rests():
            outcomes: list[Outcome] = []
            while True:
                try:
                    outcomes.append((next(rest), None))
                except StopIteration:
                    break
                except BaseException as error:  # noqa: BLE001  raised in its place
                    outcomes.append((None, error))
            if outcomes:
                return outcomes
        return []

    def __del__(self) -> None:
        if self._begun and not self.job.ended:
            with suppress(Exception):
                self.job.cancel()

    def _rests(self) -> Iterator[Iterator[R_co]]:
        """Return what is left of the chunk in hand, then one chunk after the other.

        Nothing here keeps a chunk, which keeps its results: they may be large, and the caller done with them.
        """
        self._begun = True
        more = True
        while more:
            number = self._number
            yield self._rest
            more = self._go_on(number)

    def _go_on(self, number: int) -> bool:
        """Take up the chunk after this one, if no other thread has; return False at the end."""
        with self._turn:
            if self._number != number:
                return True
            if self._fetching:
                raise ValueError("a map was asked for a result by its own input, which it waits for")
            self._fetching = True
            try:
                self.job.given(self._taken)
                self._taken = 0
                self._rest = iter(())
                chunk = self._next_chunk()
                if chunk is not None:
                    self._number = number + 1
                    self._taken = chunk.count
                    self._rest = self._results(chunk)
                return chunk is not None
            finally:
                self._fetching = False

    def _next_chunk(self) -> Chunk | None:
        """Return the next chunk with its outcome; work for the job during the wait."""
        job = self.job
        job.check_process()
        job.is_consumer_waiting = True
        try:
            while True:
                job.wakeup.clear()
                job.work(draw=True)
                chunk = job.take()
                if chunk is not None:
                    return chunk
                if job.ended:
                    failure, job.source.failure = job.source.failure, None
                    if failure is not None:
                        raise failure
                    return None
                left = None if self._deadline is None else max(0.0, self._deadline - monotonic())
                if not job.wakeup.wait(left):
                    raise TimeoutError(f"not all results of {job.label} came within {self._timeout:g} s")
        except KeyboardInterrupt:
            job.interrupted()
            raise
        finally:
            job.is_consumer_waiting = False
            job.schedule()  # what came in just now, if the consumer is away for long

    def _results(self, chunk: Chunk) -> Iterator[Any]:
        """Return a chunk's results; rebuild them, in the consumer's thread."""
        future = chunk.future
        error = chunk.error
        if chunk.result is not None:
            return self._with_errors(chunk.result.values, chunk.result.errors)
        if future is not None and not future.cancelled():
            error = future.exception()
            if error is None:
                result: Any = future.result()
                if chunk.count == 1:
                    return _lone([result])
                errors = result.errors
                return self._with_errors(result.values, errors) if errors else iter(result.values)
        same = error or CancelledError()
        return self._with_errors([None] * chunk.count, dict.fromkeys(range(chunk.count), same))

    def _with_errors(self, values: list[Any], errors: Mapping[int, BaseException]) -> Iterator[Any]:
        if self.return_exceptions:
            return iter([errors.get(index, value) for index, value in enumerate(values)])
        return _WithErrors(values, errors)


class _WithErrors:
    """Results some of which are errors: they are raised in their places."""

    __slots__ = ("_errors", "_places", "_values")

    def __init__(self, values: list[Any], errors: Mapping[int, BaseException]) -> None:
        self._values = values
        self._errors = errors
        self._places = iter(range(len(values)))  # threads that share it get each place once

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        index = next(self._places)
        error = self._errors.get(index)
        if error is not None:
            if isinstance(error, StopIteration):  # as it is, it would end the caller's loop without a word
                raise RuntimeError(
                    "the task of an item raised StopIteration, which cannot be raised in its place: "
                    "have the function raise another error, or use next(iterator, default) in it"
                ) from error
            raise error
        return self._values[index]


def _lone(held: list[Any]) -> Iterator[Any]:
    """Yield the only result of a chunk, and keep no reference to it."""
    yield held.pop()


class AsyncMapResults(Generic[R_co]):
    """The results of a map for a coroutine: the map's own thread waits for them, the event loop goes on.

    Cancelling the wait for a result cancels the rest of the map, and so does dropping the iterator.

    Args:
        begin: starts the map; called in another thread.
    """

    def __init__(self, begin: Callable[[], MapResults[R_co]]) -> None:
        self._begin: Callable[[], MapResults[R_co]] | None = begin
        self._results: MapResults[R_co] | None = None
        self._outcomes: deque[Outcome] = deque()
        self._closed = False
        self._waiting = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R_co:
        """Return the next result; raise its error in its place.

        Raises:
            RuntimeError: another asyncio task waits for the next one, or no event loop runs.
        """
        if not self._outcomes:
            await self._more()
        value, error = self._outcomes.popleft()
        if isinstance(error, StopAsyncIteration):  # as it is, it would end the caller's loop without a word
            raise RuntimeError("the task of an item raised StopAsyncIteration") from error
        if error is not None:
            raise error
        result: R_co = value
        return result

    async def aclose(self) -> None:
        """Cancel the rest of the map."""
        self._close()

    async def _more(self) -> None:
        """Wait for outcomes.

        Raises:
            StopAsyncIteration: there are no more.
        """
        loop = running_loop()
        if loop is None:
            raise RuntimeError("amap() is iterated in an asyncio event loop; elsewhere use map()")
        if self._waiting:
            raise RuntimeError("another asyncio task waits for this map's next result")
        self._waiting = True
        try:
            self._outcomes.extend(await loop.run_in_executor(None, self._fetch))
        except BaseException:  # CancelledError, for example: the rest is not wanted
            self._close()
            raise
        finally:
            self._waiting = False
        if not self._outcomes:
            raise StopAsyncIteration

    def _fetch(self) -> list[Outcome]:
        """Return the next outcomes; called in another thread."""
        begin, self._begin = self._begin, None
        if begin is not None and not self._closed:
            self._results = begin()
        if self._results is None:
            return []
        if self._closed:  # while it began
            self._results.close()
            return []
        return self._results.next_chunk()

    def _close(self) -> None:
        self._closed = True
        if self._results is not None:
            self._results.close()
