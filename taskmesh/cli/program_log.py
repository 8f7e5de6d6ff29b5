"""The lines of a program that runs: with the time, from a level on, never in a flood, as JSON if wanted."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TextIO

from taskmesh.cli.output import Output, encoded, printable, time_of_day, write
from taskmesh.system.clock import monotonic

LEVELS = ("debug", "info", "warning", "error")
PER_SECOND = 50
"""Events of a kind that are logged in a second; the next line of that kind says how many were not."""
_WARNINGS = (".failed", ".refused", ".lost", ".unusable", ".dropped", ".blocked", ".left")


class ProgramLog:
    """Logs events as a kind, a line for people and fields for JSON.

    Args:
        out: where events are written.
        level: the lowest level that is logged, one of LEVELS. A task's traceback is logged at "debug" only.
    """

    def __init__(self, out: Output, level: str = "info") -> None:
        self._out = out
        self._least = LEVELS.index(level)
        self._seconds: dict[str, tuple[float, int]] = {}

    def record(self, kind: str, fields: Mapping[str, object]) -> None:
        """Log one event, unless its level is too low or there are too many."""
        rank = "warning" if kind.endswith(_WARNINGS) else "info"
        if LEVELS.index(rank) < self._least:
            return
        now = monotonic()
        since, count = self._seconds.get(kind, (now, 0))
        unlogged = 0
        if now - since >= 1.0:
            since, unlogged, count = now, max(0, count - PER_SECOND), 0
        self._seconds[kind] = (since, count + 1)
        if count >= PER_SECOND:
            return
        shown = {key: value for key, value in fields.items() if key != "traceback" and value != ""}
        if unlogged:
            shown["untold_before"] = unlogged
        line = " ".join([kind, *(f"{key}={printable(str(value))}" for key, value in shown.items())])
        trace = str(fields.get("traceback", "")).rstrip() if self._least == 0 else ""
        if trace:
            shown["traceback"] = trace
            line = "\n".join([line, *map(printable, trace.splitlines())])
        self._out.news(kind, line, {"level": rank, **shown}, keep="\n")


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


@contextlib.contextmanager
def whole_lines(out: Output) -> Iterator[None]:
    """With JSON, make objects of all that others write to stdout and stderr: tasks, loggers, warnings."""
    former = sys.stdout, sys.stderr
    made = [EventStream(stream) for stream in former if out.as_json and stream is not None]
    if len(made) == len(former):
        sys.stdout, sys.stderr = made
    try:
        yield
    finally:
        sys.stdout, sys.stderr = former
        for stream in made:
            with contextlib.suppress(OSError, ValueError):
                stream.finish()
