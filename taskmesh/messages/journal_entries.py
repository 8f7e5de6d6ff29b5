"""The entries of a hub's journal: what is written of tasks, so that another hub can go on with them.

A key begins with the kind of its entry and goes on with a number in hexadecimal digits, so that keys in their
order are entries in theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from taskmesh.messages.runs import Counter, DoneRun, Failed, LimitRule, Name, Number, Run, Spec, Value
from taskmesh.messages.schedules import Declaration

CHUNK, CURSOR, ENDS, LETTER, HOUSE, KEPT = "c", "d", "e", "f", "h", "k"
LIMIT, OUTCOME, SCHEDULE, SPEC, VALUE, WINDOW = "l", "o", "p", "s", "v", "w"
"""The letters with which keys begin: of the kinds of entries, see `KINDS`."""


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


class JournalHouse(msgspec.Struct, array_like=True):
    """A client that a hub is to itself, and every hub after it with the same journal.

    Attributes:
        client: its id.
        user: the user whose schedules' firings are its tasks.
    """

    client: Counter
    user: Name = ""


class JournalSchedule(msgspec.Struct, array_like=True):
    """A schedule.

    Attributes:
        declaration: the newest declaration.
        user: the user whose key declared it.
        paused: an operator has paused it.
    """

    declaration: Declaration
    user: Name
    paused: bool


class JournalCursor(msgspec.Struct, array_like=True):
    """The progress of a schedule; written together with the task of its last firing.

    Attributes:
        name: the schedule's.
        cursor: the latest tick that was dealt with, in seconds since the epoch.
        counts: how many ticks fired, were skipped or missed, and how many firings ended in which state.
    """

    name: Name
    cursor: Number
    counts: dict[Name, Counter]


class JournalWindow(msgspec.Struct, array_like=True):
    """The starts in the window of a limit, or of one key of a keyed limit.

    Attributes:
        rule: what the limit allows.
        part: the key, or an empty text.
        starts: times in seconds since the epoch, and how many tasks started then.
    """

    rule: LimitRule
    part: Name
    starts: list[tuple[Number, int]]


class JournalLetter(msgspec.Struct, array_like=True):
    """A dead letter: a task that ended badly while nobody waited for it, with what it takes to run it again.

    Attributes:
        at: when it ended, in seconds since the epoch.
        user: whose task it is.
        client: what its client called itself.
        state: its final state.
        spec: its spec.
        run: the task alone.
        failed: its end.
    """

    at: Number
    user: Name
    client: Name
    state: Name
    spec: Spec
    run: Run
    failed: Failed


Entry = (
    JournalChunk
    | JournalCursor
    | Ends
    | JournalHouse
    | JournalOutcome
    | JournalKept
    | JournalLetter
    | JournalSchedule
    | JournalWindow
    | LimitRule
    | Spec
    | Value
)
KINDS: dict[str, type[Entry]] = {
    CHUNK: JournalChunk,
    CURSOR: JournalCursor,
    ENDS: Ends,
    HOUSE: JournalHouse,
    KEPT: JournalKept,
    LETTER: JournalLetter,
    LIMIT: LimitRule,
    OUTCOME: JournalOutcome,
    SCHEDULE: JournalSchedule,
    SPEC: Spec,
    VALUE: Value,
    WINDOW: JournalWindow,
}
"""The kinds of entries, by their letters."""


def key_of(kind: str, number: int) -> str:
    return f"{kind}/{number:032x}"


def by_kind(entries: Mapping[str, Entry]) -> dict[str, dict[int, Any]]:
    """Return entries by the letters of their kinds, of each kind by their numbers, in their order."""
    found: dict[str, dict[int, Any]] = {kind: {} for kind in KINDS}
    for key, entry in sorted(entries.items()):
        kind, number = parts_of(key)
        found[kind][number] = entry
    return found


def lacking(entries: Mapping[str, Entry]) -> list[str]:
    """Return the keys of specs that tasks have and no entry."""
    chunks = [entry for entry in entries.values() if isinstance(entry, JournalChunk)]
    specs = {key_of(SPEC, run.spec) for chunk in chunks for run in chunk.runs}
    return sorted(specs - entries.keys())


def parts_of(key: str) -> tuple[str, int]:
    """Return the kind of an entry and its number, by its key.

    Raises:
        ValueError: it is no such key.
    """
    kind, _, number = key.partition("/")
    return kind, int(number, 16)
