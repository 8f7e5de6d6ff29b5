"""Append-only logs: what tasks did, and what a client asked for and was given.

A line is one write on an O_APPEND descriptor, so lines of many processes never mix and survive kill -9. What
a process was about to do is written before, what it has done after.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a log: when (CLOCK_MONOTONIC), what, of which task, and what else is known."""

    when: float
    kind: str
    index: int
    fields: tuple[str, ...]


class Journal:
    """One log file. The descriptor is opened for each line: tasks of these tests close descriptors."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def write(self, kind: str, index: int, *fields: object) -> None:
        """Append a line; fields are written as words."""
        words = [f"{time.monotonic():.6f}", kind, str(index), *(str(field) or "-" for field in fields)]
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, (" ".join(words) + "\n").encode())
        finally:
            os.close(fd)

    def entries(self) -> Iterator[Entry]:
        """Read every whole line."""
        try:
            lines = Path(self.path).read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if line.endswith("\n"):
                when, kind, index, *fields = line.split()
                yield Entry(float(when), kind, int(index), tuple(fields))

    def count(self, *kinds: str) -> int:
        """How many lines of these kinds there are."""
        return sum(entry.kind in kinds for entry in self.entries())
