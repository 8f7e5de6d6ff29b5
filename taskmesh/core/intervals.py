"""A set of counters kept as intervals: a million finished tasks cost a few numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class IntervalSet:
    """Non-negative ints, mostly consecutive. Adding a consecutive run costs one bisection."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __len__(self) -> int:
        return sum(end - start for start, end in zip(self._starts, self._ends, strict=True))

    @property
    def end(self) -> int:
        """One more than the highest number, 0 when there is none."""
        return self._ends[-1] if self._ends else 0

    @property
    def pieces(self) -> int:
        """How many intervals it takes."""
        return len(self._starts)

    def add(self, number: int) -> None:
        """Adds one number; adding it again changes nothing."""
        self._add(number, number + 1)

    def add_all(self, numbers: Sequence[int]) -> None:
        """Adds many numbers, quickest when they are consecutive and rising."""
        if not numbers:
            return
        first, last = numbers[0], numbers[-1]
        if len(numbers) == 1:
            self._add(first, first + 1)
            return
        if last - first + 1 == len(numbers) and list(numbers) == list(range(first, last + 1)):
            self._add(first, last + 1)
            return
        ordered = sorted(numbers)
        start = previous = ordered[0]
        for number in ordered:
            if number > previous + 1:
                self._add(start, previous + 1)
                start = number
            previous = number
        self._add(start, previous + 1)

    def _add(self, start: int, end: int) -> None:
        starts, ends = self._starts, self._ends
        if ends and start == ends[-1]:  # finished in order
            ends[-1] = end
            return
        low = bisect_right(starts, start)
        if low and ends[low - 1] >= start:
            low -= 1
            start = starts[low]
            end = max(end, ends[low])
        high = bisect_right(starts, end)
        if high > low:
            end = max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
