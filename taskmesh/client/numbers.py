"""The numbers of one client's tasks, none of which is left out."""

from __future__ import annotations

import itertools
import sys
from collections import deque

TAKE = sys.maxsize
"""In place of a number, while some are left over: `take` tells which."""


class Numbers:
    """Counts from 1; a number that became no task is given back, and the next task has it.

    The hub knows finished tasks by intervals of their numbers: every number that never comes would cost it
    one more for as long as the client lives.

    Attributes:
        draw: the next number, or TAKE; takes no lock. The rest is called with the table's lock held.
    """

    __slots__ = ("_count", "_left_over", "draw")

    def __init__(self) -> None:
        self._count = itertools.count(1).__next__
        self._left_over: deque[int] = deque()
        self.draw = self._count

    def give_back(self, number: int) -> bool:
        """What `draw` gave is no task's; returns whether it was a number."""
        if number == TAKE:
            return False
        self._left_over.append(number)
        self.draw = _take
        return True

    def take(self) -> tuple[int, bool]:
        """A number for what has drawn TAKE, and whether it is one that was given back."""
        old = bool(self._left_over)
        number = self._left_over.popleft() if old else self._count()
        if not self._left_over:
            self.draw = self._count
        return number, old


def _take() -> int:
    return TAKE
