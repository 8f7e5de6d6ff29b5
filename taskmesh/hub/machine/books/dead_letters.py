"""Dead letters: tasks that have ended badly while nobody waited for them, kept to be looked at and run again.

A letter is the call with its spec, and how the task ended. Letters are in memory, and in the journal if there
is one.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from taskmesh.core.ids import plain
from taskmesh.hub.machine.books.journaled_dict import JournalChanges, JournaledDict
from taskmesh.hub.machine.books.states import State, TaskRecord
from taskmesh.link.link import size_of_failure
from taskmesh.messages.journal_entries import LETTER, JournalLetter
from taskmesh.messages.runs import Failed, Run
from taskmesh.messages.status import LettersStatus

MOST: Final = 10_000
LIFETIME: Final = 7 * 86_400.0
"""Seconds for which a letter is kept."""


class DeadLetters:
    """The letters of a hub, by the ids of their tasks. The oldest go when there is no room.

    Args:
        most_bytes: bytes of all letters together.
        journal: where they are written down, if there is one.

    Attributes:
        letters: oldest first.
        evicted: how many have gone before their time.
    """

    def __init__(self, most_bytes: int, journal: JournalChanges | None) -> None:
        self.letters: JournaledDict[int, JournalLetter] = JournaledDict(journal, LETTER)
        self.evicted = 0
        self._most_bytes = most_bytes
        self._size = 0

    def view(self) -> LettersStatus:
        return {"letters": len(self.letters), "bytes": self._size, "evicted": self.evicted}

    def add(
        self, record: TaskRecord, state: State, failed: Failed, wall: float, user: str, client: str
    ) -> None:
        """A task is about to end badly; it still has its edges.

        Args:
            record: the task.
            state: the state in which it ends.
            failed: its end, with the last output of its process.
            wall: the time on the wall.
            user: the user whose task it is.
            client: the name of its client.
        """
        run = Run(record.spec.number, record.group, [record.seq], [record.payload])
        key = record.more().key
        run.key = plain(key[1]) if key is not None else ""
        run.part = record.part or ""
        if record.links is not None and record.links.needs:
            run.needs = [list(record.links.needs)]
        self.drop(record.id)
        letter = JournalLetter(
            wall, user, client, state.word, record.spec.spec, run, replace(failed, pickled=b"")
        )
        self.letters[record.id] = letter
        self._size += _size_of(letter)
        while self.letters and (self._size > self._most_bytes or len(self.letters) > MOST):
            self.drop(next(iter(self.letters)))
            self.evicted += 1

    def taken(self, task: int) -> None:
        """The client of a task was away and has taken its end after all: it has the error."""
        letter = self.letters.get(task)
        if letter is not None and not letter.spec.detach:
            self.drop(task)

    def on_revoked(self, users: frozenset[str]) -> None:
        """Forget the letters of users whose keys are not let in any more: nothing of theirs runs again."""
        for task in [task for task, letter in self.letters.items() if letter.user in users]:
            self.drop(task)

    def sweep(self, wall: float) -> None:
        while self.letters:
            task, letter = next(iter(self.letters.items()))
            if letter.at + LIFETIME > wall:
                return
            self.drop(task)

    def restored(self) -> None:
        """Letters have been read: have them in order."""
        for task, letter in sorted(self.letters.items(), key=lambda item: item[1].at):
            self.letters.data.move_to_end(task)
            self._size += _size_of(letter)

    def drop(self, task: int) -> None:
        letter = self.letters.pop(task, None)
        if letter is not None:
            self._size -= _size_of(letter)


def _size_of(letter: JournalLetter) -> int:
    """Return about how many bytes a letter takes."""
    return 800 + len(letter.spec.function) + len(letter.run.payloads[0]) + size_of_failure(letter.failed)
