"""A pool's circuit breaker: a worker that cannot run what it is given must not be given everything.

A worker that lacks a module, or has a stale mesh key, refuses a task in no time and asks for the next.
Without a breaker it takes most of a queue, and each of these tasks fails that another pool would have run.
"""

from __future__ import annotations

REFUSED_FOR = 60.0
"""Seconds for which a pool gets no tasks of a function that it has refused, while there is another pool."""
MOST_REFUSED = 3
"""Functions refused, and none run in between, after which a pool gets no tasks at all for so long."""


class Breaker:
    """Open for functions that a pool has refused, and for all of them when it refuses one after the other.

    Attributes:
        refused: Spec number -> until when the pool is spared its tasks.
        complaint: The reason in words, or empty.
    """

    __slots__ = ("_in_a_row", "_open_until", "complaint", "refused")

    def __init__(self) -> None:
        self.refused: dict[int, float] = {}
        self.complaint = ""
        self._open_until = 0.0
        self._in_a_row = 0

    def refuses(self, number: int, now: float) -> bool:
        """Whether the pool is spared tasks of a spec: it has refused some, or everything, not long ago."""
        return now < self._open_until or now < self.refused.get(number, 0.0)

    def trip(self, number: int, name: str, reason: str, now: float) -> bool:
        """The pool has refused a task of a spec; returns whether that is news worth telling.

        Args:
            name: The function's, for people.
            reason: Why it cannot be run there.
        """
        known, was_open = self.refuses(number, now), now < self._open_until
        first = not self.refused
        self.refused[number] = now + REFUSED_FOR
        self._in_a_row += not known
        if self._in_a_row >= MOST_REFUSED:
            self._open_until = now + REFUSED_FOR
        is_open = now < self._open_until
        self.complaint = f"does not run {'any function' if is_open else name}: {reason}"
        return first or was_open != is_open

    def close(self, number: int) -> None:
        """The pool has run a task of a spec: it can."""
        self._in_a_row = 0
        self._open_until = 0.0
        self.refused.pop(number, None)
        if not self.refused:
            self.complaint = ""
