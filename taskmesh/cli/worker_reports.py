"""What the worker tells: one line when it is ready on stdout, the rest on stderr; for people or as JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TextIO


class Reports:
    """Writes lines for people, or JSON objects, one a line."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def ready(self, text: str, fields: dict[str, object]) -> None:
        """The worker's one line on stdout."""
        self._write(sys.stdout, text, {"event": "ready", **fields})

    def news(self, event: str, text: str) -> None:
        """Something that whoever runs the worker should know."""
        self._write(sys.stderr, text, {"event": event, "message": text})

    def event(self, kind: str, text: str, fields: dict[str, object]) -> None:
        """One event of the log."""
        self._write(sys.stderr, text, {"event": kind, **fields})

    def _write(self, stream: TextIO | None, text: str, fields: dict[str, object]) -> None:
        line = json.dumps(fields) if self._as_json else f"taskmesh worker: {text}"
        if stream is None:  # started without it: 2>&-
            return
        with contextlib.suppress(OSError, ValueError):  # nobody reads it (any more): no reason to end
            stream.write(f"{line}\n")
            stream.flush()
