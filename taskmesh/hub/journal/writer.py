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
from taskmesh.messages.status import JournalStatus

BACKLOG_BYTES: Final = 256 << 20
"""Bytes of unconfirmed changes above which the writer calls itself full."""
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

    def __init__(self, last: int, changes: Changes, image: Mapping[bytes, bytes] | None) -> None:
        self.last = last
        self.changes = changes
        self.weight = HANDED + ENTRY * (len(changes.puts) + len(changes.drops)) + changes.size
        if image is not None:
            self.weight += ENTRY * len(image) + sum(len(key) + len(value) for key, value in image.items())
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


class Unconfirmed:
    """Changes on their way from the hub's loop through the writer's thread to the store, in order.

    There is no lock: a thread that holds one may have to wait for the interpreter, and the loop then would,
    too.

    Attributes:
        position: of what the loop has handed over last; 0 before anything.
        held: what the thread has in hand.
    """

    def __init__(self) -> None:
        self.position = 0
        self.held: _Batch | None = None
        self._handed: deque[_Batch] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asleep = self._ended = False
        self._taken_over = 0  # the loop's count of bytes
        self._settled = 0  # the thread's

    def __bool__(self) -> bool:
        return self.held is not None or bool(self._handed)

    # --- the loop's thread --------------------------------------------------------------------------------

    def put(self, changes: Changes, image: Mapping[bytes, bytes] | None = None) -> int:
        """Hand changes over, or an image in place of all; return their position."""
        self.position += 1
        if not self._ended:
            batch = _Batch(self.position, changes, image)
            self._taken_over += batch.weight
            self._handed.append(batch)
            if self._asleep:  # in this order, and in the opposite one in `wait`: nothing is overlooked
                self._asleep = False
                self.ring()
        return self.position

    def ring(self) -> None:
        """End the thread's wait, this one or the next."""
        self._bell.put(None)

    @property
    def size(self) -> int:
        """Bytes of the changes, with what Python takes for them."""
        return self._taken_over - self._settled

    @property
    def lag(self) -> float:
        """Seconds for which the oldest changes have waited."""
        try:
            oldest = self.held or self._handed[0]
        except IndexError:  # nothing waits, or the thread has just taken it
            return 0.0
        return max(0.0, time.monotonic() - oldest.since)

    # --- the writer's thread ------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait until something is handed over, or somebody rings."""
        self._asleep = True
        try:
            if not self._handed:
                self._bell.get(timeout=seconds)
        except queue.Empty:
            pass
        finally:
            self._asleep = False

    def take(self) -> _Batch | None:
        """Return what is in hand; if that is nothing, take what has gathered."""
        if self.held is None and self._handed:
            batch = self.held = self._handed.popleft()
            while self._handed and batch.weight < BATCH_BYTES and batch.image is None:
                batch.add(self._handed.popleft())
        return self.held

    def take_image(self) -> _Batch | None:
        """Return the image in hand; if there is none, take the next, which contains all from before it."""
        while self.held is None and self._handed:
            self.held = self._handed.popleft()
            if self.held.image is None:
                self.release()
        return self.held

    def release(self) -> None:
        """Let go of what is in hand: it is confirmed, or given up."""
        if self.held is not None:
            self._settled += self.held.weight
            self.held = None

    def end(self) -> None:
        """Give up all, and all that is still handed over."""
        self._ended = True
        while self.take() is not None:
            self.release()


class JournalWriter:
    """A journal's store in a thread of its own.

    The hub's loop, one thread, calls everything here; nothing but `close` blocks.

    Args:
        store: opened, and loaded if it is to be loaded; from `start` on the thread alone uses it.
        opened: what `store.open` returned.
        strict: a transaction that the store has confirmed is on disk.
        wake: wakes the loop; called by the thread when `confirmed` has risen or `changed` is set.

    Attributes:
        confirmed: the position up to which the tier has given its word: 0, or one that `put` returned.
        synced: the position up to which a loss of power takes nothing.
        epoch: the epoch of the opening; it rises when a journal that has regressed is opened again.
        changed: `status` has something new to say.
        unconfirmed: what is handed over and not confirmed.
    """

    def __init__(
        self, store: JournalStore, opened: Opened, *, strict: bool, wake: Callable[[], object]
    ) -> None:
        self.confirmed = self.synced = 0
        self.epoch, self._number = opened
        self.changed = True
        self._store, self._strict, self._wake = store, strict, wake
        # between the two
        self.unconfirmed = Unconfirmed()
        self._news: deque[tuple[str, dict[str, object]]] = deque()
        self._closing, self._over = threading.Event(), threading.Event()
        self._until = float("inf")
        # the thread's
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
        return self.unconfirmed.put(changes) if changes else self.unconfirmed.position

    def replace(self, image: Mapping[bytes, bytes]) -> int:
        """Hand over all that the journal is to have, in place of what is stored and of what waits.

        It is the answer to `REGRESSED`, and must not be changed afterwards.

        Returns:
            The position of this image.
        """
        return self.unconfirmed.put(Changes(), image)

    @property
    def state(self) -> JournalState:
        """The state of the store, as far as it is known."""
        return self._state

    @property
    def is_full(self) -> bool:
        """True if the hub should accept no new durable work; `put` takes what ends or moves old work."""
        return self.unconfirmed.size > BACKLOG_BYTES

    def status(self) -> tuple[JournalStatus, list[tuple[str, dict[str, object]]]]:
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
            "waiting": self.unconfirmed.position - self.confirmed,
            "waiting_bytes": self.unconfirmed.size,
            "full": self.is_full,
            "lag": round(self.unconfirmed.lag, 3),
            "unsynced": round(max(0.0, unsynced), 3),
        }, news

    def close(self, timeout: float) -> bool:
        """Write what waits within `timeout` seconds, and end the thread and close the store.

        Returns:
            True if all that was handed over is confirmed and synced.
        """
        self._until = time.monotonic() + timeout
        self._closing.set()
        self.unconfirmed.ring()
        if self._thread.ident is None:
            self._store.close()
            return self.synced == self.unconfirmed.position
        self._thread.join(timeout)
        self._over.set()
        if self._thread.is_alive():  # in a call to the store; its `close` may wait for the same disk
            cut = threading.Thread(target=self._store.close, name="taskmesh-journal-close", daemon=True)
            cut.start()
            cut.join(CUT)
            self._thread.join(CUT)
        return self.synced == self.unconfirmed.position

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
        if self.unconfirmed:
            return False
        return self._lost or self.synced == self.confirmed

    def _turn(self) -> None:
        if self._lost:
            self._begin_anew()
        elif self._broken:
            self._rejoin()
        elif (batch := self._take()) is not None:
            self._write(batch)
        else:
            self._look_after()

    def _take(self) -> _Batch | None:
        """Take what has gathered in hand; wait for it for as long as nothing else is due."""
        if not self.unconfirmed:
            due = self._unsynced_since + SYNC - time.monotonic()
            self._wait(max(0.0, min(IDLE, due)))
        return self.unconfirmed.take()

    def _wait(self, seconds: float) -> None:
        """Wait until something is handed over, or the loop closes the writer."""
        self.unconfirmed.wait(0.0 if self._closing.is_set() else seconds)

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
        self.unconfirmed.release()
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
        if self.unconfirmed.held is None:
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
        held = self.unconfirmed.held
        if held is not None and held.image is not None:  # that is still all, with what waits
            self._why = str(error)
            self._rest()
            return
        self.unconfirmed.release()
        self._tell(JournalState.REGRESSED, str(error))

    def _begin_anew(self) -> None:
        """Wait for the loop's image, which contains all that was handed over before it; open again for it."""
        if not self.unconfirmed:
            self._wait(IDLE)
        if self.unconfirmed.take_image() is not None:
            self.epoch, self._number = self._store.open(self.epoch)
            self._lost = self._broken = False

    def _supersede(self, error: Exception) -> None:
        self.unconfirmed.end()
        self._tell(JournalState.SUPERSEDED, str(error))

    def _tell(self, state: JournalState, why: str) -> None:
        self._state, self._why = state, why
        self._news.append((f"journal.{state}", {"why": why} if why else {}))
        self.changed = True
        self._wake()
