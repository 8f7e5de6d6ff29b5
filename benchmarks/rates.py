"""The row of tasks under a rate.

A contender that limits how many tasks start in a second measures it: taskmesh, and Celery for each worker.
Dask, Ray, Parsl and ProcessPoolExecutor have no such limit.
"""

from __future__ import annotations

from typing import Any, Protocol

from benchmarks import machine, workloads
from benchmarks.contender import Pending, Work

RATE_ROWS = frozenset({"rate"})
RATE = 50
"""Starts in a second that the limit allows."""
SECONDS = 20
SPARE = 3
"""Seconds of work beyond what is measured, so that the limit is used up to the end."""


class RateContender(Protocol):
    """A contender that limits how many tasks start in a second."""

    def submit_limited(self, work: Work, argument: Any, rate: int) -> Pending:
        """Submit a task of which no more than so many may start in a second."""
        ...


def rate(contender: RateContender, seconds: int) -> tuple[dict[str, float], machine.Window, dict[str, Any]]:
    """More tasks than the rate allows tell when they began: the share of it used, the most in a second."""
    with machine.Window() as window:
        futures = [
            contender.submit_limited(workloads.begun, number, RATE)
            for number in range(RATE * (seconds + SPARE))
        ]
        times = sorted(future.result() for future in futures)
    first = most = 0
    for place, when in enumerate(times):
        while times[first] <= when - 1.0:
            first += 1
        most = max(most, place - first + 1)
    used = sum(when < times[0] + seconds for when in times) / (RATE * seconds)
    return {"used": 100 * used, "most": most}, window, {"tasks": len(times), "seconds": seconds}
