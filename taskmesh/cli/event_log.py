"""The log of a running program's events: with the time, from a level on, and never in a flood."""

from __future__ import annotations

from collections.abc import Callable

from taskmesh.cli.format import printable
from taskmesh.cli.output import time_of_day
from taskmesh.system.clock import monotonic

LEVELS = ("debug", "info", "warning", "error")
PER_SECOND = 50
"""Events of a kind that are logged in a second; the next line of that kind says how many were not."""
_WARNINGS = (".failed", ".refused", ".lost", ".unusable", ".dropped")

Write = Callable[[str, str, dict[str, object]], None]


class EventLog:
    """Logs events as a kind, a line for people and fields for JSON.

    Args:
        write: writes one event.
        level: the lowest level that is logged, one of LEVELS. A task's traceback is logged at "debug" only.
    """

    def __init__(self, write: Write, level: str = "info") -> None:
        self._write = write
        self._least = LEVELS.index(level)
        self._seconds: dict[str, tuple[float, int]] = {}

    def record(self, kind: str, fields: dict[str, object]) -> None:
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
        at = time_of_day()
        self._write(kind, f"{at} {line}", {"time": at, "level": rank, **shown})
