"""The results of a map or a pipe, as the caller iterates over them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import chain
from typing import Any, Generic, Self, TypeAlias, TypeVar

from taskmesh.client.client import Client
from taskmesh.client.futures.waiters import LockEvent, running_loop
from taskmesh.client.progress import ProgressCounter
from taskmesh.errors import ForkedMeshError
from taskmesh.system.clock import monotonic

R_co = TypeVar("R_co", covariant=True)
Outcome: TypeAlias = "tuple[Any, BaseException | None]"
Outcomes: TypeAlias = tuple[list[Any], Mapping[int, BaseException]]
"""Values that are given one after the other, and the errors that are raised in the places of some."""


class Source(ABC):
    """A map or a pipe on its way.

    Args:
        client: the client that runs it.
        label: its name for people.

    Attributes:
        client, label: as given.
        wakeup: set when `take` may find more.
        failure: the error of its input, which is raised after all results.
        progress: counts its items, if somebody wants to see how many have ended.
    """

    def __init__(self, client: Client, label: str) -> None:
        self.client = client
        self.label = label
        self.wakeup = LockEvent(client.driver)
        self.failure: BaseException | None = None
        self.progress: ProgressCounter | None = None

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True if there are no more results."""

    @abstractmethod
    def take(self) -> Outcomes | None:
        """Draw items for which there is room, then return the next outcomes, None if they are not here."""

    def wait(self, timeout: float | None) -> bool:
        """Wait until `take` may find more; return False after `timeout` seconds."""
        return self.wakeup.wait(timeout)

    @abstractmethod
    def cancel(self) -> None:
        """Draw no more items, and cancel those that have no outcome yet."""


class ResultIterator(Generic[R_co]):
    """An iterator over the results of a map or a pipe.

    An item's error is raised in its place (StopIteration as the cause of a RuntimeError); the next `next()`
    goes on with the item after it. When the iterator is closed or dropped after it was begun, the rest is
    cancelled.

    Attributes:
        source: where they come from.
        owner: what must not be finalized before the last of them.
        return_exceptions: errors of items are given in their places, not raised.
    """

    def __init__(
        self, source: Source, timeout: float | None, owner: object = None, *, return_exceptions: bool = False
    ) -> None:
        self._begun = False  # first: __del__ asks for it whatever fails here
        self.source = source
        self.owner = owner
        self.return_exceptions = return_exceptions
        self._timeout = timeout
        self._deadline = None if timeout is None else monotonic() + timeout
        self._rest: Iterator[R_co] = iter(())
        self._chain: Iterator[R_co] | None = None
        self._turn = threading.RLock()
        self._number = 0  # of the outcomes in hand
        self._fetching = False
        self._over = False
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[R_co]:
        """Go on where the iteration stands; a chain, since that costs a tenth of calling `__next__`.

        Raises:
            ValueError: the input asks for a result, which waits for it; or a signal handler, while one is
                waited for.
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
        """Cancel the rest."""
        self.source.cancel()
        self._end_progress()

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
        if self._begun and not self.source.ended:
            with suppress(Exception):
                self.source.cancel()
        self._end_progress()

    def _rests(self) -> Iterator[Iterator[R_co]]:
        """Return what is left of the outcomes in hand, then those that come.

        Nothing here keeps values that have been given: they may be large, and the caller done with them.
        """
        self._begun = True
        more = True
        while more:
            number = self._number
            yield self._rest
            more = self._go_on(number)

    def _go_on(self, number: int) -> bool:
        """Take up the outcomes after these, if no other thread has; return False at the end."""
        with self._turn:
            if self._number != number:
                return True
            if self._fetching:
                raise ValueError("results were asked for by their own input, which they wait for")
            self._fetching = True
            try:
                self._rest = iter(())
                found = self._next_outcomes()
                if found is not None:
                    self._number = number + 1
                    self._rest = self._results(*found)
                return found is not None
            except KeyboardInterrupt:
                self._break_off()
                raise
            finally:
                self._fetching = False

    def _break_off(self) -> None:
        """Cancel the rest after Ctrl-C.

        At a prompt the traceback keeps the iterator of a `for` loop, which the user cannot reach to close it:
        the rest would go on running, and later tasks would queue behind it.
        """
        self._over = True
        self._failure = CancelledError(
            f"{self.source.label} was interrupted, and the rest of it was cancelled: begin it again for what "
            "is missing"
        )
        self.source.cancel()
        self._end_progress()

    def _end_progress(self) -> None:
        if self.source.progress is not None:
            self.source.progress.end()

    def _next_outcomes(self) -> Outcomes | None:
        """Return the next outcomes; work for the source, and wait; return None at the end."""
        source = self.source
        while not self._over:
            if isinstance(source.client.table.refusal, ForkedMeshError):  # nothing arrives here
                raise ForkedMeshError(f"{source.label} belongs to the parent process: open a mesh here")
            source.wakeup.clear()
            found = source.take()
            if found is not None:
                if source.progress is not None:
                    source.progress.add(0, len(found[1]))
                return found
            if source.ended:
                self._over, self._failure = True, source.failure
                self._end_progress()
                break
            left = None if self._deadline is None else max(0.0, self._deadline - monotonic())
            if not source.wait(left):
                raise TimeoutError(f"not all results of {source.label} came within {self._timeout:g} s")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return None

    def _results(self, values: list[Any], errors: Mapping[int, BaseException]) -> Iterator[Any]:
        if errors and self.return_exceptions:
            values, errors = [errors.get(index, value) for index, value in enumerate(values)], {}
        if errors:
            return _WithErrors(values, errors)
        return iter(values) if len(values) > 1 else _lone(values)


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
    """Yield the only result, and keep no reference to it."""
    yield held.pop()


class AsyncResultIterator(Generic[R_co]):
    """The results of a map for a coroutine: the map's own thread waits for them, the event loop goes on.

    Cancelling the wait for a result cancels the rest of the map, and so does dropping the iterator.

    Args:
        begin: starts the map; called in another thread.
    """

    def __init__(self, begin: Callable[[], ResultIterator[R_co]]) -> None:
        self._begin: Callable[[], ResultIterator[R_co]] | None = begin
        self._results: ResultIterator[R_co] | None = None
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
