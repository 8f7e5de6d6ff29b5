"""The items of a map: slices of sequences, or the next ones of an iterator.

Of a single iterable the items are its own: a tuple around each would be an object more for the garbage
collector to look at, a million times over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any


class MapItems:
    """The items of one map that have not been drawn.

    Attributes:
        starred: each is a tuple of arguments; else it is the only argument.
        left: how many they are, None when that is unknown.
        exhausted: True if there are none, or they are not wanted any more.
        failure: what the user's iterator raised; it takes the place of the next item.
    """

    __slots__ = ("_draw", "exhausted", "failure", "left", "starred")

    def __init__(self, draw: Callable[[int], Iterable[Any]], total: int | None, *, starred: bool) -> None:
        self._draw = draw
        self.starred = starred
        self.left = total
        self.exhausted = total == 0
        self.failure: BaseException | None = None

    @classmethod
    def of(cls, iterables: tuple[Iterable[Any], ...], *, lazily: bool) -> MapItems:
        """Return the items of iterables side by side; unless `lazily`, all of them are drawn now."""
        if len(iterables) == 1:
            [iterable] = iterables
            return cls.drawn(iter(iterable), starred=False) if lazily else cls._slices(_kept(iterable))
        if lazily:
            return cls.drawn(zip(*iterables))  # noqa: B905  the shortest ends it
        if iterables and all(isinstance(iterable, list | tuple | range | str) for iterable in iterables):
            columns = [_kept(iterable) for iterable in iterables]
            return cls.drawn(zip(*columns), total=min(map(len, columns)))  # noqa: B905
        # one of them may be endless; of none, as Executor.map has it, nothing is made
        return cls.listed(list(zip(*iterables)))  # noqa: B905

    @classmethod
    def _slices(cls, column: Sequence[Any]) -> MapItems:
        position = 0

        def draw(count: int) -> Sequence[Any]:
            nonlocal position
            start, position = position, position + count
            return column[start:position]

        return cls(draw, len(column), starred=False)

    @classmethod
    def listed(cls, calls: list[tuple[Any, ...]]) -> MapItems:
        return cls.drawn(iter(calls), total=len(calls))

    @classmethod
    def drawn(cls, items: Iterator[Any], *, total: int | None = None, starred: bool = True) -> MapItems:
        """Return the items of an iterator, which may have no end."""
        return cls(lambda count: islice(items, count), total, starred=starred)

    def draw(self, count: int) -> Sequence[Any]:
        """Return up to `count` items; fewer at the end. An error of the iterator is kept for its place."""
        taken: list[Any] = []
        items: Sequence[Any] = taken
        try:
            drawn = self._draw(count)
            if isinstance(drawn, Sequence):
                items = drawn
            else:
                taken.extend(drawn)  # what came before an error stays in the list
        except Exception as error:  # noqa: BLE001  the user's own
            self.failure = error
        if self.left is not None:
            self.left -= len(items)
        self.exhausted = self.exhausted or len(items) < count or self.left == 0
        return items


def _kept(iterable: Iterable[Any]) -> Any:
    """Return a sequence that the user cannot change meanwhile."""
    return iterable if isinstance(iterable, tuple | range | str) else list(iterable)
