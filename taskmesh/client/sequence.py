"""The numbers of one client's tasks, none of which is left out."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

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


class Acceptance:
    """The tasks of a client that its hub has: their counters fill up from 1, mostly in order.

    Args:
        unresolved: the tasks without an outcome, by counter.

    Attributes:
        to: every counter up to this one is accepted.
        ended: those of tasks that have ended before the hub said that it has them.
    """

    def __init__(self, unresolved: Mapping[int, object]) -> None:
        self.to = 0
        self.ended: set[int] = set()
        self._ahead: set[int] = set()
        self._unresolved = unresolved

    def add(self, seqs: Sequence[int]) -> None:
        """Add distinct counters, one at least; repeats are harmless."""
        if self.ended:
            self.ended.difference_update(seqs)
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
            if len(ahead) > _AHEAD_LIMIT:  # a hub that leaves gaps must not make us remember all beyond them
                self.to = max(self.to, min(self._missing(), default=self.to + 1) - 1)
                self._ahead = ahead = {seq for seq in ahead if seq > self.to}
        while self.to + 1 in ahead:
            self.to += 1
            ahead.discard(self.to)

    def end(self, seqs: Sequence[int]) -> None:
        """Tasks end: those that the hub has not confirmed yet are not accepted."""
        if max(seqs, default=0) > self.to:
            self.ended.update([seq for seq in self._unresolved.keys() & seqs if seq not in self])

    def of_all(self) -> Callable[[], bool]:
        """Return a function that tells if all tasks of now are accepted."""
        waiting = self._missing()
        last = max(waiting, default=0)

        def is_complete() -> bool:
            if self.to < last and self._ahead:
                waiting.intersection_update(self._missing())
                waiting.difference_update([seq for seq in waiting if seq in self])
                return not waiting
            return self.to >= last or not (self._unresolved or self.ended)

        return is_complete

    def _missing(self) -> set[int]:
        """Return the counters that can still be missing."""
        return self._unresolved.keys() | self.ended

    def __contains__(self, seq: int) -> bool:
        return seq <= self.to or seq in self._ahead
