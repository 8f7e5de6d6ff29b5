"""The numbers of one client's tasks, none of which is left out."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Sequence

TAKE = sys.maxsize
"""In place of a number, while some are left over: `take` tells which."""


class SequenceNumbers:
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
        """Take back what `draw` gave, since it became no task; return True if it was a number."""
        if number == TAKE:
            return False
        self._left_over.append(number)
        self.draw = _take
        return True

    def take(self) -> tuple[int, bool]:
        """Return a number for a caller that has drawn TAKE, and True if it was given back before."""
        old = bool(self._left_over)
        number = self._left_over.popleft() if old else self._count()
        if not self._left_over:
            self.draw = self._count
        return number, old


def _take() -> int:
    return TAKE


_AHEAD_LIMIT = 100_000


class AckSet:
    """A set of counters that fills up from 1, mostly in order.

    Attributes:
        to: every counter up to this one is in the set.
    """

    def __init__(self) -> None:
        self.to = 0
        self._ahead: set[int] = set()

    def add(self, seqs: Sequence[int], oldest: Callable[[], int]) -> None:
        """Add distinct counters; repeats are harmless.

        Args:
            seqs: at least one.
            oldest: tells the oldest counter that can still be missing: a hub that leaves gaps must not make
                us remember everything beyond them for ever.
        """
        low, high = min(seqs), max(seqs)
        if high <= self.to:
            return
        ahead = self._ahead
        if low == self.to + 1 and high - low + 1 == len(seqs):
            self.to = high
            if ahead:  # cancelled before the hub confirmed them
                ahead.difference_update(seqs)
        else:
            ahead.update([seq for seq in seqs if seq > self.to])
            if len(ahead) > _AHEAD_LIMIT:
                self.to = max(self.to, oldest() - 1)
                self._ahead = ahead = {seq for seq in ahead if seq > self.to}
        while self.to + 1 in ahead:
            self.to += 1
            ahead.discard(self.to)

    @property
    def has_gaps(self) -> bool:
        """True if the set has counters above one that it lacks."""
        return bool(self._ahead)

    def __contains__(self, seq: int) -> bool:
        return seq <= self.to or seq in self._ahead
