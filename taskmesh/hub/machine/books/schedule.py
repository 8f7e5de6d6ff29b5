"""One schedule as a hub keeps it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from taskmesh.core.ids import text_of
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import State, TaskRecord
from taskmesh.hub.machine.books.ticks import Ticks, text_of_tick
from taskmesh.messages.journal_entries import JournalCursor, JournalSchedule
from taskmesh.messages.schedules import Declaration


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
                self.counts[record.state.name.lower()] += 1
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


def when_of(declaration: Declaration) -> str:
    timing = declaration.timing
    return timing.cron or f"every {timing.period:g} s"


def rate_of(declaration: Declaration) -> float:
    """Return how often a schedule fires in a second, at most."""
    timing = declaration.timing
    return 1 / 60 if timing.cron else 1 / timing.period
