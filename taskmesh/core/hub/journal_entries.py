"""The entries that are to be written into the hub's journal next, by key, in numbered changes."""

from __future__ import annotations

from hashlib import blake2b

from taskmesh.wire.journal import Entry, key_of


class JournalEntries:
    """The changes of a journal that gather in one step of the hub.

    Attributes:
        changes: entries to be written, None for those that are to go, by key.
        number: of the last changes that were handed on to be written.
        written: of the last changes that are written.
        is_whole: the changes are all that the journal is to have.
        is_full: more waits to be written than may.
    """

    def __init__(self) -> None:
        self.changes: dict[str, Entry | None] = {}
        self.number = self.written = 0
        self.is_whole = False
        self.is_full = False

    @property
    def upcoming(self) -> int:
        return self.number + 1

    def pending(self, number: int) -> int:
        """Return the number of changes that are not written yet, 0 in place of one that is."""
        return number if number > self.written else 0

    def take(self) -> tuple[int, dict[str, Entry | None], bool]:
        """Take the changes, to be written under the next number, and whether they are all there is."""
        changes, self.changes = self.changes, {}
        is_whole, self.is_whole = self.is_whole, False
        self.number += 1
        return self.number, changes, is_whole

    def put(self, kind: str, number: int, entry: Entry | None) -> None:
        """Have an entry written; None: have it go."""
        self.changes[key_of(kind, number)] = entry

    def put_named(self, kind: str, names: tuple[str, ...], entry: Entry | None) -> None:
        """Have an entry written that has names instead of a number; None: have it go."""
        self.put(kind, number_of(*names), entry)


def number_of(*names: str) -> int:
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=16).digest(), "big")
