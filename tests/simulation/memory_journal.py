"""A journal in memory, for simulated hubs and for the contract of journals: it fails when it is told to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from taskmesh.hub.journal.store import (
    PORTION_BYTES,
    PORTION_ENTRIES,
    Changes,
    JournalRegressed,
    JournalSuperseded,
    JournalUnavailable,
    Opened,
)


class MemoryDisk:
    """The stored entries, of every writer, and the faults of the place.

    Attributes:
        entries: what is stored now.
        epoch, number: of the last opening, and of the last transaction.
        session: counts openings and links; only the newest one may write.
        away: why nobody reaches it; "" if it is there.
        unanswered: so many of the next writes are stored, but the link breaks before the answer.
    """

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.epoch = self.number = self.session = 0
        self.away = ""
        self.unanswered = 0
        self._unsynced: list[tuple[int, dict[bytes, bytes | None]]] = []

    def change(self, number: int, new: Mapping[bytes, bytes | None]) -> None:
        """Store a transaction: values by key, None for what goes."""
        old = {key: self.entries.get(key) for key in new}
        self._unsynced.append((self.number, old))
        self._set(new)
        self.number = number

    def _set(self, new: Mapping[bytes, bytes | None]) -> None:
        for key, value in new.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value

    def sync(self) -> None:
        """Make what is stored now survive a loss of power."""
        self._unsynced.clear()

    @property
    def unsynced(self) -> int:
        """Transactions that a loss of power would take."""
        return len(self._unsynced)

    def lose_power(self, transactions: int | None = None) -> int:
        """Lose the last transactions that are not synced, all of them without a number; return how many."""
        count = self.unsynced if transactions is None else min(transactions, self.unsynced)
        for _ in range(count):
            number, old = self._unsynced.pop()
            self._set(old)
            self.number = number
        self.session += 1
        return count

    def erase(self) -> None:
        """Lose everything, the epoch too."""
        self.entries.clear()
        self._unsynced.clear()
        self.epoch = self.number = 0
        self.session += 1


class MemoryJournal:
    """`JournalStore` on a disk in memory: pure, and as deterministic as its caller.

    Args:
        disk: the place, which other journals may have too.
        strict: a confirmed transaction survives `MemoryDisk.lose_power`.
    """

    def __init__(self, disk: MemoryDisk, strict: bool = False) -> None:
        self._disk = disk
        self._strict = strict
        self._epoch = self._session = 0

    def open(self, above: int = 0) -> Opened:
        self._reach()
        disk = self._disk
        disk.epoch = self._epoch = max(disk.epoch, above) + 1
        self._join()
        return Opened(disk.epoch, disk.number)

    def rejoin(self, number: int) -> int:
        self._reach()
        disk = self._disk
        self._compare_epoch()
        if disk.number < number:
            raise JournalRegressed(f"it ends with transaction {disk.number}, but {number} was written")
        self._join()
        return disk.number

    def _join(self) -> None:
        self._disk.session += 1
        self._session = self._disk.session

    def load(self) -> Iterator[list[tuple[bytes, bytes]]]:
        portion: list[tuple[bytes, bytes]] = []
        size = 0
        for key, value in list(self._disk.entries.items()):
            self._reach()
            if portion and (size + len(value) > PORTION_BYTES or len(portion) == PORTION_ENTRIES):
                yield portion
                portion, size = [], 0
            portion.append((key, value))
            size += len(value)
        if portion:
            yield portion

    def write(self, number: int, changes: Changes) -> None:
        self._store(number, {**dict.fromkeys(changes.drops), **changes.puts})

    def replace(self, number: int, puts: Mapping[bytes, bytes]) -> None:
        self._store(number, {**dict.fromkeys(self._disk.entries), **puts})

    def _store(self, number: int, new: Mapping[bytes, bytes | None]) -> None:
        self._reach()
        self._compare_epoch()
        disk = self._disk
        if disk.session != self._session:
            raise JournalUnavailable("the link broke")
        if number > disk.number + 1:
            raise JournalRegressed(f"it ends with transaction {disk.number}, but {number - 1} was written")
        if number == disk.number + 1:
            disk.change(number, new)
        if self._strict:
            disk.sync()
        if disk.unanswered:
            disk.unanswered -= 1
            raise JournalUnavailable("the link broke before the answer")

    def sync(self) -> None:
        self._reach()
        self._compare_epoch()
        self._disk.sync()

    def check(self) -> None:
        self._reach()
        self._compare_epoch()

    def status(self) -> dict[str, object]:
        disk = self._disk
        size = sum(len(key) + len(value) for key, value in disk.entries.items())
        survives = "a loss of power" if self._strict else "the end of the hub"
        found = {"where": "memory", "entries": len(disk.entries), "survives": survives}
        return {**found, "bytes": size, "disk_bytes": size}

    def close(self) -> None:
        """Nothing is open."""

    def _reach(self) -> None:
        if self._disk.away:
            raise JournalUnavailable(self._disk.away)

    def _compare_epoch(self) -> None:
        if self._disk.epoch > self._epoch:
            raise JournalSuperseded(
                f"another hub has opened it (epoch {self._disk.epoch}, ours is {self._epoch})"
            )
        if self._disk.epoch < self._epoch:
            raise JournalRegressed(f"it is an older one than was written (epoch {self._disk.epoch})")
