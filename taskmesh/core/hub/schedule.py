"""One schedule as a hub keeps it, and the record of the ticks that have fired."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any

from taskmesh.core.hub.ledger import SpecEntry
from taskmesh.core.hub.states import State, TaskRecord
from taskmesh.core.hub.ticks import Ticks, text_of_tick
from taskmesh.core.ids import text_of
from taskmesh.wire.journal import JournalCursor, JournalSchedule
from taskmesh.wire.schedules import Declaration

MOST_SPANS = 1_000
"""Spans of ticks that have fired, for each schedule; the oldest become one."""


class ScheduleRecord:
    """One schedule as the hub keeps it.

    Attributes:
        declaration: the newest declaration.
        ticks: the times of its firings.
        entry: the spec of its tasks.
        group: the group of its tasks.
        user: the user whose key declared it, empty without keys.
        cursor: the latest tick that was dealt with; those after it are to come.
        next: the next tick, in seconds since the epoch; None if there is none.
        high: the latest tick that has a name: earlier ones that come again get another one.
        rewinds: how often the clock has gone back and made ticks come again.
        fired_at: the hub's time of the last tick.
        paused: an operator has paused it.
        declarers: clients and pools that declare it.
        seen: the hub's time when one of them was last here.
        living: its tasks on their way, and those that have ended since they were counted.
        counts: how many ticks fired, were skipped or missed, and how many firings ended in which state.
    """

    __slots__ = (
        "counts",
        "cursor",
        "declaration",
        "declarers",
        "entry",
        "fired_at",
        "group",
        "high",
        "living",
        "next",
        "paused",
        "rewinds",
        "seen",
        "spans",
        "ticks",
        "user",
    )

    def __init__(self, declaration: Declaration, entry: SpecEntry, group: int) -> None:
        self.declaration = declaration
        self.ticks = Ticks(declaration.timing)
        self.entry = entry
        self.group = group
        self.user = ""
        self.cursor = 0.0
        self.next: float | None = None
        self.high = -math.inf
        self.rewinds = 0
        self.fired_at = -math.inf
        self.paused = False
        self.declarers: set[int | str] = set()
        self.seen = 0.0
        self.living: list[TaskRecord] = []
        self.counts: Counter[str] = Counter()
        self.spans = Spans()

    @property
    def name(self) -> str:
        """Its name."""
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
        """Return its entry in a journal."""
        return JournalSchedule(self.declaration, self.user, self.paused)

    def cursor_entry(self) -> JournalCursor:
        """Return the entry of how far it is."""
        high = None if math.isinf(self.high) else self.high
        return JournalCursor(self.cursor, high, self.rewinds, dict(self.counts), self.spans.pairs)

    def restore(self, entry: JournalSchedule, cursor: JournalCursor | None) -> None:
        """Go on where an earlier hub was."""
        self.user, self.paused = entry.user, entry.paused
        if cursor is not None:
            self.cursor, self.rewinds = cursor.cursor, cursor.rewinds
            self.high = -math.inf if cursor.high is None else cursor.high
            self.counts = Counter(cursor.counts)
            self.spans = Spans(cursor.spans)

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        return len(self.declaration.payload) + self.entry.size

    def view(self) -> dict[str, Any]:
        """Return it in plain data."""
        timing, alive = self.declaration.timing, self.alive()
        counts = self.counts
        return {
            "schedule": self.name,
            "when": when_of(self.declaration),
            "tz": timing.tz,
            "task": self.declaration.spec.name,
            "state": "paused" if self.paused else "active" if self.next is not None else "over",
            "next": text_of_tick(self.next) if self.next is not None else "",
            "overlap": timing.overlap,
            "catchup": timing.catchup,
            "running": len(alive),
            "fired": counts["fired"],
            "skipped": counts["skipped"],
            "missed": counts["missed"],
            "failed": sum(counts[state] for state in ("failed", "dead", "lost", "expired")),
            "last_task": text_of(alive[-1].id) if alive else "",
            "declared": "until removed" if self.declaration.stays else "in code",
        }


class Spans:
    """The ticks that have fired, as spans of consecutive ones: those that a backfill passes over."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, pairs: Iterable[tuple[float, float]] = ()) -> None:
        spans = sorted(pairs)
        self._starts = [start for start, _ in spans]
        self._ends = [end for _, end in spans]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """The first and the last tick of each span."""
        return list(zip(self._starts, self._ends, strict=True))

    def __contains__(self, tick: float) -> bool:
        at = bisect_right(self._starts, tick) - 1
        return at >= 0 and tick <= self._ends[at]

    def add(self, tick: float, previous: float) -> None:
        """Add a tick; the one before it is `previous`, and the two become one span if that has fired, too."""
        if tick in self:
            return
        at = bisect_right(self._starts, tick)
        if at and -math.inf < previous <= self._ends[at - 1]:
            self._ends[at - 1] = tick
            return
        self._starts.insert(at, tick)
        self._ends.insert(at, tick)
        if (
            len(self._starts) > MOST_SPANS
        ):  # what lies between counts as fired: never twice, at the worst not at all
            del self._starts[1], self._ends[0]


def when_of(declaration: Declaration) -> str:
    """Return the times of a schedule, for people."""
    timing = declaration.timing
    return timing.cron or f"every {timing.period:g} s"
