"""A step over pickled objects, for RDDs: chunks of a partition to chunks of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from taskmesh.pool.coroutines import runnable
from taskmesh.wire.code import load_function

ChunkForm = Literal["map", "flat_map", "partition", "foreach"]


class ChunkStep:
    """Calls the user's function for the items of a chunk, or once for the whole of it ("partition").

    Args:
        function: its bytes as `dump_function` made them.
        form: how it is called.
    """

    def __init__(self, function: bytes, form: ChunkForm) -> None:
        self.function = function
        self.form = form
        self._loaded: Callable[..., Any] | None = None

    def plain_values(self) -> tuple[str | bytes, ...]:
        """What it is made of, for `dump_function`: it travels without a pickle."""
        return self.function, self.form

    def __call__(self, items: list[Any]) -> list[Any]:
        """What the chunk comes to."""
        if self._loaded is None:
            self._loaded = runnable(load_function(self.function))
        return _FORMS[self.form](self._loaded, items)


def _map(function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    return list(map(function, items))


def _flat_map(function: Callable[[Any], Iterable[Any]], items: list[Any]) -> list[Any]:
    return [result for item in items for result in function(item)]


def _partition(function: Callable[[list[Any]], Iterable[Any] | None], items: list[Any]) -> list[Any]:
    return list(function(items) or ())


def _foreach(function: Callable[[Any], object], items: list[Any]) -> list[Any]:
    for item in items:
        function(item)
    return []


_FORMS: Final[dict[str, Callable[[Callable[..., Any], list[Any]], list[Any]]]] = {
    "map": _map,
    "flat_map": _flat_map,
    "partition": _partition,
    "foreach": _foreach,
}
