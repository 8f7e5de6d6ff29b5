"""What commands print: JSON, tables on a terminal, aligned columns elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO


class Output:
    """Results on stdout, errors on stderr (with JSON: on stdout too, as an object with the key "error")."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def value(self, value: object, text: str) -> None:
        """A result: as JSON, or as the text for people."""
        if self.as_json:
            self._line(sys.stdout, json.dumps(value, default=repr))
        elif text:
            self._line(sys.stdout, text)

    def rows(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str], empty: str) -> None:
        """A list of equal things. `empty`: what people read when there are none."""
        if self.as_json:
            self._line(sys.stdout, json.dumps(rows, default=repr))
        elif not rows:
            self._line(sys.stderr, empty)
        else:
            cells = [[shown(row.get(column, "")) for column in columns] for row in rows]
            self._table([name.upper() for name in columns], cells)

    def news(self, kind: str, text: str, fields: Mapping[str, object]) -> None:
        """Something that happened while a program runs, on stderr."""
        line = json.dumps({"event": kind, **fields}, default=repr) if self.as_json else f"taskmesh: {text}"
        self._line(sys.stderr, line)

    def error(self, error: BaseException, details: Mapping[str, object] | None = None) -> None:
        """Why the command failed."""
        if self.as_json:
            fields = {"type": type(error).__name__, "message": str(error), **(details or {})}
            self._line(sys.stdout, json.dumps({"error": fields}, default=repr))
        else:
            self._line(sys.stderr, f"taskmesh: {error}")

    def text(self, text: str) -> None:
        """For people, on stderr, beside what stdout carries."""
        self._line(sys.stderr, text)

    def _table(self, head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        if sys.stdout.isatty():
            from rich.console import Console
            from rich.markup import escape
            from rich.table import Table

            table = Table(box=None, header_style="bold", pad_edge=False)
            for name in head:
                table.add_column(name, overflow="fold")
            for row in cells:
                table.add_row(*map(escape, row))
            Console().print(table)
            return
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
        for row in (head, *cells):
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self._line(sys.stdout, "  ".join(padded))

    def _line(self, stream: TextIO, text: str) -> None:
        stream.write(text.rstrip() + "\n")
        stream.flush()


def shown(value: object) -> str:
    """A cell's text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Iterable):
        return ",".join(map(str, value))
    return "" if value is None else str(value)
