"""The results of a map, as the caller iterates over them."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Generic, TypeVar

from taskmesh.client.feed import Feed, Piece

R_co = TypeVar("R_co", covariant=True)

Item = tuple[bool, Any]
"""(True, value), or (False, exception)."""


class MapResults(Generic[R_co]):
    """An iterator over the results of a map.

    An item's error is raised in its place; the next `next()` goes on with the item after it. When the
    iterator is closed or dropped after it was begun, the rest of the map is cancelled.

    Attributes:
        feed: where they come from.
    """

    def __init__(self, feed: Feed, timeout: float | None) -> None:
        self.feed = feed
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._items: Iterator[Item] = iter(())
        self._piece: Piece | None = None
        self._generator: Generator[R_co, None, None] | None = None
        self._begun = False

    def __iter__(self) -> Iterator[R_co]:
        """Goes on where the iteration stands."""
        return self._run()  # a generator, since it is twice as fast as calls of __next__

    def __next__(self) -> R_co:
        """The next result; raises its error in its place."""
        if self._generator is None:
            self._generator = self._run()
        try:
            return next(self._generator)
        except BaseException:
            self._generator = None  # it is spent; the items that are left are not
            raise

    def close(self) -> None:
        """Cancels what is left."""
        self.feed.abandon()

    def __del__(self) -> None:
        if self._begun and not self.feed.ended:
            with suppress(Exception):
                self.feed.abandon()

    def _run(self) -> Generator[R_co, None, None]:
        self._begun = True
        while True:
            for ok, value in self._items:
                if not ok:
                    raise value
                yield value
            if self._piece is not None:
                self.feed.given(self._piece)
            self._piece = self._next_piece()
            if self._piece is None:
                return
            self._items = iter(_items(self._piece))

    def _next_piece(self) -> Piece | None:
        """The next piece with its outcome; works for the feed while it waits."""
        feed = self.feed
        feed.attended = True
        try:
            while True:
                feed.bell.clear()
                feed.work(draw=True)
                piece = feed.take()
                if piece is not None:
                    return piece
                if feed.ended:
                    failure, feed.source.failure = feed.source.failure, None
                    if failure is not None:
                        raise failure
                    return None
                left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
                if not feed.bell.wait(left):
                    raise TimeoutError(f"not all results of {feed.label} came within {self._timeout:g} s")
        finally:
            feed.attended = False
            feed.schedule()  # what came in just now, if the consumer is away for long


def _items(piece: Piece) -> list[Item]:
    """A piece's results; rebuilds them, in the consumer's thread."""
    future = piece.future
    error = piece.error
    if future is not None and not future.cancelled():
        error = future.exception()
        if error is None:
            value: Any = future.result()
            return value if piece.count > 1 else [(True, value)]
    return [(False, error or CancelledError())] * piece.count
