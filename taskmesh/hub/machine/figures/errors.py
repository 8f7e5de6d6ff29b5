"""Errors of tasks in groups: one function, one kind, one type, one place in the code."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from taskmesh.messages.runs import Failed

MOST_GROUPS: Final = 200
SAMPLES: Final = 3
MINUTE: Final = 60.0
TOLD_TEXT, TOLD_TRACE = 500, 4_000
"""Characters of a failure's text and traceback that are shown."""
_FRAME: Final = re.compile(r'^  File "([^"]*)", line (\d+), in (\S+)', re.MULTILINE)


@dataclass(slots=True)
class Sample:
    """One failed attempt.

    Attributes:
        task: the task's id.
        user: whose task it is.
        attempt: the number of the attempt, for people.
        worker: where it ran.
        text: the error's text.
        traceback: as the worker printed it.
    """

    task: int
    user: str
    attempt: int
    worker: str
    text: str
    traceback: str


@dataclass(slots=True)
class ErrorGroup:
    """Failed attempts of one cause, as far as that shows.

    Attributes:
        name: the task function's.
        kind: as in `Failed.kind`.
        type_name: the exception's class.
        place: file, line and function of the innermost frame.
        first: the time of the first, in seconds since the epoch.
        last: of the last.
        count: how many there were.
        samples: the latest.
        window: when the present minute of it began, in seconds since the epoch.
        before: how many there were until then.
        earlier: how many there were until the minute before it.
    """

    name: str
    kind: str
    type_name: str
    place: str
    first: float
    last: float = 0.0
    count: int = 0
    samples: list[Sample] = field(default_factory=list)
    window: float = 0.0
    before: int = 0
    earlier: int = 0

    def grow(self, wall: float) -> None:
        """Count one more."""
        if wall - self.window >= MINUTE:
            self.earlier = self.before if wall - self.window < 2 * MINUTE else self.count
            self.window, self.before = wall, self.count
        self.count += 1
        self.last = wall

    def lately(self, wall: float) -> int:
        """Return how many there were in the last minute, or up to two."""
        return 0 if wall - self.last >= MINUTE else self.count - self.earlier


class Errors:
    """Groups of failed attempts; the one that has grown last is last, and those go first that have not.

    Attributes:
        groups: by function, kind, type and place.
        ungrouped: failed attempts whose groups have gone.
    """

    def __init__(self) -> None:
        self.groups: OrderedDict[tuple[str, ...], ErrorGroup] = OrderedDict()
        self.ungrouped = 0

    def add(self, name: str, task: int, user: str, failure: Failed, wall: float) -> None:
        """Take in a failed attempt."""
        key = (name, failure.kind, failure.type_name, place_of(failure.traceback))
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = ErrorGroup(*key, first=wall)
            if len(self.groups) > MOST_GROUPS:
                self.ungrouped += self.groups.popitem(last=False)[1].count
        self.groups.move_to_end(key)
        group.grow(wall)
        attempt, text = failure.attempt - failure.returns, failure.text[:TOLD_TEXT]
        sample = Sample(task, user, attempt, failure.worker, text, failure.traceback[-TOLD_TRACE:])
        group.samples = [*group.samples[1 - SAMPLES :], sample]


def in_words(failure: Failed) -> str:
    return f"{failure.type_name}: {failure.text}" if failure.type_name else failure.text


def shown(failure: Failed, attempt: int) -> dict[str, object]:
    """Return a failure as people see it, whose attempt has this number for them."""
    return {
        "attempt": attempt,
        "worker": failure.worker,
        "kind": failure.kind,
        "type": failure.type_name,
        "text": failure.text[:TOLD_TEXT],
        "traceback": failure.traceback[-TOLD_TRACE:],
    }


def place_of(traceback: str) -> str:
    """Return file, line and function of a traceback's innermost frame; empty if it has none."""
    frames = _FRAME.findall(traceback[-TOLD_TRACE:])
    if not frames:
        return ""
    path, line, function = frames[-1]
    return f"{path.rpartition('/')[2]}:{line} in {function}"
