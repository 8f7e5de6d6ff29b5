"""`taskmesh top`: verdicts, queues, pools, functions and running tasks of a hub, once a second."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskmesh.cli.command import Reach, hub_command
from taskmesh.cli.output import Output, harmless
from taskmesh.errors import ConfigError, HubUnreachable
from taskmesh.hub.machine.views.quantities import duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from taskmesh.messages.status import HubStatus

SHOWN = 50
"""Running tasks that are asked for."""
PARTS = ("queues", "pools", "functions", "running")
SORTS = ("rate", "p95", "errors", "name")
KEYS = "1-4 one part, 0 all, s sort, p pause, q quit"
BAR = 10


@dataclass(slots=True)
class Screen:
    """State of the screen: what is seen, and what of it.

    Attributes:
        part: the one that is shown; empty for all.
        sort: what functions are sorted by.
        paused: the answer stays as it is.
        status: the hub's latest answer; None before the first.
        running: the tasks that run.
        at: when that answer came.
        rates: ends a second of functions, by name; those of all tasks under the empty name.
        trouble: why there is no answer.
    """

    part: str = ""
    sort: str = "rate"
    paused: bool = False
    status: HubStatus | None = None
    running: list[dict[str, Any]] = field(default_factory=list)
    at: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    trouble: str = ""

    def take(self, status: HubStatus, running: list[dict[str, Any]], now: float) -> None:
        """Take in an answer; what has ended since the one before it makes the rates."""
        ends = ended(status)
        if self.status and self.status["epoch"] == status["epoch"] and now > self.at:
            before = ended(self.status)
            self.rates = {name: (ends[name] - before.get(name, 0)) / (now - self.at) for name in ends}
        self.status, self.running, self.at, self.trouble = status, running, now, ""

    def press(self, key: str) -> bool:
        """Do what a key says; return False if that is to end."""
        if key == "p":
            self.paused = not self.paused
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key in "01234":
            self.part = (("", *PARTS))[int(key)]
        return key not in ("q", "\x03", "\x1b")


def ended(status: HubStatus) -> dict[str, int]:
    """Return how many tasks of each function have ended, and of all under the empty name."""
    counts = {each["name"]: each["succeeded"] + each["failed"] for each in status["functions"]}
    return {"": status["finished"], **counts}


@hub_command
def top(
    reach: Reach,
    out: Output,
    *,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Ask so often.")] = 1.0,
    sort: Annotated[str, typer.Option(metavar="|".join(SORTS), help="Sort functions by it.")] = "rate",
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one interval.")] = False,
) -> None:
    """Watch what runs, waits and fails. Keys: 1-4 one part, 0 all, s sort, p pause, q quit.

    Where stdout is no terminal, a frame is printed after each interval.

    Example:
        taskmesh top --interval 5 --sort errors
    """
    from rich.console import Console

    if sort not in SORTS:
        raise ConfigError(f"--sort {sort}: choose from {', '.join(SORTS)}")
    screen = Screen(sort=sort)
    with reach.session() as hub:

        def ask() -> None:
            try:
                status: Any = hub.query("status", timeout=reach.timeout)
                running: Any = hub.query("tasks", "running", SHOWN, reach.timeout)
                screen.take(harmless(status), harmless(running), time.monotonic())
            except HubUnreachable as error:
                screen.trouble = str(error)

        ask()
        live = sys.stdout.isatty() and sys.stdin.isatty() and not once
        with _watched(screen, Console()) if live else _printed(screen, out) as show:
            while show(interval):
                if not screen.paused:
                    ask()
                if once:
                    show(0.0)
                    return


@contextlib.contextmanager
def _printed(screen: Screen, out: Output) -> Iterator[Any]:
    """Print frames, the first one when there are rates."""
    from rich.console import Console

    pause = threading.Event()

    def show(interval: float) -> bool:
        if screen.rates or screen.trouble or not interval:
            if out.as_json:
                out.value({**(screen.status or {}), "running": screen.running, "rates": screen.rates}, "")
            else:
                Console(width=120, no_color=True).print(frame(screen, 120, 1000))
        pause.wait(interval)
        return True

    yield show


@contextlib.contextmanager
def _watched(screen: Screen, console: Console) -> Iterator[Any]:
    """Draw frames on the terminal's other screen, and read keys; the terminal is left as it was."""
    import termios
    import tty

    from rich.live import Live

    def show(interval: float) -> bool:
        end = time.monotonic() + interval
        while True:
            live.update(frame(screen, console.width, console.height), refresh=True)
            left = end - time.monotonic()
            if left <= 0 or not select.select([stdin], [], [], left)[0]:
                return True
            if not screen.press(os.read(stdin, 1).decode(errors="replace")):
                return False

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            yield show
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def frame(screen: Screen, width: int, height: int) -> RenderableType:
    """Return what is seen, in so many columns and lines."""
    from rich.console import Group
    from rich.text import Text

    status = screen.status
    if status is None:
        return Text(screen.trouble)
    verdicts = [f"! {text}" for text in status["verdicts"]]
    head = [Text(line, style="bold red") for line in verdicts]
    if screen.trouble:
        head.insert(0, Text(f"the hub does not answer: {screen.trouble}", style="bold white on red"))
    states = ", ".join(f"{count:,} {name}" for name, count in status["tasks"].items() if count)
    rate = f"{screen.rates.get('', 0.0):,.0f}/s"
    paused = "; paused" if screen.paused else ""
    head.append(Text(f"{status['finished']:,} finished, {rate}; {states or 'nothing on its way'}{paused}"))
    shown = [screen.part] if screen.part else list(PARTS)
    above = sum(len(line) // width + 1 for line in head)
    lines = max(1, (height - above - 1) // len(shown) - 2)
    tables = [PART_TABLES[part](screen, status, lines) for part in shown]
    return Group(*head, *tables, Text(KEYS, style="dim", no_wrap=True))


def _table(title: str, columns: list[str], rows: list[list[str]], most: int) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column(title.upper(), ratio=1, no_wrap=True, overflow="ellipsis")
    for name in columns:
        table.add_column(name.upper(), justify="right", no_wrap=True)
    for row in rows[:most]:
        table.add_row(*map(escape, row))
    if len(rows) > most:
        table.add_row(f"... {len(rows) - most} more")
    return table


def _queues(screen: Screen, status: HubStatus, most: int) -> RenderableType:
    rows = [
        [
            " ".join([each["queue"], *each["tags"]]),
            f"{each['waiting']:,}",
            duration(each["oldest"]) if each["waiting"] else "",
            str(each["pools"]),
            f"{each['busy']}/{each['slots']}",
        ]
        for each in status["queues"]
    ]
    return _table("queue", ["waiting", "oldest", "pools", "busy"], rows, most)


def _pools(screen: Screen, status: HubStatus, most: int) -> RenderableType:
    rows = [
        [
            each["pool"],
            each["state"],
            "#" * round(BAR * each["busy"] / max(1, each["slots"])),
            f"{each['busy']}/{each['slots']}",
            f"{each['outstanding']:,}",
            duration(each["heard"]),
        ]
        for each in sorted(status["pools"], key=lambda pool: (-pool["busy"], pool["pool"]))
    ]
    return _table("pool", ["state", "slots", "busy", "has", "heard"], rows, most)


def _functions(screen: Screen, status: HubStatus, most: int) -> RenderableType:
    orders: dict[str, Any] = {
        "rate": lambda each: -screen.rates.get(each["name"], 0.0),
        "p95": lambda each: -(each["run"]["p95"] or 0.0),
        "errors": lambda each: -each["failed"],
        "name": lambda each: each["name"],
    }
    rows = []
    for each in sorted(status["functions"], key=orders[screen.sort]):
        over = each["succeeded"] + each["failed"]
        times = [each["run"]["p50"], each["run"]["p95"], each["wait"]["p95"]]
        rows.append(
            [
                each["name"],
                f"{screen.rates.get(each['name'], 0.0):,.0f}/s",
                f"{100 * each['failed'] / over:.1f} %" if over else "",
                *("" if value is None else duration(value) for value in times),
            ]
        )
    return _table(f"function, by {screen.sort}", ["rate", "failed", "p50", "p95", "wait p95"], rows, most)


def _running(screen: Screen, status: HubStatus, most: int) -> RenderableType:
    rows = [
        [each["name"], each["task_id"], each["pool"], str(each["attempt"]), duration(each["seconds"])]
        for each in screen.running
    ]
    return _table("running longest", ["task", "pool", "attempt", "for"], rows, most)


PART_TABLES = {"queues": _queues, "pools": _pools, "functions": _functions, "running": _running}
