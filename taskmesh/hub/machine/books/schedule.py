"""Schedules as a hub keeps them: one, and all of them with what is due by the clock on the wall."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from typing import Any

from taskmesh.core.ids import text_of
from taskmesh.hub.machine.books.journaled_dict import JournalChanges, JournaledDict
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import State, TaskRecord
from taskmesh.hub.machine.books.ticks import Ticks, text_of_tick
from taskmesh.messages.journal_entries import CURSOR, SCHEDULE, JournalCursor, JournalSchedule
from taskmesh.messages.schedules import Declaration

FEW = 64
"""Entries of a heap that are kept without asking whether they still count."""


class ScheduleRecord:
    """One schedule as the hub keeps it.

    Attributes:
        declaration: the newest declaration.
        ticks: the times of its firings.
        entry: the spec of its tasks.
        group: the group of its tasks.
        user: the user whose key declared it, empty without keys.
        cursor: the latest tick that was dealt with; those after it are to come.
        next: the next tick, in seconds since the epoch; infinite while there is none.
        paused: an operator has paused it.
        living: its tasks on their way, and those that have ended since they were counted.
        counts: how many ticks fired, were skipped or missed, and how many firings ended in which state.
    """

    __slots__ = (
        "counts",
        "cursor",
        "declaration",
        "entry",
        "group",
        "living",
        "next",
        "paused",
        "ticks",
        "user",
    )

    def __init__(self, declaration: Declaration, entry: SpecEntry, group: int, cursor: float) -> None:
        self.declaration = declaration
        self.ticks = Ticks(declaration.timing)
        self.entry = entry
        self.group = group
        self.user = ""
        self.cursor = cursor
        self.next = math.inf
        self.paused = False
        self.living: list[TaskRecord] = []
        self.counts: Counter[str] = Counter()

    @property
    def name(self) -> str:
        return self.declaration.name

    def alive(self) -> list[TaskRecord]:
        """Return its tasks on their way; those that have ended meanwhile are counted."""
        living, self.living = self.living, []
        for record in living:
            if record.state <= State.RUNNING:
                self.living.append(record)
            else:
                self.counts[record.state.word] += 1
        return self.living

    def written(self) -> JournalSchedule:
        return JournalSchedule(self.declaration, self.user, self.paused)

    def cursor_entry(self) -> JournalCursor:
        return JournalCursor(self.name, self.cursor, dict(self.counts))

    def restore(self, entry: JournalSchedule, cursor: JournalCursor | None) -> None:
        """Go on where an earlier hub was."""
        self.user, self.paused = entry.user, entry.paused
        if cursor is not None:
            self.cursor, self.counts = cursor.cursor, Counter(cursor.counts)

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        return len(self.declaration.payload) + self.entry.size

    def view(self) -> dict[str, Any]:
        timing, alive, counts = self.declaration.timing, self.alive(), self.counts
        return {
            "schedule": self.name,
            "when": when_of(self.declaration),
            "tz": timing.tz,
            "task": self.declaration.spec.name,
            "state": "paused" if self.paused else "active",
            "next": text_of_tick(self.next) if self.next < math.inf else "",
            "overlap": timing.overlap,
            "catchup": timing.catchup,
            "running": len(alive),
            "fired": counts["fired"],
            "skipped": counts["skipped"],
            "missed": counts["missed"],
            "failed": sum(counts[state] for state in ("failed", "dead", "lost", "expired")),
            "last_task": text_of(alive[-1].id) if alive else "",
        }


class Schedules:
    """All schedules of a hub, and the tasks that wait for a time on the clock.

    Args:
        journal: the hub's journal, if it has one.

    Attributes:
        deadline: the hub's time at which something is due; infinite if nothing is.
        records: the schedules by name.
        unwritten: firings that the journal does not have yet, with the numbers of its changes.
        groups: how many schedules there have been.
        size: the bytes that all take.
        of_user: how many are whose; rates: how often those of a user fire in a second together.
        written: what the journal has of them; cursors: where each is.
    """

    def __init__(self, journal: JournalChanges | None) -> None:
        self.deadline = math.inf
        self.records: dict[str, ScheduleRecord] = {}
        self.unwritten: deque[tuple[int, TaskRecord]] = deque()
        self.groups = 0
        self.size = 0
        self.of_user: Counter[str] = Counter()
        self.rates: defaultdict[str, float] = defaultdict(float)
        self.written: JournaledDict[str, JournalSchedule] = JournaledDict(
            journal, SCHEDULE, decode=lambda _, entry: (entry.declaration.name, entry)
        )
        self.cursors: JournaledDict[str, JournalCursor] = JournaledDict(
            journal, CURSOR, decode=lambda _, entry: (entry.name, entry)
        )
        self._due: list[tuple[float, int, ScheduleRecord | TaskRecord]] = []
        self._limit = FEW
        self._count = 0

    # --- what is due --------------------------------------------------------------------------------------

    def push(self, when: float, due: ScheduleRecord | TaskRecord) -> None:
        self._count += 1
        if len(self._due) >= self._limit:
            self._due = [entry for entry in self._due if self._counts(*entry)]
            heapq.heapify(self._due)
            self._limit = 2 * len(self._due) + FEW
        heapq.heappush(self._due, (when, self._count, due))

    def pop(self, wall: float) -> ScheduleRecord | TaskRecord | None:
        """Return what is due first at a time on the wall; None if nothing is."""
        while self._due and self._due[0][0] <= wall:
            entry = heapq.heappop(self._due)
            if self._counts(*entry):
                return entry[2]
        return None

    def _counts(self, when: float, _: int, due: ScheduleRecord | TaskRecord) -> bool:
        """Return True if an entry of the heap still stands for something."""
        if isinstance(due, TaskRecord):
            return due.state is State.WAITING and due.more().at == when
        return due.next == when and self.records.get(due.name) is due

    def renew(self, offset: float | None) -> None:
        """Reckon the deadline anew, from how far the clock on the wall is ahead of the hub's own."""
        self.deadline = self._due[0][0] - offset if self._due and offset is not None else math.inf

    # --- shares -------------------------------------------------------------------------------------------

    def count_in(self, schedule: ScheduleRecord) -> None:
        """Count a schedule among those of its user."""
        self.size += schedule.size
        self.of_user[schedule.user] += 1
        self.rates[schedule.user] += rate_of(schedule.declaration)

    def count_out(self, schedule: ScheduleRecord) -> None:
        self.size -= schedule.size
        self.of_user[schedule.user] -= 1
        self.rates[schedule.user] -= rate_of(schedule.declaration)
        if not self.of_user[schedule.user]:
            del self.of_user[schedule.user], self.rates[schedule.user]

    # --- the journal --------------------------------------------------------------------------------------

    def put(self, schedule: ScheduleRecord) -> None:
        """Have a schedule written, unless it is not durable."""
        if schedule.declaration.spec.durable is not False:
            self.written[schedule.name] = schedule.written()
            self.put_cursor(schedule)
        else:
            self.drop(schedule.name)

    def put_cursor(self, schedule: ScheduleRecord) -> None:
        if schedule.name in self.written:
            self.cursors[schedule.name] = schedule.cursor_entry()

    def drop(self, name: str) -> None:
        self.written.pop(name, None)
        self.cursors.pop(name, None)


def when_of(declaration: Declaration) -> str:
    timing = declaration.timing
    return timing.cron or f"every {timing.period:g} s"


def rate_of(declaration: Declaration) -> float:
    """Return how often a schedule fires in a second, at most."""
    timing = declaration.timing
    return 1 / 60 if timing.cron else 1 / timing.period
