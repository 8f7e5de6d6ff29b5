"""Dicts that a hub's journal has: to set an item is to have it written, to delete one is to have it go.

What they note in one step of the hub gathers as changes, which are written together under the next number.
"""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, TypeVar

from taskmesh.messages.journal_entries import KEPT, OUTCOME, Entry, key_of

K = TypeVar("K", int, str, tuple[str, str])
V = TypeVar("V")
AWAITED = KEPT + OUTCOME
"""Kinds of which somebody waits until an entry is written."""


class JournalChanges:
    """The dicts of a journal, and their changes.

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
        self.dicts: list[JournaledDict[Any, Any]] = []
        self._unwritten: OrderedDict[str, int] = OrderedDict()  # awaited keys, by the changes that have them

    @property
    def upcoming(self) -> int:
        return self.number + 1

    def pending(self, key: str) -> int:
        """Return the number of the changes that have an awaited entry, 0 if these are written."""
        return self.upcoming if key in self.changes else self._unwritten.get(key, 0)

    @property
    def all_pending(self) -> int:
        """The number of the last changes that are not written, 0 if all are."""
        return self.upcoming if self.changes else self.number if self.number > self.written else 0

    def take(self) -> tuple[int, dict[str, Entry | None], bool]:
        """Take the changes, to be written under the next number, and whether they are all there is."""
        changes, self.changes = self.changes, {}
        is_whole, self.is_whole = self.is_whole, False
        self.number += 1
        for key in changes:
            if key[0] in AWAITED:
                self._unwritten[key] = self.number
                self._unwritten.move_to_end(key)
        return self.number, changes, is_whole

    def on_written(self, number: int) -> None:
        """The changes up to this number are written."""
        self.written = number
        while self._unwritten and next(iter(self._unwritten.values())) <= number:
            self._unwritten.popitem(last=False)

    def sweep(self) -> None:
        """Have written what may be late: all of it together."""
        for each in self.dicts:
            each.flush()

    def rewrite(self) -> None:
        """The journal has lost what was written: have all of it written again."""
        self.changes = {}
        for each in self.dicts:
            each.later = dict.fromkeys(each.data)
        self.sweep()
        self.is_whole = True

    def fill(self, found: Mapping[str, Mapping[int, Any]]) -> None:
        """Take in the entries that are written, by kind and number."""
        for each in self.dicts:
            each.data.update(each.decode(number, entry) for number, entry in found[each.kind].items())


class JournaledDict(UserDict[K, V]):
    """A dict of which the journal has every item, if there is a journal.

    Args:
        journal: the journal.
        kind: the kind of its entries.
        encode: returns the entry of a key and its value; without it the value is the entry.
        decode: returns the key and the value of a number and its entry; without it these are they.

    Attributes:
        later: keys whose changes are written with the next sweep.
    """

    def __init__(
        self,
        journal: JournalChanges | None,
        kind: str,
        encode: Callable[[Any, Any], Any] = lambda _, value: value,
        decode: Callable[[int, Any], Any] = lambda number, entry: (number, entry),
    ) -> None:
        super().__init__()
        self.data: OrderedDict[K, V] = OrderedDict()  # the first goes at once, however many went before
        self.kind, self.encode, self.decode = kind, encode, decode
        self.later: dict[K, None] = {}
        self._journal = journal
        if journal is not None:
            journal.dicts.append(self)

    def __setitem__(self, key: K, value: V) -> None:
        self.data[key] = value
        if self._journal is not None:
            self._note(key, self.encode(key, value))

    def __delitem__(self, key: K) -> None:
        del self.data[key]
        if self._journal is not None:
            self._note(key, None)

    def put_later(self, key: K, value: V) -> None:
        """Set an item that is written as it is at the next sweep."""
        self.data[key] = value
        if self._journal is not None:
            self.later[key] = None

    def drop_later(self, key: K) -> None:
        """Delete an item whose entry goes with the next sweep; it may be absent."""
        if self.data.pop(key, None) is not None and self._journal is not None:
            self.later[key] = None

    def flush(self) -> None:
        """Have written what may be late."""
        for key in list(self.later) if self.later else ():
            self._note(key, self.encode(key, self.data[key]) if key in self.data else None)

    def pending(self, key: K) -> int:
        """Return the number of the journal's changes after which an item is written; 0: it is."""
        return self._journal.pending(self._key(key)) if self._journal is not None else 0

    def _note(self, key: K, entry: Entry | None) -> None:
        if self.later:
            self.later.pop(key, None)
        if self._journal is not None:
            self._journal.changes[self._key(key)] = entry

    def _key(self, key: K) -> str:
        """Return the key of an entry; one of names has a number made of them."""
        if isinstance(key, int):
            return key_of(self.kind, key)
        names = key if isinstance(key, str) else "\0".join(key)
        return key_of(self.kind, int.from_bytes(blake2b(names.encode(), digest_size=16).digest(), "big"))
