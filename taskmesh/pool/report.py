"""What a slot has to tell its supervisor: results and failures on their way, and when they are sent."""

from __future__ import annotations

import time
from typing import Final, Protocol

import msgspec

from taskmesh.pool import orders
from taskmesh.pool.limits import TimeLimit
from taskmesh.pool.outbox import BREAK, DATA, FAILURE, OutboxWriter
from taskmesh.shm.blob import Blob
from taskmesh.wire.slot_messages import FromSlot, SlotFailure, SlotProgress, SlotResults, SlotSegment

FLUSH_AFTER: Final = 0.002
"""Seconds after which results are sent although more tasks wait."""

FLUSH_OFFSET: Final = DATA + (256 << 10)
"""The outbox's offset up to which results are collected."""

_PROGRESS_EVERY: Final = 0.05
_ENCODE: Final = msgspec.msgpack.Encoder().encode


class Link(Protocol):
    """The way to the supervisor."""

    def send(self, kind: int, message: FromSlot) -> None:
        """Sends a message; waits until there is room for it."""
        ...

    def ask(self, serial: int) -> orders.Answer:
        """Asks for a place for the tasks of the running one; waits for the answer."""
        ...

    def close(self) -> None:
        """Closes the descriptor."""
        ...


class Report:
    """Collects what a slot's tasks come to.

    Attributes:
        outbox: where it is also put until it is sent. results: of the segment under way, which the execution
        loop
            appends to. due: when they are to be sent at the latest. next: the serial that is reported next.
    """

    def __init__(self, link: Link, outbox: OutboxWriter, limit: TimeLimit) -> None:
        self.outbox = outbox
        self.results: list[bytes | Blob] = []
        self.due = 0.0
        self.next = 0
        self._link = link
        self._limit = limit
        self._done: list[SlotSegment] = []
        self._failed: list[SlotFailure] = []
        self._first = 0  # serial of results[0]
        self._began = 0.0
        self._idle = 0.0
        self._resting = time.monotonic()
        self._progress_due = 0.0
        self._withheld: SlotProgress | None = None

    def begin(self, first: int) -> None:
        """A run of tasks begins with this serial, and with it a segment."""
        if first != self.next:
            self.flush()
            self.next = first
        now = time.monotonic()
        self._close_segment(now)
        if not self.outbox.index:
            self.outbox.begin(first, now)
        self._first = first

    def room(self) -> tuple[list[bytes | Blob], float, int, int, int]:
        """Where the next result goes: (results, due, the outbox's word for a first record, index, offset)."""
        outbox = self.outbox
        return self.results, self.due, outbox.tag | BREAK, outbox.index, outbox.offset

    def add(self, result: bytes | Blob, flags: int) -> None:
        """Adds the result of the task `next`."""
        now = time.monotonic()
        self.results.append(result)
        self.next += 1
        if isinstance(result, Blob) or not self.outbox.append(result, flags, now) or now > self.due:
            self.flush()

    def fail(self, failure: SlotFailure) -> None:
        """Adds the failure of the task `next`, which is `failure.serial`, after any results before it."""
        now = time.monotonic()
        self._close_segment(now)
        self._failed.append(failure)
        self.next = self._first = failure.serial + 1
        if not self.outbox.append(_ENCODE(failure), FAILURE, now) or now > self.due:
            self.flush()

    def elapsed(self) -> float:
        """Seconds since the segment began: what its latest task took, and those before it."""
        return time.monotonic() - self._began

    def flush(self) -> None:
        """Sends everything."""
        if self._withheld is not None:
            self._tell(self._withheld)
        now = time.monotonic()
        self._close_segment(now)
        self._first = self.next
        if self._done or self._failed:
            message = SlotResults(self._done, self._failed, now, self._idle)
            self._limit.hold_off()
            try:
                self._link.send(orders.RESULTS, message)
            finally:
                self._limit.let_on()
            self._done, self._failed, self._idle = [], [], 0.0
            now = self._began = time.monotonic()
            self.outbox.reset(self.next, now)
        self.due = now + FLUSH_AFTER

    def rest(self) -> None:
        """Called before a wait for work."""
        self.flush()
        self._resting = time.monotonic()

    def resume(self) -> float:
        """Called when work has come; returns how many seconds it was waited for."""
        now = self._began = time.monotonic()
        rested = now - self._resting
        self._idle += rested
        self.due = now + FLUSH_AFTER
        return rested

    def progress(self, serial: int, done: float, total: float) -> None:
        """Sends how far a task is, at most every 50 ms: a tight loop must not drown the supervisor.

        The last one is sent before the task's outcome.
        """
        now = time.monotonic()
        news = SlotProgress(serial, done, total)
        if self._withheld is not None and self._withheld.serial != serial:
            self._tell(self._withheld)
        self._withheld = news
        if now >= self._progress_due or (total and done >= total):
            self._progress_due = now + _PROGRESS_EVERY
            self._tell(news)
        else:
            self.due = 0.0  # the outcome is sent at once, and this before it

    def _tell(self, news: SlotProgress) -> None:
        self._withheld = None
        self._limit.hold_off()
        try:
            self._link.send(orders.PROGRESS, news)
        finally:
            self._limit.let_on()

    def disown(self) -> None:
        """In a child that a task has forked: nothing can be reported any more."""
        self.outbox.disown()
        self._link.close()

    def _close_segment(self, now: float) -> None:
        if self.results:
            self._done.append(SlotSegment(self._first, self.results, now - self._began))
            self.results = []
        self._began = now
