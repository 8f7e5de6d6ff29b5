"""The batch of results and failures that a slot collects for its supervisor, and when it is sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from taskmesh.messages.runs import LogLine
from taskmesh.messages.slot_messages import (
    FromSlot,
    SlotFailure,
    SlotLogs,
    SlotProgress,
    SlotResults,
    SlotSegment,
)
from taskmesh.pool.slots import messages
from taskmesh.pool.slots.outbox import BREAK, DATA, FAILURE, OutboxWriter
from taskmesh.pool.slots.soft_timeout import TimeLimit
from taskmesh.shm.blob import Blob

FLUSH_AFTER: Final = 0.002
"""Seconds after which results are sent although more tasks wait."""

FLUSH_OFFSET: Final = DATA + (256 << 10)
"""The outbox's offset up to which results are collected."""

LONG: Final = 0.001
"""Seconds from which on the time of a task is told exactly."""

_PROGRESS_EVERY: Final = 0.05
_ENCODE: Final = msgspec.msgpack.Encoder().encode


def _nothing() -> None:
    """Send no lines."""


class SupervisorLink(Protocol):
    """The link to the supervisor."""

    def send(self, kind: int, message: FromSlot) -> None:
        """Send a message; wait until there is room for it."""
        ...

    def ask(self, serial: int, *, lends: bool = True) -> messages.PermitReply: ...

    def close(self) -> None: ...


class ResultBatcher:
    """Collects the outcomes of a slot's tasks.

    Attributes:
        outbox: holds them, too, until they are sent.
        results: those of the segment under way; the loop over a run's tasks appends to it.
        due: when they are sent at the latest.
        next: the serial that is reported next.
        last_lines: called before outcomes go, to send what their tasks have logged.
    """

    def __init__(self, link: SupervisorLink, outbox: OutboxWriter, limit: TimeLimit) -> None:
        self.outbox = outbox
        self.results: list[bytes | Blob] = []
        self.due = 0.0
        self.next = 0
        self.last_lines: Callable[[], None] = _nothing
        self._link = link
        self._limit = limit
        self._done: list[SlotSegment] = []
        self._failed: list[SlotFailure] = []
        self._first = 0  # serial of results[0]
        self._entry = 0  # its place in the outbox
        self._began = 0.0
        self._idle = 0.0
        self._waiting_since = time.monotonic()
        self._progress_due = 0.0
        self._withheld: SlotProgress | None = None

    def begin(self, first: int) -> None:
        """Begin a segment: a run of tasks begins with this serial."""
        if first != self.next:
            self.flush()
            self.next = first
        now = time.monotonic()
        self._close_segment(now)
        if not self.outbox.index:
            self.outbox.begin(first, now)
        self._first = first

    def room(self) -> tuple[list[bytes | Blob], float, int, int, int]:
        """Return where the next result goes: results, due, a first record's word, index, offset."""
        outbox = self.outbox
        self._entry = outbox.index
        return self.results, self.due, outbox.tag | BREAK, outbox.index, outbox.offset

    def add(self, result: bytes | Blob, flags: int) -> None:
        """Add the result of the task `next`."""
        now = time.monotonic()
        if not self.results:
            self._entry = self.outbox.index
        self.results.append(result)
        self.next += 1
        if isinstance(result, Blob) or not self.outbox.append(result, flags, now) or now > self.due:
            self.flush()

    def fail(self, failure: SlotFailure) -> None:
        """Add the failure of the task `next`, which is `failure.serial`, after any results before it."""
        now = time.monotonic()
        self._close_segment(now)
        self._failed.append(failure)
        self.next = self._first = failure.serial + 1
        if not self.outbox.append(_ENCODE(failure), FAILURE, now) or now > self.due:
            self.flush()

    def elapsed(self) -> float:
        """Return the seconds since the segment began, which its latest task and those before it took."""
        return time.monotonic() - self._began

    def flush(self) -> None:
        if self._withheld is not None:
            self._send_progress(self._withheld)
        self.last_lines()
        now = time.monotonic()
        self._close_segment(now)
        self._first = self.next
        if self._done or self._failed:
            self._send(messages.RESULTS, SlotResults(self._done, self._failed, now, self._idle))
            self._done, self._failed, self._idle = [], [], 0.0
            now = self._began = time.monotonic()
            self.outbox.reset(self.next, now)
        self.due = now + FLUSH_AFTER

    def before_wait(self) -> None:
        self.flush()
        self._waiting_since = time.monotonic()

    def after_wait(self) -> float:
        """Begin anew when work has come; return how many seconds it was waited for."""
        now = self._began = time.monotonic()
        waited = now - self._waiting_since
        self._idle += waited
        self.due = now + FLUSH_AFTER
        return waited

    def progress(self, serial: int, done: float, total: float) -> None:
        """Send how far a task is, at most every 50 ms: a tight loop must not drown the supervisor.

        The last one is sent before the task's outcome.
        """
        now = time.monotonic()
        news = SlotProgress(serial, done, total)
        if self._withheld is not None and self._withheld.serial != serial:
            self._send_progress(self._withheld)
        self._withheld = news
        if now >= self._progress_due or (total and done >= total):
            self._progress_due = now + _PROGRESS_EVERY
            self._send_progress(news)
        else:
            self.due = 0.0  # the outcome is sent at once, and this before it

    def _send_progress(self, news: SlotProgress) -> None:
        self._withheld = None
        self._send(messages.PROGRESS, news)

    def log(self, serial: int, line: LogLine) -> None:
        """Send a line that a task has logged: it comes before the task's outcome."""
        self.send_lines(serial, [line])

    def send_lines(self, serial: int, lines: list[LogLine]) -> None:
        """Send lines of a task's log."""
        self._send(messages.LOGS, SlotLogs(serial, lines))

    def _send(self, kind: int, message: FromSlot) -> None:
        self._limit.block()
        try:
            self._link.send(kind, message)
        finally:
            self._limit.unblock()

    def close_after_fork(self) -> None:
        """Report nothing any more, in a child that a task has forked."""
        self.outbox.close_after_fork()
        self._link.close()

    def _close_segment(self, now: float) -> None:
        """End the segment. If its last task took long, that is one by itself: all would pass for as long."""
        results, clocks = self.results, self.outbox.clocks
        if results:
            last, ended = len(results) - 1, now
            if self.outbox.index - self._entry > last:  # a task that has failed since took the rest
                ended = clocks[self._entry + last]
            if last and ended - (before := clocks[self._entry + last - 1]) >= LONG:
                self._done.append(SlotSegment(self._first, results[:last], before - self._began))
                self._done.append(SlotSegment(self._first + last, results[last:], ended - before))
            else:
                self._done.append(SlotSegment(self._first, results, ended - self._began))
            self.results = []
        self._began = now
