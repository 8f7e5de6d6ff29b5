"""The protocol that a hub's journal demands of a store, and how a store fails.

A journal is a set of entries, bytes under a key. It is changed in transactions: each is atomic, and has the
number of the one before plus one. Whoever opens it takes it over: the epoch rises, and nobody with an older
one can write again. The hub has in memory all that is stored; it reads a journal once, when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from taskmesh.errors import ConfigError

FORMAT: Final = 2
"""The number of this form of a journal; a store with another one is refused."""
KEY_BYTES: Final = 200
"""The longest key."""
PORTION_BYTES, PORTION_ENTRIES = 8 << 20, 1000
"""The most that `load` gives at once, an entry at least."""


class JournalUnavailable(Exception):
    """The journal cannot be used now, perhaps later. The text says why, and what to do if that is known."""


class JournalSuperseded(Exception):
    """Another hub has taken the journal over: this one must stop."""


class JournalRegressed(Exception):
    """The journal has come back without transactions that were written: empty, older, or another one."""


class JournalRefused(ConfigError):
    """The journal would lose what is written to it, or is no journal that this version can read."""


class Opened(NamedTuple):
    """A journal that was taken over.

    Attributes:
        epoch: the number of this opening, above those of all before it.
        number: the number of the last transaction that is stored, 0 if there was none.
    """

    epoch: int
    number: int


class Changes:
    """The changes of a transaction. A later change of a key replaces an earlier one.

    Attributes:
        puts: entries to be stored.
        drops: keys whose entries are to go.
        size: bytes of keys and values.
    """

    __slots__ = ("drops", "puts", "size")

    def __init__(self, puts: Mapping[bytes, bytes] | None = None, drops: set[bytes] | None = None) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.drops: set[bytes] = set()
        self.size = 0
        for key in drops or ():
            self.drop(key)
        for key, value in (puts or {}).items():
            self.put(key, value)

    def __bool__(self) -> bool:
        return bool(self.puts or self.drops)

    def __repr__(self) -> str:
        return f"<Changes: {len(self.puts)} puts, {len(self.drops)} drops, {self.size} bytes>"

    def put(self, key: bytes, value: bytes) -> None:
        """Store an entry.

        Raises:
            ValueError: the key is empty or longer than KEY_BYTES.
        """
        if not 0 < len(key) <= KEY_BYTES:
            raise ValueError(f"a key of a journal has 1 to {KEY_BYTES} bytes, not {len(key)}")
        self._forget(key)
        self.puts[key] = value
        self.size += len(key) + len(value)

    def drop(self, key: bytes) -> None:
        self._forget(key)
        self.drops.add(key)
        self.size += len(key)

    def merge(self, later: Changes) -> None:
        for key in later.drops:
            self.drop(key)
        for key, value in later.puts.items():
            self.put(key, value)

    def _forget(self, key: bytes) -> None:
        value = self.puts.pop(key, None)
        if value is not None:
            self.size -= len(key) + len(value)
        elif key in self.drops:
            self.drops.remove(key)
            self.size -= len(key)


class JournalStore(Protocol):
    """A place for one journal. Everything is called from one thread.

    `load` and `status` work without `open`, for programs that look at the journal of a hub that runs. Each
    method may raise JournalUnavailable and JournalRefused. After JournalUnavailable comes `rejoin`, or `open`
    if it was not open yet.
    """

    def open(self, above: int = 0) -> Opened:
        """Take the journal over, durably; make one if there is none.

        Args:
            above: the new epoch is above this one as well: the caller's own, if the journal has regressed.
        """
        ...

    def rejoin(self, number: int) -> int:
        """Make a new link after the old one has failed; a write that is still on its way there has no effect.

        Args:
            number: the last transaction that the store has confirmed.

        Returns:
            The last transaction that is stored: `number`, or the next one.

        Raises:
            JournalSuperseded: another hub has opened it meanwhile.
            JournalRegressed: it has not all that it had confirmed.
        """
        ...

    def load(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield all entries, in portions of PORTION_BYTES and PORTION_ENTRIES; a larger one comes alone."""
        ...

    def write(self, number: int, changes: Changes) -> None:
        """Store a transaction, all of it or nothing; does nothing if this number is stored already.

        On return the transaction survives what the tier promises of a confirmed one.

        Raises:
            JournalSuperseded: another hub has opened it meanwhile.
            JournalRegressed: it has not all that it had confirmed.
        """
        ...

    def replace(self, number: int, puts: Mapping[bytes, bytes]) -> None:
        """Store these entries in place of all that is stored, all or nothing; raises as `write` does."""
        ...

    def sync(self) -> None:
        """Make what is written safe from a loss of power, where the store does not do that by itself.

        Raises:
            JournalRegressed: it has not all that it had confirmed.
        """
        ...

    def check(self) -> None:
        """Look at the store and at the epoch; raises as `write` does. Tidies up a little."""
        ...

    def status(self) -> dict[str, object]:
        """Return plain data: `where`, `entries`, `bytes`, in words what they survive, `survives`, and more.

        `disk_bytes` is what the journal takes of a disk, with what was dropped and still takes room.
        """
        ...

    def close(self) -> None:
        """Close what is open; from any thread, also while another one waits for the store. Never raises."""
        ...
