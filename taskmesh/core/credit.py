"""Credit: how much work goes ahead of need, from the hub to a pool's lane and from a pool to its slots.

A slot that has only the task that it runs waits for the next one; a slot that has many keeps them from
others when a task turns out long. So each has a *horizon* of work ahead, in seconds: several times as long
as a refill takes, by measured times of functions and links.
"""

from __future__ import annotations

LANE_HORIZON = 0.004
"""Seconds of work that a slot may have in its pool, at least: some refills of one that is near. No more:
a client that comes with one task waits for what is there."""
PACE = 2e-6
"""Seconds that a pool's loop takes for a task, however short that is."""
SLOT_HORIZON = 0.005
"""Seconds of work that a slot is handed ahead, at least: several times what a refill takes. No more, since
what lies behind a long task starts late (skewed naps over ideal: 1.025, and 1.038 with 20 ms)."""
MAX_HORIZON = 0.500
"""Seconds of a horizon at most, however slow the link."""
LONG = 1.0
"""Seconds from which on a task is never handed out ahead of need."""
ONE_AHEAD = 0.5
"""Most that a shorter task counts for, in horizons: so a slot always has one in hand and one ahead."""
MOST_AHEAD = 4096
"""Most tasks that a slot has, however short they are."""
RESULTS_AHEAD = 8 << 20
"""Bytes of results that a slot may have outstanding: a client's cap sees them only when they come."""
WORTH = 0.0005
"""Seconds of work that are worth a message: a smaller share of what waits is not handed out."""
LEAST_COST = 1e-7
"""Seconds that a task counts for at least."""


class ServiceTime:
    """Time that tasks of one spec take in a slot.

    Attributes:
        service: Average in seconds of a task, in which those of earlier reports count for seven tenths each
            time; None before the first one. It weighs tasks, not reports: a slot that had no processor for a
            while, and reports few, does not make all of them long.
    """

    __slots__ = ("_tasks", "service")

    def __init__(self) -> None:
        self.service: float | None = None
        self._tasks = 0.0

    def measured(self, count: int, elapsed: float) -> None:
        """Take in `count` tasks that took `elapsed` seconds together."""
        before = 0.7 * self._tasks
        self._tasks = before + count
        self.service = ((self.service or 0.0) * before + elapsed) / self._tasks

    def at_least(self, elapsed: float) -> None:
        """A task has run for so long and is not done: the average, if there is one, is no lower."""
        if self.service is not None and self.service < elapsed:
            self.service, self._tasks = elapsed, 1.0


class Credit:
    """Work that slots at the far end of a link may have ahead of need.

    Args:
        least: Seconds of the horizon at least.
        fall: Share of each lower sample in the average of latencies; of a higher one it is half.

    Attributes:
        least: As given.
        latency: Average of measured refill times in seconds, quick to rise and slow to fall.
        horizon: Seconds of work that each slot may have ahead: `least`, or twice the latency.
    """

    __slots__ = ("_fall", "horizon", "latency", "least")

    def __init__(self, least: float, fall: float) -> None:
        self.least = self.horizon = least
        self.latency = 0.0
        self._fall = fall

    def measured(self, sample: float | None, beyond: float = 0.0) -> None:
        """Take in a refill time.

        Args:
            sample: Seconds from asking for work to having it; None if that was not measured now.
            beyond: Seconds that the far end needs besides, by its own average.
        """
        if sample is not None:
            weight = 0.5 if sample > self.latency else self._fall
            self.latency += weight * (max(0.0, sample) - self.latency)
        self.horizon = min(MAX_HORIZON, max(self.least, 2.0 * (self.latency + beyond)))

    def cost(self, service: float | None, result_size: float = 0.0) -> float:
        """Return the seconds that a task counts for: long ones and unknown ones fill the horizon.

        Args:
            service: Seconds that it takes, None if that is not known.
            result_size: Bytes of its result: a large one counts for as large a share of the horizon as it is
                of RESULTS_AHEAD.
        """
        horizon = self.horizon
        if service is None or service >= LONG:
            return horizon
        seconds = min(service, ONE_AHEAD * horizon)
        if result_size:
            seconds = min(horizon, max(seconds, horizon * result_size / RESULTS_AHEAD))
        return max(seconds, LEAST_COST)
