"""Recovery: after a restart, tasks that no pool has listed wait until the pools of the former hub are back.

A new hub has no memory, but the pools have: each says Hello with all that it holds.
"""

from __future__ import annotations

from collections import deque

from taskmesh.hub.machine.books.backlog import group_of
from taskmesh.hub.machine.books.ledger import Ledger
from taskmesh.hub.machine.books.states import SUSPECT, Cause, State, TaskRecord

PORTION = 2_000
"""Tasks that are queued at once when the wait is over: some 5 ms, then others have their turn."""
QUIET_BEATS = 2
"""Beats without a further pool of a former hub after which the wait is over."""


class Recovery:
    """The wait after a restart: tasks of the former hub are not sent until its pools have listed their work.

    It is over when no further pool of a former hub has said Hello for `quiet` seconds, and at the latest at
    `until`. The hub cannot know how many pools there were: the tasks of one that comes later run twice if
    they have been sent to others meanwhile.

    Attributes:
        waiting: tasks that wait for it.
    """

    def __init__(self, ledger: Ledger, quiet: float, until: float) -> None:
        self._ledger = ledger
        self._quiet = quiet
        self._until = self._ends = until
        self.waiting: deque[TaskRecord] = deque()

    def is_over(self, now: float) -> bool:
        """Return True if a task that no pool has listed may be sent."""
        return now >= self._ends

    def extend(self, gap: float) -> None:
        """The hub itself stood still: nobody could come back."""
        self._until += gap
        self._ends += gap

    def heard(self, now: float) -> None:
        """A pool of a former hub has listed its work: others may follow."""
        if not self.is_over(now):
            self._ends = min(self._until, now + self._quiet)

    # --- tasks --------------------------------------------------------------------------------------------

    def wait(self, record: TaskRecord) -> None:
        """A new record, submitted to a former hub, that no pool has listed so far."""
        if record.state is not State.WAITING:  # for others as well
            self._ledger.move(record, Cause.RECOVER)
        self.waiting.append(record)
        if (links := record.links) is not None:
            links.recovers = True

    def left(self, now: float) -> float:
        """Seconds for which it may still go on."""
        return max(0.0, self._ends - now)

    @property
    def deadline(self) -> float:
        """The time at which `release` has something to do, while tasks wait."""
        return self._ends

    def release(self, now: float) -> None:
        """Once the wait is over, queue a portion of the tasks that no pool has listed."""
        waiting, ledger = self.waiting, self._ledger
        if not self.is_over(now):
            return
        batch: list[TaskRecord] = []
        for _ in range(min(PORTION, len(waiting))):
            record = waiting.popleft()
            if record.state is not State.WAITING or record.due:
                continue  # a pool had it, or it has ended
            if (links := record.links) is not None:
                links.recovers = False
                if record.is_held_back(now):
                    continue
            ledger.move(record, Cause.DUE)
            if record.losses >= SUSPECT:
                ledger.requeue(record)
                continue
            if batch and not _akin(batch[-1], record):
                ledger.enqueue(batch, again=True)
                batch = []
            batch.append(record)
        ledger.enqueue(batch, again=True)


def _akin(record: TaskRecord, other: TaskRecord) -> bool:
    """Return True if two tasks stand in one line of the queue."""
    return record.spec is other.spec and record.part == other.part and group_of(record) == group_of(other)
