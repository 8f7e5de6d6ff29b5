"""Errors of peers, counted, and logged in so few lines that nobody can fill a log."""

from __future__ import annotations

import time
from collections.abc import Callable

Record = Callable[[str, dict[str, object]], None]

AT_ONCE = 10
"""Errors of a kind that are logged one by one."""
EVERY = 10.0
"""Seconds between two lines after that; each states the count."""


class PeerErrors:
    """Counts errors, and logs at most one line in EVERY seconds for each kind.

    Args:
        record: logs a line.

    Attributes:
        counts: number of errors by kind.
    """

    def __init__(self, record: Record) -> None:
        self.counts: dict[str, int] = {}
        self._record = record
        self._next: dict[str, float] = {}

    def add(self, kind: str, fields: dict[str, object], times: int = 1) -> None:
        """Count an error, or several alike, and log it if a line of that kind is due."""
        count = self.counts[kind] = self.counts.get(kind, 0) + times
        now = time.monotonic()
        if count <= AT_ONCE or now >= self._next.get(kind, 0.0):
            self._next[kind] = now + EVERY
            self._record(kind, {**fields, "count": count} if count > 1 else fields)
