"""The output of commands: JSON, tables on a terminal, aligned columns elsewhere.

JSON can carry every value, and text for people has nothing that would move a terminal's cursor.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO, TypeVar

Value = TypeVar("Value")
JSON_FAILS = (TypeError, ValueError, RecursionError)
DEEPEST = 100
"""Levels of a value that JSON cannot carry as it is that are looked into; what is below is text."""


class Unprintable(OSError):
    """A result cannot be printed: stdout is closed or full."""


class Output:
    """Results on stdout, errors on stderr (with JSON: on stdout too, as an object with the key "error").

    Results must arrive: `value` and `rows` raise Unprintable if stdout does not take them. All else is
    printed if possible: a hub does not end because its log is full.

    Args:
        as_json: each line is an object.
        is_log: the lines are those of a program that runs until it is stopped: each has the time.
    """

    def __init__(self, *, as_json: bool, is_log: bool = False) -> None:
        self.as_json = as_json
        self.is_log = is_log
        self._stdout, self._stderr = sys.stdout, sys.stderr  # None where one is closed: 2>&-

    def value(self, value: object, text: str | Callable[[Any], str]) -> None:
        """Print a result: as JSON, or as the text for people, made from the value if `text` is a function.

        That function gets the value without control characters, as what a hub tells may have some.
        """
        if self.as_json:
            self._result(encoded(value))
        else:
            self._result(text if isinstance(text, str) else text(harmless(value)))

    def rows(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str], empty: str) -> None:
        """Print a list of rows; `empty` is the text for people if there are none."""
        if self.as_json:
            self._result(encoded(rows))
        elif not rows:
            self.text(empty)
        else:
            cells = [[printable(shown(row.get(column, ""))) for column in columns] for row in rows]
            self._table([name.upper() for name in columns], cells)

    def ready(self, program: str, text: str, fields: Mapping[str, object]) -> None:
        """Print the one line on stdout of a program that runs."""
        self._event(self._stdout, "ready", f"{program} ready: {text}", {**fields, "pid": os.getpid()})

    def news(self, kind: str, text: str, fields: Mapping[str, object], keep: str = "") -> None:
        """Print an event on stderr; control characters in `keep` are not escaped."""
        self._event(self._stderr, kind, printable(text, keep), fields)

    def error(self, error: BaseException, details: Mapping[str, object] | None = None) -> None:
        told = rendered(error, str)
        if not self.as_json:
            self._event(self._stderr, "error", printable(told, keep="\n\t").rstrip(), {})
            return
        fields = {"type": type(error).__name__, "message": told, **(details or {})}
        event = {"event": "error", "time": time_of_day()} if self.is_log else {}
        self._say(self._stdout, encoded({**event, "error": fields}))

    def text(self, text: str) -> None:
        """Print text for people on stderr; with JSON it is an event, too."""
        told = printable(text, keep="\n\t").rstrip()
        if self.as_json:
            self._event(self._stderr, "note", told, {"text": told})
        else:
            self._say(self._stderr, told)

    def _event(self, stream: TextIO | None, kind: str, text: str, fields: Mapping[str, object]) -> None:
        now = time_of_day()
        if self.as_json:
            line = encoded({"event": kind, "time": now, **fields})
        else:
            line = f"taskmesh: {now} {text}" if self.is_log else f"taskmesh: {text}"
        self._say(stream, line)

    def _table(self, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        if self._stdout is not None and self._stdout.isatty():
            from rich.console import Console
            from rich.markup import escape
            from rich.table import Table

            table = Table(box=None, header_style="bold", pad_edge=False)
            for name in head:
                table.add_column(name, overflow="fold")
            for row in cells:
                table.add_row(*(escape(fitting(self._stdout, cell)) for cell in row))
            Console(file=self._stdout).print(table)
            return
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        for row in (head, *cells):
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self._result("  ".join(padded).rstrip())

    def _result(self, text: str) -> None:
        if self._stdout is None:
            raise Unprintable("the result cannot be printed: stdout is closed")
        try:
            write(self._stdout, text)
        except BrokenPipeError:  # the reader has closed the pipe, like `head`: that is no error
            raise
        except OSError as error:
            raise Unprintable(f"the result cannot be printed on stdout: {error}") from error

    def _say(self, stream: TextIO | None, text: str) -> None:
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                write(stream, text)


def time_of_day(seconds: float | None = None) -> str:
    """Return the time as events state it: now, or so many seconds after the epoch."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds")


def write(stream: TextIO, text: str) -> None:
    """Write a line and flush the stream."""
    stream.write(fitting(stream, f"{text}\n"))
    stream.flush()


def fitting(stream: TextIO, text: str) -> str:
    """Return the text with the characters escaped that the stream's encoding lacks."""
    encoding = stream.encoding
    return text.encode(encoding, "backslashreplace").decode(encoding) if encoding else text


def settle() -> None:
    """Discard the text that stdout and stderr did not take.

    The interpreter would try to flush them once more at its end, and a failure would make the exit code 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())


def shown(value: object) -> str:
    """Return the text of a cell."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Iterable):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def encoded(value: object) -> str:
    """Return a value as JSON that every reader takes; parts that JSON lacks, nan too, as their repr."""
    try:
        return json.dumps(value, default=rendered, allow_nan=False)
    except JSON_FAILS:
        return json.dumps(carried(value))


def is_carried(value: object) -> bool:
    """Return True if JSON can carry the value without turning a part of it into text."""
    try:
        json.dumps(value, allow_nan=False)
    except JSON_FAILS:
        return False
    return True


def carried(value: object, above: frozenset[int] = frozenset()) -> object:
    """Return a value with text for each part that JSON lacks; `above`: the ids of the objects around it."""
    if id(value) in above or len(above) >= DEEPEST:
        return rendered(value)
    below = above | {id(value)}
    try:
        if isinstance(value, dict):
            json.dumps(dict.fromkeys(value), allow_nan=False)  # keys only: tuples, for example, cannot be any
            return {key: carried(part, below) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [carried(part, below) for part in value]
        return json.loads(json.dumps(value, default=rendered, allow_nan=False))
    except JSON_FAILS:
        return rendered(value)


def rendered(value: object, how: Callable[[object], str] = repr) -> str:
    """Return the repr of a value, or a text if that raises."""
    try:
        return how(value)
    except Exception as error:  # noqa: BLE001  the user's class may fail as it likes
        return f"<{type(value).__name__} that cannot be printed: {type(error).__name__}>"


def printable(text: str, keep: str = "") -> str:
    """Return a text with its control characters escaped, save those to keep."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def harmless(value: Value) -> Value:
    """Return a hub's answer with the control characters of all its texts escaped."""
    found: object = value
    if isinstance(found, str):
        found = printable(found)
    elif isinstance(found, dict):
        found = {harmless(key): harmless(part) for key, part in found.items()}
    elif isinstance(found, list | tuple):
        found = [harmless(part) for part in found]
    return found  # type: ignore[return-value]  # of the same type, but mypy cannot tell
