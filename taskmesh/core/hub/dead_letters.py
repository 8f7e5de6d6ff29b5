"""Dead letters: tasks that have ended badly while nobody waited for them, kept to be looked at and run again.

A letter has the call, every attempt that failed, and the tasks that never started since they depend on it,
each with the values that it would have got. Letters are in memory, and in the journal if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from taskmesh.core.hub.dependencies import Dependencies
from taskmesh.core.hub.journal_entries import JournalEntries
from taskmesh.core.hub.states import TaskRecord
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.core.link import size_of_failure
from taskmesh.wire.journal import LETTER, JournalLetter, LetterAttempt, LetterTask
from taskmesh.wire.runs import SUCCESS, Failed, Run, Value

MOST: Final = 10_000
LIFETIME: Final = 7 * 86_400.0
"""Seconds for which a letter is kept."""
MOST_ATTEMPTS: Final = 20
"""Attempts of a task that are kept, the newest."""
MOST_BLOCKED: Final = 10_000
"""Tasks that one letter has, besides its own."""


class DeadLetters:
    """The letters of a hub, by the ids of their tasks. The oldest go when there is no room.

    Args:
        dependencies: the values that tasks need.
        most_bytes: bytes of all letters together.
        journal: where they are written down, if there is one.

    Attributes:
        letters: oldest first.
        evicted: how many have gone before their time.
    """

    def __init__(self, dependencies: Dependencies, most_bytes: int, journal: JournalEntries | None) -> None:
        self.letters: dict[int, JournalLetter] = {}
        self.evicted = 0
        self._dependencies = dependencies
        self._most_bytes = most_bytes
        self._journal = journal
        self._roots: dict[int, int] = {}  # the letter of each task in one
        self._sizes: dict[int, int] = {}
        self._size = 0

    def view(self) -> dict[str, int]:
        """Return the counts in plain data."""
        return {"letters": len(self.letters), "bytes": self._size, "evicted": self.evicted}

    def attempt_failed(self, record: TaskRecord, failure: Failed, wall: float) -> None:
        """Remember a failed attempt of a task that will be a letter, should it end badly."""
        told = LetterAttempt(wall, replace(failure, pickled=b""))
        record.more().failures = (*record.more().failures, told)[-MOST_ATTEMPTS:]

    def add(self, record: TaskRecord, failure: Failed, wall: float, user: str, client: str) -> None:
        """A task has ended badly; it still has its edges.

        Args:
            record: the task.
            failure: its end.
            wall: the time on the wall.
            user: the user whose task it is.
            client: the name of its client.
        """
        attempts = list(record.more().failures) or [LetterAttempt(wall, replace(failure, pickled=b""))]
        task = LetterTask(self._run(record, ()), record.spec.spec)
        letter = JournalLetter(wall, user, client, record.state.name, task, attempts)
        letter.values += self._values(record)
        self._drop(record.id)
        self.letters[record.id] = letter
        self._roots[record.id] = record.id
        self._grow(record.id, _size_of_attempts(letter))
        self._put(record.id, task, letter.values)

    def add_blocked(self, record: TaskRecord, failure: Failed) -> None:
        """A task never starts, since one that it depends on is a letter; it still has its edges."""
        root = self._roots.get(record.id >> SEQ_BITS << SEQ_BITS | failure.upstream)
        letter = self.letters.get(root) if root is not None else None
        if letter is None or root is None or len(letter.blocked) >= MOST_BLOCKED:
            return
        task = LetterTask(self._run(record, (failure.upstream,)), record.spec.spec)
        known = {value.seq for value in letter.values}
        values = [value for value in self._values(record) if value.failed is None and value.seq not in known]
        letter.blocked.append(task)
        letter.values += values
        self._roots[record.id] = root
        self._put(root, task, values)

    def replayed(self, task: int, replay: str) -> None:
        """Note that a letter was run again, and under which id."""
        self.letters[task].replays.append(replay)
        self._write(task)

    def taken(self, task: int) -> None:
        """The client of a task was away and has taken its end after all: it has the error."""
        letter = self.letters.get(task)
        if letter is not None and not letter.task.spec.detach:
            self._drop(task)

    def purge(self, task: int) -> bool:
        """Forget a letter; return False if there is none."""
        return self._drop(task)

    def on_revoked(self, users: frozenset[str]) -> None:
        """Forget the letters of users whose keys are not let in any more: nothing of theirs runs again."""
        for task in [task for task, letter in self.letters.items() if letter.user in users]:
            self._drop(task)

    def sweep(self, wall: float) -> None:
        """Forget letters whose time is over."""
        while self.letters:
            task, letter = next(iter(self.letters.items()))
            if letter.at + LIFETIME > wall:
                return
            self._drop(task)

    def rewrite(self) -> None:
        """Have all letters written again."""
        for task in self.letters:
            self._write(task)

    def restore(self, entries: Mapping[int, JournalLetter]) -> None:
        """Take in the letters of a journal."""
        for task, letter in sorted(entries.items(), key=lambda entry: entry[1].at):
            self.letters[task] = letter
            base = task >> SEQ_BITS << SEQ_BITS
            for each in (letter.task, *letter.blocked):
                self._roots[base | each.run.seqs[0]] = task
                self._grow(task, _size_of(each, ()))
            self._grow(task, _size_of_attempts(letter))
            self._grow(task, sum(len(value.payload) for value in letter.values))

    # --- one task -----------------------------------------------------------------------------------------

    @staticmethod
    def _run(record: TaskRecord, after: Iterable[int]) -> Run:
        """Return a task as it was submitted, with the edges that matter when it is run again."""
        run = Run(record.spec.number, record.group, [record.id & SEQ_MASK], [record.payload])
        key = record.more().key
        run.key = key[1] if key is not None else ""
        run.part = record.part or ""
        if record.links is not None:
            needs = list(record.links.needs)
            others = [seq for seq in after if seq not in needs]
            run.needs, run.after = ([needs] if needs else []), ([others] if others else [])
            run.when = record.links.when if needs else SUCCESS
        return run

    def _values(self, record: TaskRecord) -> list[Value]:
        """Return the outcomes that a task needs and that are here."""
        base, values = record.id >> SEQ_BITS << SEQ_BITS, self._dependencies.values
        needs = record.links.needs if record.links is not None else ()
        found = [values.get(base | seq) for seq in needs]
        return [held.value for held in found if held is not None]

    # --- room ---------------------------------------------------------------------------------------------

    def _put(self, task: int, added: LetterTask, values: Iterable[Value]) -> None:
        self._grow(task, _size_of(added, values))
        self._write(task)
        while self.letters and (self._size > self._most_bytes or len(self.letters) > MOST):
            self._drop(next(iter(self.letters)))
            self.evicted += 1

    def _grow(self, task: int, size: int) -> None:
        self._sizes[task] = self._sizes.get(task, 0) + size
        self._size += size

    def _write(self, task: int) -> None:
        if self._journal is not None:
            self._journal.put(LETTER, task, self.letters[task])

    def _drop(self, task: int) -> bool:
        letter = self.letters.pop(task, None)
        if letter is None:
            return False
        base = task >> SEQ_BITS << SEQ_BITS
        for each in (letter.task, *letter.blocked):
            self._roots.pop(base | each.run.seqs[0], None)
        self._size -= self._sizes.pop(task)
        if self._journal is not None:
            self._journal.put(LETTER, task, None)
        return True


def _size_of_attempts(letter: JournalLetter) -> int:
    return sum(size_of_failure(each.failed) for each in letter.attempts)


def _size_of(task: LetterTask, values: Iterable[Value]) -> int:
    """Return about how many bytes a task of a letter takes."""
    size = 800 + len(task.spec.function) + sum(map(len, task.run.payloads))
    return size + sum(len(value.payload) for value in values)
