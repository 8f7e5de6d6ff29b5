"""Journals: files to which tasks and clients append what they do, for tests that count it.

A line is one write on an O_APPEND descriptor, so lines of many processes never mix and survive kill -9. What
a process is about to do is written before, what it has done after.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a journal: when (CLOCK_MONOTONIC), what, of which task, and what else is known."""

    when: float
    kind: str
    index: int
    fields: tuple[str, ...]


class Journal:
    """One file. The descriptor is opened for each line: tasks of these tests close descriptors."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def append(self, line: str) -> None:
        """Append a line."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)

    def lines(self) -> list[str]:
        """Return every whole line; none while there is no file."""
        try:
            text = Path(self.path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return text.split("\n")[:-1]

    # --- events of numbered tasks -------------------------------------------------------------------------

    def write(self, kind: str, index: int, *fields: object) -> None:
        """Append an event; fields are written as words."""
        self.append(" ".join([f"{time.monotonic():.6f}", kind, str(index), *(str(f) or "-" for f in fields)]))

    def entries(self) -> Iterator[Entry]:
        """Read the events."""
        for line in self.lines():
            when, kind, index, *fields = line.split()
            yield Entry(float(when), kind, int(index), tuple(fields))

    def count(self, *kinds: str) -> int:
        """Count the events of these kinds."""
        return sum(entry.kind in kinds for entry in self.entries())


def note(path: str, word: str) -> str:
    """Append a word to a journal: a task whose executions a test counts."""
    Journal(path).append(word)
    return word


def words(path: str | os.PathLike[str]) -> list[str]:
    """Return the words of a journal in order."""
    return " ".join(Journal(path).lines()).split()
