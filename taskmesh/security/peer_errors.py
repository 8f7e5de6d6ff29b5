"""What peers do wrong, counted, and told in so few lines that nobody can fill a log."""

from __future__ import annotations

import time
from collections.abc import Callable

Record = Callable[[str, dict[str, object]], None]

AT_ONCE = 10
"""PeerErrors of a kind that are told one by one."""
EVERY = 10.0
"""Seconds between two lines after that; each says how many there have been."""


class PeerErrors:
    """One line a kind and EVERY seconds.

    Args:
        record: told the lines that remain.

    Attributes:
        counts: how many there have been, by kind.
    """

    def __init__(self, record: Record) -> None:
        self.counts: dict[str, int] = {}
        self._record = record
        self._next: dict[str, float] = {}

    def add(self, kind: str, fields: dict[str, object], times: int = 1) -> None:
        """Counts one, or several alike, and tells it if it is that kind's turn."""
        count = self.counts[kind] = self.counts.get(kind, 0) + times
        now = time.monotonic()
        if count <= AT_ONCE or now >= self._next.get(kind, 0.0):
            self._next[kind] = now + EVERY
            self._record(kind, {**fields, "count": count} if count > 1 else fields)
