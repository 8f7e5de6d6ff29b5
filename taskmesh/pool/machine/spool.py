"""The spool: results of a pool, kept until the hub has acknowledged them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from taskmesh.link.link import SendWindow, size_of, size_of_failure, size_of_outcomes
from taskmesh.messages.mesh_messages import Results
from taskmesh.messages.runs import WARNING, DoneRun, Failed, Held, LogLine, Progress

RESEND_BEATS = 2.5
"""Beats without an acknowledgement after which reports are sent again."""

DROPPED = "lines from here on were dropped: the pool could not send them to its hub in time"
MOST_TOLD = 1 << 20
"""Bytes of what tasks have logged that wait for a hub; what comes then is dropped."""
MAX_REPORT = 4 << 20
"""Bytes after which a report is closed."""
FEW = 64
"""Runs, or failures, that go into one report however large they are."""
MAX_REPEATS = 2
"""Times that reports are sent again, each time after twice the wait, before the link is taken for dead."""

T = TypeVar("T")


class Spool:
    """Results gathered, and reports of them that are sent but not acknowledged.

    Attributes:
        done: Successes gathered, in no report yet.
        failed: Bad ends, likewise.
        returned: Tasks handed back, likewise.
        told: News of tasks for the next report: last progress, and what they have logged.
        reports: Those that are sent, or sent again when they are due.
    """

    def __init__(self) -> None:
        self.done: list[DoneRun] = []
        self.failed: list[Failed] = []
        self.returned: list[Held] = []
        self.told: list[Progress] = []
        self._told_bytes = 0
        self._cut: set[tuple[int, int]] = set()  # tasks of which lines were dropped
        self.reports: SendWindow[Results] = SendWindow()

    @property
    def empty(self) -> bool:
        """True if everything is reported and acknowledged."""
        return not (self.reports.kept or self.has_news)

    @property
    def has_news(self) -> bool:
        """True if something was gathered and not sent."""
        return bool(self.done or self.failed or self.returned or self.told)

    def tell(self, news: Progress, lines: list[LogLine]) -> None:
        """Take what a task has logged into the next report; where too much waits, the last line says so."""
        size = sum(len(line.text) + len(line.path) + 100 for line in lines)
        if self._told_bytes + size > MOST_TOLD:
            task = (news.client, news.seq)
            if task in self._cut:
                return
            self._cut.add(task)
            lines = [LogLine(lines[0].time, WARNING, __name__, DROPPED)]
        self._told_bytes += size
        last = self.told[-1] if self.told else None
        if last is not None and last.lines and (last.client, last.seq) == (news.client, news.seq):
            last.lines += lines
        else:
            news.lines = lines
            self.told.append(news)

    def close(self, epoch: int, session: int, now: float) -> Results:
        """Return the next report: what was gathered, or as much of it as one message should hold."""
        done, self.done = portion(self.done, size_of)
        failed, self.failed = portion(self.failed, size_of_failure)
        results = Results(epoch, session, self.reports.next, done, failed, self.returned)
        self.returned = []
        size = size_of_outcomes(done, failed) + self._told_bytes
        if self.told:
            results.told, self.told = self.told, []
            self._told_bytes = 0
            self._cut.clear()
        self.reports.append(results, size, now, sent=True)
        return results

    def acknowledged(self, number: int, now: float) -> None:
        """The hub has every report up to a number."""
        self.reports.acknowledge(number, now)

    def overdue(self, now: float, beat: float) -> list[Results]:
        """Return reports to send again because no acknowledgement came."""
        reports = self.reports
        if now < reports.deadline(RESEND_BEATS * beat * (1 << reports.repeats)):
            return []
        reports.repeat(now)
        return [unstamped(results) for results in reports.send()]

    def renew(self) -> None:
        """A new session: what is unacknowledged is news again; hand-backs are void (the hub knows)."""
        sent = self.reports.kept.values()
        self.done = [run for results in sent for run in results.done] + self.done
        self.failed = [failure for results in sent for failure in results.failed] + self.failed
        self.told = [told for results in sent for told in results.told] + self.told
        self.returned = []
        self.reports.restart(1)

    def inventory(self) -> list[Held]:
        """List what is finished and not acknowledged; call after `renew`."""
        return held_by(self.done, self.failed)


def held_by(done: list[DoneRun], failed: list[Failed]) -> list[Held]:
    held = [Held(run.client, run.attempt, run.seqs, returns=run.returns) for run in done]
    if failed:
        held += [Held(one.client, one.attempt, [one.seq], returns=one.returns) for one in failed]
    return held


def portion(items: list[T], weigh: Callable[[T], int]) -> tuple[list[T], list[T]]:
    """Split off about MAX_REPORT bytes, or all if there are a few.

    Many gather only while there is no session.
    """
    if len(items) <= FEW:
        return items, []
    size = taken = 0
    for item in items:
        size += weigh(item)
        taken += 1
        if size > MAX_REPORT:
            break
    return items[:taken], items[taken:]


def unstamped(results: Results) -> Results:
    """Return a report to send again: its stamps are too old to measure the hub's round trip by."""
    return replace(results, echo=0.0, held=0.0, lag=0.0)
