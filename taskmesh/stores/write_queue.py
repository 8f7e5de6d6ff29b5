"""The queue of a store's writer: bounded in bytes; the oldest entry is dropped if there is no room."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from taskmesh.wire.runs import Kept

SMALLEST = 256
"""Bytes that an entry is counted for besides its payload."""


@dataclass(frozen=True, slots=True)
class QueuedOutcome:
    """An outcome, until when it is kept (CLOCK_MONOTONIC), and the bytes it is counted for."""

    until: float
    kept: Kept
    size: int


class WriteQueue:
    """A queue between the hub's thread, which never waits, and the writer's.

    What the writer has in hand counts as waiting until it says what became of it.

    Args:
        limit: bytes that may wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: deque[QueuedOutcome] = deque()
        self._size = 0
        self._held: list[QueuedOutcome] = []
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._entries) + len(self._held)

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._size

    def put(self, entries: Sequence[tuple[float, Kept]]) -> int:
        """Add entries; return the number of the oldest ones that were dropped to make room."""
        dropped = 0
        with self._changed:
            for until, kept in entries:
                size = size_of(kept)
                if size > self._limit:  # it would cost all others their place, and then its own
                    dropped += 1
                    continue
                self._entries.append(QueuedOutcome(until, kept, size))
                self._size += size
            while self._size > self._limit and self._entries:
                self._size -= self._entries.popleft().size
                dropped += 1
            self._changed.notify_all()
        return dropped

    @property
    def in_hand(self) -> int:
        """Entries that the writer has and has not settled."""
        return len(self._held)

    def take(self, most: int, size: int, timeout: float) -> list[QueuedOutcome]:
        """Return what the writer has in hand already, or else up to `most` entries of some `size` bytes.

        Empty when nothing has come for `timeout` seconds, or the queue is closed and empty.
        """
        with self._changed:
            if self._held:
                return list(self._held)
            if not self._entries and not self._closed:
                self._changed.wait(timeout)
            taken = 0
            while self._entries and taken < size and len(self._held) < most:
                entry = self._entries.popleft()
                self._held.append(entry)
                taken += entry.size
            return list(self._held)

    def ack(self) -> int:
        """The writer is through with what it has in hand; returns how many that were."""
        with self._changed:
            count = len(self._held)
            self._size -= sum(entry.size for entry in self._held)
            self._held.clear()
            return count

    def pause(self, seconds: float) -> None:
        """Waits, but no longer than until the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    @property
    def closed(self) -> bool:
        """True if nothing more comes."""
        return self._closed

    def close(self) -> None:
        """Nothing more comes: nobody needs to wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def size_of(kept: Kept) -> int:
    """Bytes that an outcome is counted for."""
    size = SMALLEST + sum(len(payload) for run in kept.done for payload in run.payloads)
    return size + sum(len(bad.pickled) + len(bad.traceback) + len(bad.text) for bad in kept.failed)
