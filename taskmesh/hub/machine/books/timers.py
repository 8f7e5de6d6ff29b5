"""Timers of tasks: when their waiting ends, and when those that have not started expire or end."""

from __future__ import annotations

import heapq

from taskmesh.hub.machine.books.states import Cause, State, TaskRecord

FEW_TIMERS = 64
"""Timers kept without asking whether their tasks still live: not many, see `Lane.remember`."""


class Timers:
    """A heap of timers; one whose task has moved on meanwhile has no effect.

    Attributes:
        heap: when, a number, the task and the cause: DUE ends waiting, EXPIRE and CANCEL end a task that has
            not started.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, TaskRecord, Cause]] = []
        self._count = 0
        self._limit = FEW_TIMERS

    @property
    def deadline(self) -> float:
        """The time of the first timer; there is one."""
        return self.heap[0][0]

    def at(self, when: float, record: TaskRecord, cause: Cause) -> None:
        self._count += 1
        if len(self.heap) >= self._limit:
            self._drop_finished()
        heapq.heappush(self.heap, (when, self._count, record, cause))

    def pop(self) -> tuple[float, TaskRecord, Cause]:
        when, _, record, cause = heapq.heappop(self.heap)
        return when, record, cause

    def _drop_finished(self) -> None:
        """Forget the timers of finished tasks, which far expiries would keep by the million."""
        last = State.RUNNING
        self.heap[:] = [timer for timer in self.heap if timer[2].state <= last]
        heapq.heapify(self.heap)
        self._limit = 2 * len(self.heap) + FEW_TIMERS
