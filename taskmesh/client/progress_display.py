"""Progress as people see it: bars or lines on stderr, in a notebook the output of its cell."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable
from html import escape
from typing import Any, Final

from taskmesh.client.progress import Progress, ProgressCounter, ProgressOption, Show
from taskmesh.errors import ConfigError
from taskmesh.system.clock import monotonic

FIRST_LINE_S: Final = 1.0
LINE_S: Final = 10.0
LABEL_WIDTH: Final = 24
"""Columns of a terminal that a label may take."""


def counter_of(
    option: ProgressOption,
    label: str,
    total: int | None,
    later: Callable[[Iterable[Callable[[], None]]], object] | None = None,
) -> ProgressCounter | None:
    """Return a counter that shows what `progress=` asks for; None for nothing.

    Args:
        option: the value of `progress=`.
        label: a function's name, for the label if it names none.
        total, later: as the counter takes them.

    Raises:
        ConfigError: it is none of the values that `progress=` takes.
    """
    if callable(option):
        function = option
        return ProgressCounter(total, lambda progress, _: function(progress), later)
    if not isinstance(option, bool | str):
        raise ConfigError(f"progress has to be True, a label, or a function of one argument, not {option!r}")
    if not option:
        return None
    return ProgressCounter(total, _display(label.rpartition(".")[2] if option is True else option), later)


def _display(label: str) -> Show:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return NotebookBar(label)
    # rich's own answer would be FORCE_COLOR's
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalBar(label)
    return Lines(label)


class Lines:
    """Lines of text: at 1 s, then each 10 s, at each quarter and at the end."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._due = monotonic() + FIRST_LINE_S
        self._quarter = 0
        self._last: tuple[int, int] | None = None

    def __call__(self, progress: Progress, last: bool) -> None:
        """Print a line, if it is time to."""
        now = monotonic()
        quarter = 4 * progress.done // progress.total if progress.total else 0
        if not (last or now >= self._due or quarter > self._quarter):
            return
        self._quarter = max(quarter, self._quarter)
        if now >= self._due:
            self._due = now + LINE_S
        shown = (progress.done, progress.failed)
        if shown != self._last and sys.stderr is not None:
            share = f" ({progress.done / progress.total:.0%})" if progress.total else ""
            words = ", ".join(filter(None, (progress.counts + share, progress.failures, progress.pace)))
            print(f"{self._label}: {words}", file=sys.stderr, flush=True)
        self._last = shown


class NotebookBar:
    """A bar in the output of a notebook's cell."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._handle: Any = None

    def __call__(self, progress: Progress, last: bool) -> None:
        """Display it, or what has changed of it."""
        size = "" if progress.total is None else f' value="{progress.done}" max="{progress.total}"'
        failures = f'<span style="color: red">{progress.failures}</span>'
        html = (
            f"{escape(self._label)} <progress{size}></progress> {progress.counts} {failures} {progress.pace}"
        )
        text = f"{self._label}: {progress.counts} {progress.failures} {progress.pace}"
        data = {"text/plain": text, "text/html": html}
        if self._handle is None:
            self._handle = sys.modules["IPython.display"].display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class Terminal:
    """The bars of this process on its terminal, which rich draws while one of them is open.

    Attributes:
        lock: held while one is opened, drawn or closed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bars: Any = None
        self._open = 0

    def open(self, label: str) -> tuple[Any, Any]:
        """Open a bar; return rich's bars and its number among them."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        if self._bars is None:
            columns = (
                TextColumn(
                    "{task.description}",
                    markup=False,
                    table_column=Column(max_width=LABEL_WIDTH, no_wrap=True, overflow="ellipsis"),
                ),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[words]}", table_column=Column(no_wrap=True)),
            )
            # Nothing is drawn between two arrivals, and what the program prints stays its own.
            self._bars = Progress(
                *columns,
                console=Console(file=sys.stderr),
                auto_refresh=False,
                expand=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bars.start()
            atexit.register(self._bars.stop)  # the cursor comes back, whatever becomes of the loop
        self._open += 1
        return self._bars, self._bars.add_task(label, total=None, words="")

    def close(self) -> None:
        """Close a bar: it stays where it is."""
        self._open -= 1
        if not self._open:
            atexit.unregister(self._bars.stop)
            self._bars.stop()
            self._bars = None


TERMINAL: Final = Terminal()


class TerminalBar:
    """A bar on the terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._opened: tuple[Any, Any] | None = None

    def __call__(self, progress: Progress, last: bool) -> None:
        """Draw it."""
        failures = f"[red]{progress.failures}[/red]" if progress.failed else ""
        words = "  ".join(filter(None, (progress.counts, failures, progress.pace)))
        with TERMINAL.lock:
            if self._opened is None:
                self._opened = TERMINAL.open(self._label)
            bars, number = self._opened
            bars.update(number, completed=progress.done, total=progress.total, words=words, refresh=True)
            if last:
                TERMINAL.close()
