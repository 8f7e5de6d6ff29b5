"""The output of commands: JSON, tables on a terminal, aligned columns elsewhere."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
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
        line = encoded({"event": "ready", "time": time_of_day(), **fields, "pid": os.getpid()})
        self._say(sys.stdout, line if self.as_json else f"taskmesh {program}: ready: {text}")

    def news(self, kind: str, text: str, fields: Mapping[str, object], keep: str = "") -> None:
        """Print an event of a running program on stderr; control characters in `keep` are not escaped."""
        event = {"event": kind, "time": time_of_day(), **fields}
        self._say(sys.stderr, encoded(event) if self.as_json else f"taskmesh: {printable(text, keep)}")

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """With JSON, make objects of all that others write to stdout and stderr: tasks, loggers, warnings."""
        former = sys.stdout, sys.stderr
        made = [EventStream(stream) for stream in former if self.as_json and stream is not None]
        if len(made) == len(former):
            sys.stdout, sys.stderr = made
        try:
            yield
        finally:
            sys.stdout, sys.stderr = former
            for stream in made:
                with contextlib.suppress(OSError, ValueError):
                    stream.finish()

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
                write(stream.behind if isinstance(stream, EventStream) else stream, text)


class EventStream(io.TextIOBase):
    """A stream on which each line becomes an event `output`.

    Args:
        behind: the stream that the events are written to.
    """

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            write(self.behind, encoded({"event": "output", "time": time_of_day(), "text": line}))
        return len(text)

    def finish(self) -> None:
        """Write what has no line end."""
        if self._rest:
            self.write("\n")

    def fileno(self) -> int:
        return self.behind.fileno()


def time_of_day() -> str:
    """Return the time as events state it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


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
