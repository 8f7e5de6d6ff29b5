"""Where the items of a map come from: sequences that are sliced, or an iterator that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

Calls = list[tuple[Any, ...]]


class Source:
    """The items of one map that have not been drawn, each a tuple of arguments.

    Attributes:
        left: how many they are, None when that is unknown.
        exhausted: there are none, or they are not wanted any more.
        failure: what the user's iterator raised; it stands in the place of the next item.
    """

    __slots__ = ("_draw", "exhausted", "failure", "left")

    def __init__(self, draw: Callable[[int], Calls], total: int | None) -> None:
        self._draw = draw
        self.left = total
        self.exhausted = total == 0
        self.failure: BaseException | None = None

    @classmethod
    def of(cls, iterables: tuple[Iterable[Any], ...], *, lazily: bool) -> Source:
        """The iterables side by side; unless `lazily`, all of them are drawn now."""
        if lazily:
            return cls.drawn(zip(*iterables))  # noqa: B905  the shortest ends it
        if len(iterables) == 1:
            columns = (_kept(iterables[0]),)
        elif all(isinstance(iterable, list | tuple | range | str) for iterable in iterables):
            columns = tuple(_kept(iterable) for iterable in iterables)
        else:  # one of them may be endless
            return cls.listed(list(zip(*iterables)))  # noqa: B905
        position = 0

        def draw(count: int) -> Calls:
            nonlocal position
            start, position = position, position + count
            return list(zip(*(column[start:position] for column in columns)))  # noqa: B905

        return cls(draw, min(map(len, columns)))

    @classmethod
    def listed(cls, calls: Calls) -> Source:
        """Calls that are all there."""
        rest = iter(calls)
        return cls(lambda count: list(islice(rest, count)), len(calls))

    @classmethod
    def drawn(cls, calls: Iterator[tuple[Any, ...]]) -> Source:
        """Calls that an iterator makes, perhaps without an end."""
        return cls(lambda count: list(islice(calls, count)), None)

    def draw(self, count: int) -> Calls:
        """Up to `count` items; fewer at the end. What the iterator raises is kept for its place."""
        try:
            items = self._draw(count)
        except Exception as error:  # noqa: BLE001  the user's own
            self.failure = error
            items = []
        if self.left is not None:
            self.left -= len(items)
        self.exhausted = self.exhausted or len(items) < count or self.left == 0
        return items


def _kept(iterable: Iterable[Any]) -> Any:
    """A sequence that the user cannot change meanwhile."""
    return iterable if isinstance(iterable, tuple | range | str) else list(iterable)
