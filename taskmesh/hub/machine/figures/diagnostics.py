"""Diagnostics: what a hub remembers for people who ask, among it the latest ends of tasks."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from taskmesh.core.actions import LogEvent
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.hub.machine.figures.errors import TOLD_TEXT, Errors, in_words
from taskmesh.hub.machine.figures.functions import Functions
from taskmesh.hub.machine.figures.lines import LastLines
from taskmesh.messages.runs import DoneRun, Failed
from taskmesh.messages.status import JournalStatus

RECENT = 1_000
"""Ends of a kind that are kept for whoever asks how a task has ended."""
EVENTS_KEPT = 1000


End = tuple[int, str, str, int, str, float, int, float]
"""The last success of a report: id, name, queue, attempt, worker, the seconds that all tasks of the report
ran, their number, and the hub's time."""


class RecentEnds:
    """The latest ends of tasks, as people see them.

    Attributes:
        by_task: bad ends but cancellations, by task id; RECENT of them.
        cancelled: cancellations, likewise.
        successes: RECENT successes, the last task of each report.
    """

    def __init__(self) -> None:
        self.successes: deque[End] = deque(maxlen=RECENT)
        self.by_task: OrderedDict[int, dict[str, object]] = OrderedDict()
        self.cancelled: OrderedDict[int, dict[str, object]] = OrderedDict()
        self._reports: deque[tuple[int, Sequence[int], End]] = deque()  # of several tasks each
        self._reported = 0

    def succeeded(self, run: DoneRun, name: str, queue: str, now: float) -> None:
        """Keep the successes of a report."""
        seqs = run.seqs
        task, attempt, count = run.client << SEQ_BITS | seqs[-1], run.attempt - run.returns, len(seqs)
        end = (task, name, queue, attempt, run.worker, run.elapsed, count, now)
        self.successes.append(end)
        if count > 1:
            self._reports.append((run.client, seqs, end))
            self._reported += count
            while self._reported - len(self._reports[0][1]) >= RECENT:
                self._reported -= len(self._reports.popleft()[1])

    def success_of(self, task: int) -> End | None:
        """Return the report that had the success of a task, None if it is not kept; this looks at all."""
        for end in self.successes:
            if end[0] == task:
                return end
        client, seq = task >> SEQ_BITS, task & SEQ_MASK
        return next((end for its, seqs, end in self._reports if its == client and seq in seqs), None)

    def remember(self, about: dict[str, object], told: Failed, tasks: Iterable[int]) -> None:
        """Keep a bad end for whoever asks why, by the ids of all tasks that have ended with it.

        Args:
            about: what people see of the task: name, user, state, queue, the time of its end.
            told: how it has ended.
            tasks: the ids.
        """
        is_cancelled = told.kind == "cancelled"
        why = f"attempt {told.attempt} on {told.worker or '?'}: {told.kind} {in_words(told)}"
        if is_cancelled:
            why = "by its own program, or by an operator's command"
        end: dict[str, object] = {
            **about,
            "attempt": told.attempt,
            "worker": told.worker,
            "history": told.history,
            "why": why[:TOLD_TEXT],
        }
        ends = self.cancelled if is_cancelled else self.by_task
        ends.update(dict.fromkeys(tasks, end))
        while len(ends) > RECENT:
            ends.popitem(last=False)


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
        journal: what was told of the journal last, None without one.
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
        self.journal: JournalStatus | None = None
        self.shortage = ""

    def keep(self, event: LogEvent, now: float) -> None:
        number = self.events[-1][0] + 1 if self.events else 1
        self.events.append((number, now, event))
