"""A store with a thread of its own: it reads once, then writes what comes, and is away when its link is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from taskmesh.stores.write_queue import QueuedOutcome, WriteQueue
from taskmesh.wire.runs import Kept

QUEUE_BYTES: Final = 64 << 20
BATCH, BATCH_BYTES = 500, 4 << 20
"""What is written at once, an entry at least."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between tries to reach a store that is away; each pause is twice as long as the one before."""
IDLE = 2.0
"""Seconds without work after which the link is looked at."""
AT_ONCE, EVERY = 10, 10.0
"""News of a kind that are status one by one, and seconds between two after that."""
TRIES = 3
"""How often a link that answered may break while the same batch is written, before the batch is given up."""

Found = Callable[[float, Kept], None]
Skipped = Callable[[str], None]


class StoreUnavailable(Exception):
    """Internal: the store cannot be used now, for the reason given, with what to do where that is known.

    Attributes:
        broken: a link that had answered broke, so perhaps of what was written.
    """

    def __init__(self, reason: str, *, broken: bool = False) -> None:
        super().__init__(reason)
        self.broken = broken


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a batch.

    Attributes:
        stored: the number of outcomes that were stored.
        refused: the number of outcomes that the store will never take.
        reason: the reason for that, in words.
    """

    stored: int
    refused: int = 0
    reason: str = ""


class StoreLink(Protocol):
    """The way to one store.

    All but `disconnect` are called by the writer's thread alone, and raise StoreUnavailable.
    """

    def open(self) -> None:
        """Makes a new link, and waits for a sign of life on it."""
        ...

    def read(self, limit: int, found: Found, skipped: Skipped, stop: Callable[[], bool]) -> None:
        """Tells what is stored, `limit` bytes at most, until `stop` says so; and why something is left."""
        ...

    def write(self, entries: Sequence[QueuedOutcome]) -> Written:
        """Stores entries."""
        ...

    def check(self) -> None:
        """Waits for a sign of life."""
        ...

    def disconnect(self) -> None:
        """Closes the link; from any thread, also while another one waits on it."""
        ...


class WritingStore:
    """`ports.OutcomeStore` over a link.

    Args:
        link: the link to the store.
        shown: the store's address, for people.
        limit: bytes that may wait to be written.
    """

    def __init__(self, link: StoreLink, shown: str, limit: int = QUEUE_BYTES) -> None:
        self.changed = True
        self._link = link
        self._queue = WriteQueue(limit)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("stored", "dropped", "loaded", "skipped"), 0)
        self._view: dict[str, object] = {"store": shown, "state": "away", "why": "not reached yet"}
        self._news: list[tuple[str, dict[str, object]]] = []
        self._tellings: dict[str, tuple[int, float]] = {}
        self._found: list[tuple[float, Kept]] = []
        self._wanted = 0
        self._is_read = threading.Event()
        self._enough = threading.Event()
        self._odd = ""
        self._told = ""
        self._until = float("inf")
        self._thread = threading.Thread(target=self._work, name="taskmesh-store", daemon=True)

    # --- the hub's thread ---------------------------------------------------------------------------------

    def load(self, limit: int, timeout: float) -> list[tuple[float, Kept]]:
        """Starts the thread; what it has read within `timeout` seconds."""
        self._wanted = limit
        self._thread.start()
        in_time = self._is_read.wait(timeout)
        self._enough.set()
        with self._lock:
            found, self._found = self._found, []
            self._counts["loaded"] = len(found)
            if not in_time:
                why = str(self._view["why"]) or "it is slow"
                self._tell("store.not_loaded", {"seconds": timeout, "loaded": len(found), "why": why})
            if self._counts["skipped"]:
                self._tell("store.skipped", {"entries": self._counts["skipped"], "why": self._odd})
        return sorted(found, key=lambda entry: entry[0])

    def put(self, entries: Sequence[tuple[float, Kept]]) -> None:
        """Has entries written; the oldest that wait are dropped when there is no room."""
        self._count("dropped", self._queue.put(entries))

    def status(self) -> tuple[dict[str, object], list[tuple[str, dict[str, object]]]]:
        """State, counts and news."""
        with self._lock:
            self.changed = False
            news, self._news = self._news, []
            waits = {"waiting": len(self._queue), "waiting_bytes": self._queue.size}
            return {**self._view, **self._counts, **waits}, news

    def close(self, timeout: float) -> None:
        """Has what waits written within `timeout` seconds, if the store is there, and ends the thread."""
        self._until = time.monotonic() + timeout
        self._enough.set()
        self._queue.close()
        if not self._thread.ident:
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._link.disconnect()
            self._thread.join(1.0)

    # --- the writer's thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        pause, tries = FIRST_PAUSE, 0
        while not self._is_over():
            try:
                self._link.open()
                self._read()
                while not self._is_over():
                    self._turn()
                    pause, tries = FIRST_PAUSE, 0
            except StoreUnavailable as away:
                self._link.disconnect()
                self._is_away(str(away))
                tries += away.broken and self._queue.in_hand > 0
            if tries >= TRIES:
                tries = 0
                self._count("dropped", self._queue.ack())
            if self._queue.closed:
                break
            self._queue.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        self._link.disconnect()

    def _is_over(self) -> bool:
        closed = self._queue.closed
        return closed and (not len(self._queue) or time.monotonic() >= self._until)

    def _turn(self) -> None:
        """Writes a batch, or looks at the link when there is none."""
        batch = self._queue.take(BATCH, BATCH_BYTES, IDLE)
        if not batch:
            self._link.check()
            self._is_there()
            return
        written = self._link.write(batch)
        self._queue.ack()
        self._count("stored", written.stored)
        self._count("dropped", len(batch) - written.stored)
        self._is_there(well=not written.refused)
        if written.refused:
            self._tell_once("store.refused", written.reason)

    def _read(self) -> None:
        """The first time that the store is there, if that is in time."""
        if self._is_read.is_set() or self._enough.is_set():
            return
        with self._lock:
            self._found.clear()
            self._counts["skipped"] = 0
        self._link.read(self._wanted, self._take, self._skip, self._enough.is_set)
        self._is_there()
        self._is_read.set()

    def _take(self, until: float, kept: Kept) -> None:
        with self._lock:
            if not self._enough.is_set():
                self._found.append((until, kept))

    def _skip(self, why: str) -> None:
        self._odd = self._odd or why
        self._count("skipped", 1)

    # --- state --------------------------------------------------------------------------------------------

    def _count(self, what: str, count: int) -> None:
        with self._lock:
            self._counts[what] += count
            self.changed = True

    def _is_there(self, *, well: bool = True) -> None:
        with self._lock:
            if self._view["state"] != "connected":
                self._view = {**self._view, "state": "connected", "why": ""}
                self._tell("store.connected", {"store": self._view["store"]})
            if well:
                self._told = ""

    def _is_away(self, why: str) -> None:
        with self._lock:
            self._view = {**self._view, "state": "away", "why": why}
            self.changed = True
        self._tell_once("store.away", why)

    def _tell_once(self, kind: str, why: str) -> None:
        """Tells a reason, unless it is the one that was status last."""
        with self._lock:
            if why != self._told:
                self._told = why
                self._tell(kind, {"store": self._view["store"], "why": why})

    def _tell(self, kind: str, fields: dict[str, object]) -> None:
        """Tells, unless a store that comes and goes would fill the log."""
        count, quiet = self._tellings.get(kind, (0, 0.0))
        now = time.monotonic()
        if count < AT_ONCE or now >= quiet:
            self._tellings[kind] = (count + 1, now + EVERY)
            self._news.append((kind, fields))
            self.changed = True
