"""The figures that both ends of a link count by: sizes, times, and how much work goes ahead of need."""

from __future__ import annotations

import math

from taskmesh.wire.messages import Deliver
from taskmesh.wire.runs import DoneRun, Failed

SLOWEST = 100_000
"""Bytes a second that a link moves at least, not quite 1 Mbit/s: a large message under way is not lost."""

DOUBLINGS = 5
"""Doublings that the wait for its bytes may have: some links are slower, 8 MiB in a minute, and say nothing
else meanwhile. Small ones may be repeated soon."""

ACK_DELAY = 0.005
"""Seconds that an acknowledgement waits for something to go with: a message of its own wakes four threads."""

LONG = 1.0
"""Seconds from which on a task is never handed out ahead of need."""

ONE_AHEAD = 0.6
"""Most that a shorter task counts for, in horizons: so a slot always has one in hand and one ahead."""


class ReceiveWindow:
    """Numbers of messages that have arrived, from 1 on and mostly in order.

    Args:
        most_early: how many messages beyond a missing one are taken in; the sender repeats the others.

    Attributes:
        to: every message up to this number has arrived.
        early: numbers beyond a missing one.
    """

    __slots__ = ("_most_early", "early", "to")

    def __init__(self, most_early: float = math.inf) -> None:
        self.to = 0
        self.early: set[int] = set()
        self._most_early = most_early

    def take(self, number: int) -> bool:
        """Takes in a number; returns False if its message is a duplicate, or too early to be kept."""
        if number == self.to + 1:
            self.to = number
            while self.early and self.to + 1 in self.early:
                self.to += 1
                self.early.remove(self.to)
            return True
        if number <= self.to or number in self.early or len(self.early) >= self._most_early:
            return False
        self.early.add(number)
        return True

    def restart(self) -> None:
        """The sender counts from 1 again."""
        self.to = 0
        self.early.clear()


def size_of(run: DoneRun) -> int:
    """Bytes that a run of successes is counted for."""
    return sum(map(len, run.payloads)) + 32 * len(run.seqs)


def size_of_failure(failure: Failed) -> int:
    """Bytes that a bad end is counted for."""
    return len(failure.pickled) + len(failure.traceback) + 200


def size_of_delivery(deliver: Deliver) -> int:
    """Bytes that a delivery is counted for, of the client's credit."""
    return sum(map(size_of, deliver.done)) + sum(map(size_of_failure, deliver.failed))
