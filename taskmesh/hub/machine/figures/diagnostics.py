"""Diagnostics: what a hub remembers for people who ask, among it the latest ends of tasks."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from taskmesh.core.actions import LogEvent
from taskmesh.hub.machine.figures.errors import TOLD_TEXT, Errors, in_words
from taskmesh.hub.machine.figures.functions import Functions
from taskmesh.hub.machine.figures.lines import LastLines
from taskmesh.messages.runs import Failed

RECENT = 1_000
"""Bad ends that are kept for whoever asks why a task failed."""
EVENTS_KEPT = 1000


class RecentEnds:
    """The latest ends of tasks, as people see them.

    Attributes:
        by_task: bad ends, by task id; RECENT of them.
        successes: RECENT successes, the last task of each report: id, name, queue, attempt, worker, the
            seconds that all tasks of the report ran, their number, and the hub's time.
    """

    def __init__(self) -> None:
        self.successes: deque[tuple[int, str, str, int, str, float, int, float]] = deque(maxlen=RECENT)
        self.by_task: OrderedDict[int, dict[str, object]] = OrderedDict()

    def remember(self, about: dict[str, object], told: Failed, tasks: Iterable[int]) -> None:
        """Keep a bad end for whoever asks why, by the ids of all tasks that have ended with it.

        Args:
            about: what people see of the task: name, user, state, queue, the time of its end.
            told: how it has ended.
            tasks: the ids.
        """
        where = f"attempt {told.attempt} on {told.worker or '?'}"
        end: dict[str, object] = {
            **about,
            "attempt": told.attempt,
            "worker": told.worker,
            "history": told.history,
            "why": f"{where}: {told.kind} {in_words(told)}"[:TOLD_TEXT],
        }
        self.by_task.update(dict.fromkeys(tasks, end))
        while len(self.by_task) > RECENT:
            self.by_task.popitem(last=False)


class Diagnostics:
    """Facts that a hub keeps for people who ask, and decides nothing by.

    Attributes:
        duplicates: successes that came after the task was terminal. stale: failures of older attempts.
        strays: successes of attempts that their sender was never given.
        recent: the latest ends.
        lines: what tasks have logged last.
        functions: how long tasks of each function wait and run. errors: failed attempts, in groups.
        events: what was logged last: its number, the time, and what.
        refused: why pools were not let in, by name.
        journal: what was told of the journal last, empty without one.
        shortage: what the hub's process lacks and what to do; empty when it lacks nothing.
    """

    def __init__(self) -> None:
        self.duplicates = 0
        self.stale = 0
        self.strays = 0
        self.recent = RecentEnds()
        self.lines = LastLines()
        self.functions = Functions()
        self.errors = Errors()
        self.events: deque[tuple[int, float, LogEvent]] = deque(maxlen=EVENTS_KEPT)
        self.refused: dict[str, str] = {}
        self.journal: dict[str, object] = {}
        self.shortage = ""

    def keep(self, event: LogEvent, now: float) -> None:
        number = self.events[-1][0] + 1 if self.events else 1
        self.events.append((number, now, event))
