"""The entries of a hub's journal: what is written of tasks, so that another hub can go on with them.

A key begins with the kind of its entry and goes on with a number in hexadecimal digits, so that keys in their
order are entries in theirs.
"""

from __future__ import annotations

import msgspec

from taskmesh.wire.runs import Counter, DoneRun, Failed, Name, Number, Run, Spec, Value

CHUNK, ENDS, OUTCOME, SPEC, VALUE = "c", "e", "o", "s", "v"
"""The first letters of keys: of tasks accepted together, of those of them that are over, of an outcome that
waits for its client, of a spec, and of an outcome that other tasks need."""


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


Entry = JournalChunk | Ends | JournalOutcome | Spec | Value


def key_of(kind: str, number: int) -> str:
    """Return the key of an entry."""
    return f"{kind}/{number:032x}"


def parts_of(key: str) -> tuple[str, int]:
    """Return the kind of an entry and its number, by its key.

    Raises:
        ValueError: it is no such key.
    """
    kind, _, number = key.partition("/")
    return kind, int(number, 16)
