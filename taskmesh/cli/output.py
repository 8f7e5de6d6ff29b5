"""The output of commands: JSON, tables on a terminal, aligned columns elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from taskmesh.cli.format import encoded, harmless, printable, rendered


class Unprintable(OSError):
    """A result cannot be printed: stdout is closed or full."""


class Output:
    """Results on stdout, errors on stderr (with JSON: on stdout too, as an object with the key "error").

    Results must arrive: `value` and `rows` raise Unprintable if stdout does not take them. All else is
    printed if possible: a hub does not end because its log is full.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

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
        line = encoded({"event": "ready", **fields, "pid": os.getpid()})
        self._say(sys.stdout, line if self.as_json else f"taskmesh {program}: ready: {text}")

    def news(self, kind: str, text: str, fields: Mapping[str, object], keep: str = "") -> None:
        """Print an event of a running program on stderr; control characters in `keep` are not escaped."""
        line = encoded({"event": kind, **fields}) if self.as_json else f"taskmesh: {printable(text, keep)}"
        self._say(sys.stderr, line)

    def error(self, error: BaseException, details: Mapping[str, object] | None = None) -> None:
        if self.as_json:
            fields = {"type": type(error).__name__, "message": rendered(error, str), **(details or {})}
            self._say(sys.stdout, encoded({"error": fields}))
        else:
            self.text(f"taskmesh: {rendered(error, str)}")

    def text(self, text: str) -> None:
        """Print text for people on stderr."""
        self._say(sys.stderr, printable(text, keep="\n\t").rstrip())

    def _table(self, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        if sys.stdout is not None and sys.stdout.isatty():
            from rich.console import Console
            from rich.markup import escape
            from rich.table import Table

            table = Table(box=None, header_style="bold", pad_edge=False)
            for name in head:
                table.add_column(name, overflow="fold")
            for row in cells:
                table.add_row(*(escape(fitting(sys.stdout, cell)) for cell in row))
            Console().print(table)
            return
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        for row in (head, *cells):
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self._result("  ".join(padded).rstrip())

    def _result(self, text: str) -> None:
        if sys.stdout is None:
            raise Unprintable("the result cannot be printed: stdout is closed")
        try:
            write(sys.stdout, text)
        except BrokenPipeError:  # the reader has closed the pipe, like `head`: that is no error
            raise
        except OSError as error:
            raise Unprintable(f"the result cannot be printed on stdout: {error}") from error

    def _say(self, stream: TextIO | None, text: str) -> None:
        if stream is not None:  # None where the program was started without it: 2>&-
            with contextlib.suppress(OSError, ValueError):
                write(stream, text)


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
