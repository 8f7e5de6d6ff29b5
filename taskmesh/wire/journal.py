"""The entries of a hub's journal: what is written of tasks, so that another hub can go on with them.

A key begins with the kind of its entry and goes on with a number in hexadecimal digits, so that keys in their
order are entries in theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from taskmesh.wire.runs import Counter, DoneRun, Failed, Name, Number, Run, Spec, Value

CHUNK, ENDS, KEPT, OUTCOME, SPEC, VALUE = "c", "e", "k", "o", "s", "v"
"""The first letters of keys: of tasks accepted together, of those that are over; of an outcome that is
kept, of one that waits for its client; of a spec; of an outcome that other tasks need."""


class JournalChunk(msgspec.Struct, array_like=True, omit_defaults=True):
    """Tasks that were accepted together.

    Attributes:
        client: whose they are.
        user: whose key the client had shown.
        name: what the client calls itself.
        at: when they were accepted, in seconds since the epoch.
        runs: the tasks.
    """

    client: Counter
    user: Name
    name: Name
    at: Number
    runs: list[Run]


class Ends(msgspec.Struct, array_like=True):
    """The tasks of a chunk that are over: nobody waits for them, nor for their outcomes.

    Attributes:
        seqs: their counters.
    """

    seqs: list[Counter]


class JournalOutcome(msgspec.Struct, array_like=True):
    """The end of a task whose client is away: its result, of this task alone, or its bad end."""

    done: DoneRun | None
    failed: Failed | None


class JournalKept(msgspec.Struct, array_like=True, omit_defaults=True):
    """The outcome of a task that has ended, for those who ask for it.

    Attributes:
        until: for how long, in seconds since the epoch.
        tasks: the clients and counters of the tasks that it is the outcome of.
        user: whose tasks these are.
        name: the name of the task function.
        key: later submissions under it are answered; empty for none.
        done: the result, of one task.
        failed: the bad end, in place of a result.
    """

    until: Number
    tasks: list[tuple[Counter, Counter]] = []
    user: Name = ""
    name: Name = ""
    key: Name = ""
    done: DoneRun | None = None
    failed: Failed | None = None


Entry = JournalChunk | Ends | JournalOutcome | JournalKept | Spec | Value


def key_of(kind: str, number: int) -> str:
    """Return the key of an entry."""
    return f"{kind}/{number:032x}"


def by_kind(entries: Mapping[str, Entry]) -> dict[str, dict[int, Any]]:
    """Return entries by the letters of their kinds, of each kind by their numbers, in their order."""
    found: dict[str, dict[int, Any]] = {kind: {} for kind in (CHUNK, ENDS, KEPT, OUTCOME, SPEC, VALUE)}
    for key, entry in sorted(entries.items()):
        kind, number = parts_of(key)
        found[kind][number] = entry
    return found


def parts_of(key: str) -> tuple[str, int]:
    """Return the kind of an entry and its number, by its key.

    Raises:
        ValueError: it is no such key.
    """
    kind, _, number = key.partition("/")
    return kind, int(number, 16)
