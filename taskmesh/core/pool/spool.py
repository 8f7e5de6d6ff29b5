"""What a pool has to report, kept until the hub has acknowledged it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from taskmesh.core.link import SLOWEST, size_of, size_of_failure
from taskmesh.wire.messages import Results
from taskmesh.wire.runs import DoneRun, Failed, Held, Progress

RESEND_BEATS = 2.5
"""Beats without an acknowledgement after which reports are sent again."""

MAX_REPORT = 4 << 20
"""Bytes after which a report is closed."""
FEW = 64
"""So many runs or failures go into one report without being weighed."""
MOST_ENDED = 2_000
"""Attempts whose numbers are kept after the hub has acknowledged their end: 10 KB of a Hello."""
MAX_REPEATS = 2
"""Times that reports are sent again, each time after twice the wait, before the link is taken for dead."""


T = TypeVar("T")


class Spool:
    """Reports gathered, and reports sent but not acknowledged.

    Attributes:
        ended: attempts whose end a hub has acknowledged lately, the newest last. Should it die before the
            clients know, the next hub learns of them here, and gives their numbers to nothing else.

    Args:
        remembers: whether the hub can die without this pool.
    """

    def __init__(self, *, remembers: bool = True) -> None:
        self.ended: deque[Held] = deque()
        self._ended_count = 0
        self._remembers = remembers
        self.done: list[DoneRun] = []
        self.failed: list[Failed] = []
        self.returned: list[Held] = []
        self.told: list[Progress] = []
        self.number = 0
        self.acked = 0
        self._sent: deque[Results] = deque()
        self.held_until: float | None = None
        self._moved = 0.0
        self.repeats = 0

    @property
    def empty(self) -> bool:
        """Whether everything is reported and acknowledged."""
        return not (self._sent or self.has_news)

    @property
    def has_news(self) -> bool:
        """Whether something was gathered and not sent."""
        return bool(self.done or self.failed or self.returned)

    def close(self, epoch: int, session: int, now: float) -> Results:
        """What was gathered, or so much of it as one message should hold, as the next numbered report."""
        self.number += 1
        done, self.done = portion(self.done, size_of)
        failed, self.failed = portion(self.failed, size_of_failure)
        results = Results(epoch, session, self.number, done, failed, self.returned)
        self.returned = []
        if self.told:
            results.told, self.told = self.told, []
        if not self._sent:
            self._moved = now
        self._sent.append(results)
        return results

    def acknowledged(self, number: int, now: float) -> None:
        """The hub has every report up to `number`."""
        while self._sent and self._sent[0].number <= number:
            results = self._sent.popleft()
            if self._remembers:
                self.remember(held_by(results.done, results.failed))
            self._moved = now
            self.repeats = 0
        self.acked = max(self.acked, number)

    def remember(self, attempts: list[Held]) -> None:
        """These have ended, and nothing more is said of them to this hub."""
        ended = self.ended
        for held in attempts:
            ended.append(held)
            self._ended_count += len(held.seqs)
        while self._ended_count > MOST_ENDED and len(ended) > 1:
            self._ended_count -= len(ended.popleft().seqs)

    def overdue(self, now: float, beat: float) -> list[Results]:
        """Reports to send again because no acknowledgement came."""
        patience = RESEND_BEATS * beat * (1 << self.repeats)
        if not self._sent or now - self._moved < patience:
            return []
        size = sum(len(data) for results in self._sent for run in results.done for data in run.payloads)
        if now - self._moved < patience + size / SLOWEST:
            return []
        self._moved = now
        self.repeats += 1
        return [unstamped(results) for results in self._sent]

    def hold(self, until: float) -> None:
        """Reports were dropped on their way: none is sent before, and then all that are unacknowledged."""
        self.held_until = max(until, self.held_until or until)
        self._moved, self.repeats = max(self._moved, self.held_until), 0

    def resumed(self, now: float) -> list[Results]:
        """Reports to send again because the time that they were held for is over."""
        if self.held_until is None or now < self.held_until:
            return []
        self.held_until = None
        return [unstamped(results) for results in self._sent]

    def renew(self) -> None:
        """A new session: what is unacknowledged is news again; hand-backs are void (the hub knows)."""
        done = [run for results in self._sent for run in results.done]
        failed = [failure for results in self._sent for failure in results.failed]
        self.done, self.failed = done + self.done, failed + self.failed
        self.told = [told for results in self._sent for told in results.told] + self.told
        self.returned = []
        self._sent.clear()
        self.number = self.acked = self.repeats = 0

    def inventory(self) -> list[Held]:
        """What is finished and not acknowledged; call after `renew`."""
        return held_by(self.done, self.failed)


def held_by(done: list[DoneRun], failed: list[Failed]) -> list[Held]:
    """The attempts that reports are of."""
    held = [Held(run.client, run.attempt, run.seqs, returns=run.returns) for run in done]
    if failed:
        held += [Held(one.client, one.attempt, [one.seq], returns=one.returns) for one in failed]
    return held


def portion(items: list[T], weigh: Callable[[T], int]) -> tuple[list[T], list[T]]:
    """The first of them, about MAX_REPORT bytes, and the rest. A few go together unweighed: that is the rule.

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
    """A report to send again: its stamps are too old to measure the hub's round trip by."""
    return replace(results, echo=0.0, held=0.0, lag=0.0)
