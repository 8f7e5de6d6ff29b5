"""Figures of task functions: how long their tasks wait and run, and how they end."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from taskmesh.messages.status import FunctionStatus, Quantiles

FIRST_S: Final = 0.0001
BOUNDS: Final = tuple(FIRST_S * 2 ** (step / 2) for step in range(49))
"""Upper bounds of a histogram's buckets in seconds, 0.1 ms to 28 minutes. Each is the square root of 2 times
the one before, so that a quantile is right within 19 %."""
MOST_FUNCTIONS: Final = 1_000
"""Names of functions with figures of their own; those that come later share OTHER's."""
OTHER: Final = "_other"


class Histogram:
    """Times, counted by buckets.

    Attributes:
        counts: of each bucket; the last one is for what exceeds all bounds.
        count: of all.
        total: their sum, in seconds.
    """

    __slots__ = ("count", "counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float, count: int) -> None:
        """Take in a time that `count` tasks had."""
        self.counts[bisect_left(BOUNDS, seconds)] += count
        self.count += count
        self.total += seconds * count

    def merge(self, other: Histogram) -> None:
        """Take in all times of another one."""
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total += other.total

    def quantiles(self) -> Quantiles:
        """Return the quantiles that people are shown."""
        return {"p50": self.quantile(0.5), "p95": self.quantile(0.95), "p99": self.quantile(0.99)}

    def quantile(self, share: float) -> float | None:
        """Return the seconds that so large a share of the times does not exceed; None without any."""
        if not self.count:
            return None
        wanted = share * self.count
        index = bisect_left(list(accumulate(self.counts)), wanted)
        upper = BOUNDS[min(index, len(BOUNDS) - 1)]
        return upper / 2**0.25 if 0 < index < len(BOUNDS) else upper

    def cumulative(self, step: int) -> list[tuple[float, int]]:
        """Return each so many bounds with the number of times up to there."""
        return list(zip(BOUNDS, accumulate(self.counts), strict=False))[::step]


class FunctionFigures:
    """The figures of one task function, by its name.

    Attributes:
        name: its name.
        run: times that successes took in their slots.
        wait: times from acceptance to the first start, of tasks that waited for nothing but a slot.
        succeeded: how many have succeeded.
        ended: bad ends by kind, as in `Failed.kind`.
    """

    __slots__ = ("ended", "name", "run", "succeeded", "wait")

    def __init__(self, name: str) -> None:
        self.name = name
        self.run = Histogram()
        self.wait = Histogram()
        self.succeeded = 0
        self.ended: dict[str, int] = {}

    def over(self, kind: str) -> None:
        """Count a bad end."""
        self.ended[kind] = self.ended.get(kind, 0) + 1

    def add(self, other: FunctionFigures) -> None:
        """Take in the figures of another function."""
        self.run.merge(other.run)
        self.wait.merge(other.wait)
        self.succeeded += other.succeeded
        for kind, count in other.ended.items():
            self.ended[kind] = self.ended.get(kind, 0) + count

    def view(self) -> FunctionStatus:
        """Return the figures in plain data, times in seconds."""
        ended = dict(sorted(self.ended.items()))
        return {
            "name": self.name,
            "succeeded": self.succeeded,
            "cancelled": ended.pop("cancelled", 0),
            "failed": sum(ended.values()),
            "kinds": ended,
            "slot_seconds": self.run.total,
            "run": self.run.quantiles(),
            "wait": self.wait.quantiles(),
        }


class Functions:
    """Figures of all task functions.

    Attributes:
        by_name: the figures, by the name of the function.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, FunctionFigures] = {}

    def of(self, name: str) -> FunctionFigures:
        """Return the figures of a function."""
        found = self.by_name.get(name)
        if found is None:
            if len(self.by_name) >= MOST_FUNCTIONS:
                name = OTHER
            found = self.by_name.setdefault(name, FunctionFigures(name))
        return found

    def busiest(self, most: int) -> list[FunctionFigures]:
        """Return the functions that have used most time of slots, at most so many."""
        return sorted(self.by_name.values(), key=lambda each: -each.run.total)[:most]
