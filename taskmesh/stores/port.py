"""The protocol that a hub demands of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from taskmesh.wire.runs import Kept


class OutcomeStore(Protocol):
    """A store that keeps outcomes for the next hub. Called from the hub's thread alone.

    It is a cache: what it loses is computed again. Times are the hub's clock, CLOCK_MONOTONIC.
    """

    changed: bool
    """`status` has something new to say."""

    def load(self, limit: int, timeout: float) -> list[tuple[float, Kept]]:
        """Returns all that is stored, each with its end; the first to expire comes first. Never raises.

        Args:
            limit: the largest number of bytes that the hub takes.
            timeout: seconds after which it returns what has arrived.
        """
        ...

    def put(self, entries: Sequence[tuple[float, Kept]]) -> None:
        """Takes outcomes over, each until when it is kept; never blocks."""
        ...

    def status(self) -> tuple[dict[str, object], list[tuple[str, dict[str, object]]]]:
        """Returns the store's state in plain data, with what is worth telling since the last call."""
        ...

    def close(self, timeout: float) -> None:
        """Writes what waits, as far as that takes no more than `timeout` seconds, and ends."""
        ...
