"""The thread that writes a journal: the hub's loop hands changes over and never waits.

What gathers while a transaction is on its way becomes the next one, so a slow store makes transactions
larger, not more. What the store has not confirmed stays in memory, in order, however long the store is away.

    connected    it writes
    away         it tries to reach the store, with pauses
    regressed    the store has lost what it had confirmed: the loop answers with `JournalWriter.replace`
    superseded   another hub has the journal: the loop must stop; nothing is written any more
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from taskmesh.hub.journal.store import Changes, JournalRegressed, JournalStore, JournalSuperseded, Opened

BACKLOG_BYTES: Final = 256 << 20
BATCH_BYTES: Final = 8 << 20
"""The most that goes into one transaction, a hand-over at least."""
HANDED, ENTRY = 512, 128
"""Bytes that Python takes for a hand-over, and for each of its changes, besides keys and values."""
SYNC: Final = 1.0
"""Seconds after which what is written is synced, unless the tier is strict."""
IDLE: Final = 1.0
"""Seconds without work after which the store is looked at: another hub may have taken the journal over."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between tries to reach a store that is away; each pause is twice as long as the one before."""
CUT: Final = 1.0
"""Seconds that a store may take to close after the deadline."""


class JournalState(StrEnum):
    """The state of a writer, as the module describes it."""

    CONNECTED = "connected"
    AWAY = "away"
    REGRESSED = "regressed"
    SUPERSEDED = "superseded"


class _Batch:
    """Changes that were handed over, and become one transaction."""

    __slots__ = ("changes", "image", "last", "since", "weight")

    def __init__(
        self, last: int, changes: Changes, weight: int, image: Mapping[bytes, bytes] | None = None
    ) -> None:
        self.last = last
        self.changes = changes
        self.weight = weight
        self.image = image
        self.since = time.monotonic()

    def add(self, later: _Batch) -> None:
        """Take in what was handed over later; an image takes the place of all before it."""
        self.last = later.last
        self.weight += later.weight
        if later.image is None:
            self.changes.merge(later.changes)
        else:
            self.changes, self.image = later.changes, later.image


class JournalWriter:
    """A journal's store in a thread of its own.

    The hub's loop, one thread, calls everything here; nothing but `close` blocks. There is no lock: a thread
    that holds one may have to wait for the interpreter, and the loop then would, too.

    Args:
        store: opened, and loaded if it is to be loaded; from `start` on the thread alone uses it.
        opened: what `store.open` returned.
        strict: a transaction that the store has confirmed is on disk.
        wake: wakes the loop; called by the thread when `confirmed` has risen or `changed` is set.
        limit: bytes of unconfirmed changes above which the writer calls itself full.

    Attributes:
        confirmed: the position up to which the tier has given its word: 0, or one that `put` returned.
        synced: the position up to which a loss of power takes nothing.
        epoch: the epoch of the opening; it rises when a journal that has regressed is opened again.
        changed: `status` has something new to say.
    """

    def __init__(
        self,
        store: JournalStore,
        opened: Opened,
        *,
        strict: bool,
        wake: Callable[[], object],
        limit: int = BACKLOG_BYTES,
    ) -> None:
        self.confirmed = self.synced = 0
        self.epoch, self._number = opened
        self.changed = True
        self._store, self._strict, self._wake, self._limit = store, strict, wake, limit
        # the loop's
        self._position = 0
        self._taken_over = 0
        # between the two
        self._handed: deque[_Batch] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = False
        self._news: deque[tuple[str, dict[str, object]]] = deque()
        self._closing, self._over = threading.Event(), threading.Event()
        self._until = float("inf")
        # the thread's
        self._held: _Batch | None = None
        self._settled = 0
        self._state, self._why = JournalState.CONNECTED, ""
        self._broken = self._lost = False
        self._pause = FIRST_PAUSE
        self._healed = 0.0
        self._unsynced_since = float("inf")
        self._transactions = 0
        self._thread = threading.Thread(target=self._work, name="taskmesh-journal", daemon=True)

    # --- the loop's thread --------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def put(self, changes: Changes) -> int:
        """Hand changes over; they belong to the writer from now on.

        Returns:
            Their position: they are stored as the tier promises once `confirmed` has reached it. Empty ones
            have the position of those before them.
        """
        if changes:
            entries = len(changes.puts) + len(changes.drops)
            self._hand_over(changes, HANDED + ENTRY * entries + changes.size, None)
        return self._position

    def replace(self, image: Mapping[bytes, bytes]) -> int:
        """Hand over all that the journal is to have, in place of what is stored and of what waits.

        It is the answer to `REGRESSED`, and must not be changed afterwards.

        Returns:
            The position of this image.
        """
        size = sum(len(key) + len(value) for key, value in image.items())
        self._hand_over(Changes(), HANDED + ENTRY * len(image) + size, image)
        return self._position

    def _hand_over(self, changes: Changes, weight: int, image: Mapping[bytes, bytes] | None) -> None:
        self._position += 1
        if self._state is JournalState.SUPERSEDED:
            return
        self._taken_over += weight
        self._handed.append(_Batch(self._position, changes, weight, image))
        if self._asleep:  # in this order, and in the opposite one in `_wait`: nothing is overlooked
            self._asleep = False
            self._bell.put(None)

    @property
    def state(self) -> JournalState:
        """The state of the store, as far as it is known."""
        return self._state

    @property
    def backlog_bytes(self) -> int:
        """Bytes that are handed over and not confirmed, with what Python takes for them."""
        return self._taken_over - self._settled

    @property
    def is_full(self) -> bool:
        """True if the hub should accept no new durable work; `put` takes what ends or moves old work."""
        return self.backlog_bytes > self._limit

    @property
    def lag(self) -> float:
        """Seconds for which the oldest unconfirmed changes have waited."""
        try:
            oldest = self._held or self._handed[0]
        except IndexError:  # nothing waits, or the thread has just taken it
            return 0.0
        return max(0.0, time.monotonic() - oldest.since)

    def status(self) -> tuple[dict[str, object], list[tuple[str, dict[str, object]]]]:
        """Return the writer's state in plain data, with what is worth telling since the last call."""
        self.changed = False
        news = [self._news.popleft() for _ in range(len(self._news))]
        unsynced = time.monotonic() - self._unsynced_since
        return {
            "state": str(self._state),
            "why": self._why,
            "epoch": self.epoch,
            "number": self._number,
            "transactions": self._transactions,
            "waiting": self._position - self.confirmed,
            "waiting_bytes": self.backlog_bytes,
            "full": self.is_full,
            "lag": round(self.lag, 3),
            "unsynced": round(max(0.0, unsynced), 3),
        }, news

    def close(self, timeout: float) -> bool:
        """Write what waits within `timeout` seconds, and end the thread and close the store.

        Returns:
            True if all that was handed over is confirmed and synced.
        """
        self._until = time.monotonic() + timeout
        self._closing.set()
        self._bell.put(None)
        if self._thread.ident is None:
            self._store.close()
            return self.synced == self._position
        self._thread.join(timeout)
        self._over.set()
        if self._thread.is_alive():  # in a call to the store; its `close` may wait for the same disk
            cut = threading.Thread(target=self._store.close, name="taskmesh-journal-close", daemon=True)
            cut.start()
            cut.join(CUT)
            self._thread.join(CUT)
        return self.synced == self._position

    # --- the writer's thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._is_over():
            try:
                self._turn()
            except JournalSuperseded as error:
                self._supersede(error)
                break
            except JournalRegressed as error:
                self._regress(error)
            except Exception as error:  # noqa: BLE001  a thread that ended would leave all tasks unaccepted
                self._part(error)
        self._store.close()

    def _is_over(self) -> bool:
        if not self._closing.is_set():
            return False
        if time.monotonic() >= self._until or self._over.is_set():
            return True
        if self._held is not None or self._handed:
            return False
        return self._lost or self.synced == self.confirmed

    def _turn(self) -> None:
        if self._lost:
            self._begin_anew()
        elif self._broken:
            self._rejoin()
        elif (batch := self._held or self._take()) is not None:
            self._write(batch)
        else:
            self._look_after()

    def _take(self) -> _Batch | None:
        """Take what has gathered in hand; wait for it for as long as nothing else is due."""
        if not self._handed:
            due = self._unsynced_since + SYNC - time.monotonic()
            self._wait(max(0.0, min(IDLE, due)))
        if not self._handed:
            return None
        batch = self._held = self._handed.popleft()
        while self._handed and batch.weight < BATCH_BYTES and batch.image is None:
            batch.add(self._handed.popleft())
        return batch

    def _wait(self, seconds: float) -> None:
        """Wait until something is handed over, or the loop closes the writer."""
        self._asleep = True
        try:
            if not self._handed and not self._closing.is_set():
                self._bell.get(timeout=seconds)
        except queue.Empty:
            pass
        finally:
            self._asleep = False

    def _write(self, batch: _Batch) -> None:
        if batch.image is None:
            self._store.write(self._number + 1, batch.changes)
        else:
            self._store.replace(self._number + 1, batch.image)
        self._settle(batch)
        if time.monotonic() >= self._unsynced_since + SYNC:
            self._sync()

    def _settle(self, batch: _Batch) -> None:
        """The store has confirmed what is in hand."""
        self._number += 1
        self._transactions += 1
        self._held = None
        self._settled += batch.weight
        self.confirmed = batch.last
        if self._strict:
            self.synced = batch.last
        else:
            self._unsynced_since = min(self._unsynced_since, time.monotonic())
        self._is_well()
        self._wake()

    def _look_after(self) -> None:
        """Sync what is written, or look at the store when there is nothing to do."""
        if self.synced < self.confirmed:
            self._sync()
        elif not self._closing.is_set():
            self._store.check()
        self._is_well()

    def _sync(self) -> None:
        self._store.sync()
        self.synced = self.confirmed
        self._unsynced_since = float("inf")

    # --- what goes wrong ----------------------------------------------------------------------------------

    def _part(self, error: Exception) -> None:
        """The store cannot be used now."""
        self._broken = True
        why = str(error) or type(error).__name__
        if self._state is not JournalState.AWAY:
            self._tell(JournalState.AWAY, why)
        elif why != self._why:
            self._why, self.changed = why, True
        self._rest()

    def _rest(self) -> None:
        """Wait before the next try, longer each time; less if the writer is closed meanwhile."""
        left = max(0.0, self._until - time.monotonic())
        (self._over if self._closing.is_set() else self._closing).wait(min(self._pause, left))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._healed = float("inf")

    def _rejoin(self) -> None:
        """Make a new link. What is in hand is written again: the store knows by the number if it has it."""
        self._store.rejoin(self._number)
        self._broken = False
        if self._held is None:
            self._is_well()

    def _is_well(self) -> None:
        """The store has done something; a store that comes and goes is not tried more often for that."""
        now = time.monotonic()
        if self._healed == float("inf"):
            self._healed = now
        elif self._pause > FIRST_PAUSE and now - self._healed > LONGEST_PAUSE:
            self._pause = FIRST_PAUSE
        if self._state is not JournalState.CONNECTED:
            self._tell(JournalState.CONNECTED, "")

    def _regress(self, error: Exception) -> None:
        """Ask the loop for all that should be stored: what was confirmed is not there."""
        self._lost, self._broken = True, False
        self._unsynced_since = float("inf")
        if self._held is not None and self._held.image is not None:  # that is still all, with what waits
            self._why = str(error)
            self._rest()
            return
        self._discard(self._held)
        self._held = None
        self._tell(JournalState.REGRESSED, str(error))

    def _begin_anew(self) -> None:
        """Wait for the loop's image, which contains all that was handed over before it; open again for it."""
        if self._held is None:
            self._wait(IDLE)
            while self._handed and self._held is None:
                batch = self._handed.popleft()
                if batch.image is None:
                    self._discard(batch)
                else:
                    self._held = batch
        if self._held is not None:
            self.epoch, self._number = self._store.open(self.epoch)
            self._lost = self._broken = False

    def _discard(self, batch: _Batch | None) -> None:
        if batch is not None:
            self._settled += batch.weight

    def _supersede(self, error: Exception) -> None:
        self._discard(self._held)
        self._held = None
        self._tell(JournalState.SUPERSEDED, str(error))
        while self._handed:
            self._discard(self._handed.popleft())

    def _tell(self, state: JournalState, why: str) -> None:
        self._state, self._why = state, why
        self._news.append((f"journal.{state}", {"why": why} if why else {}))
        self.changed = True
        self._wake()
