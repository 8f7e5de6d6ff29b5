"""`taskmesh ping`, `pause`, `resume`, `cancel` and `fulfil`: commands that a hub carries out."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from taskmesh.cli.exits import FAILED
from taskmesh.cli.format import printable
from taskmesh.cli.operator import EVERYTHING, Reach, hub_command
from taskmesh.cli.options import known_id
from taskmesh.cli.output import Output
from taskmesh.cli.submission import decoded
from taskmesh.errors import ConfigError

if TYPE_CHECKING:
    from taskmesh.net.client.port import SubmitPort

Pool = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name, or `all`.")]
AnyPool = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name; all pools if not given.")]
PAUSE = 0.01
"""Seconds between looks at what the hub has heard."""
LATE = "somebody has fulfilled it before"
DONE = {"pause": "paused", "resume": "resumed"}


@hub_command
def ping(reach: Reach, out: Output, pool: AnyPool = "all") -> None:
    """Ask pools for a sign of life and print how long it took; exit code 1 if one does not answer."""
    with reach.session() as hub:
        rows = signs_of_life(hub, pool, reach.timeout)
    out.rows(rows, ("pool", "answered", "seconds"), "no pools: start one with `taskmesh worker`")
    if not all(row["answered"] for row in rows):
        raise typer.Exit(FAILED)


@hub_command
def pause(reach: Reach, out: Output, pool: Pool) -> None:
    """Give a pool no new work; its running tasks continue."""
    command_pools(reach, out, "pause", pool)


@hub_command
def resume(reach: Reach, out: Output, pool: Pool) -> None:
    """Let a paused pool take work again."""
    command_pools(reach, out, "resume", pool)


@hub_command
def cancel(
    reach: Reach,
    out: Output,
    task: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The task's id, as `taskmesh tasks` shows it.", callback=known_id),
    ] = None,
    *,
    client: Annotated[
        str, typer.Option(metavar="NAME|ID", help="All tasks of clients of this name, or of one id.")
    ] = "",
    key: Annotated[
        str, typer.Option(metavar="USER", help="All tasks submitted with this key, such as client:ann.")
    ] = "",
) -> None:
    """Cancel a task, running or not, or all tasks of a client or of a key."""
    given = {"cancel": task, "cancel-client": client, "cancel-key": key}
    named = [(verb, target) for verb, target in given.items() if target]
    if len(named) != 1:
        raise ConfigError("say what to cancel: the ID of a task, --client NAME or --key USER")
    verb, target = named[0]
    found = reach.command(verb, target)
    count = "" if verb == "cancel" else f"{found['cancelled']} tasks of "
    out.value(found, f"cancelled {count}{printable(target)}")


@hub_command
def fulfil(
    reach: Reach,
    out: Output,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the promise.")],
    value: Annotated[str, typer.Argument(metavar="[VALUE]", help="JSON, else taken as text.")] = "null",
    *,
    error: Annotated[
        str, typer.Option("--error", metavar="TEXT", help="Let it fail, with this as the error's text.")
    ] = "",
) -> None:
    """Give a promise its value; exit code 1 if somebody has done so before: the first one counts."""
    from taskmesh.mesh import Mesh

    failure = RuntimeError(error) if error else None
    with Mesh(config=reach.config) as mesh:
        first = mesh.fulfil(key, decoded(value), error=failure, timeout=reach.timeout)
    out.value({"key": key, "fulfilled": first}, f"{printable(key)}: {'done' if first else LATE}")
    if not first:
        raise typer.Exit(FAILED)


def command_pools(reach: Reach, out: Output, verb: str, pool: str) -> None:
    """Send a command to pools and print the pools that it went to."""
    rows = reach.command(verb, pool)
    out.value(
        rows, lambda rows: "\n".join(f"{DONE[verb]} {row['pool']}" for row in rows) or "there are no pools"
    )


def signs_of_life(hub: SubmitPort, pool: str, timeout: float) -> list[dict[str, object]]:
    """Ping a pool, or "all", and wait for the answer of each, at most `timeout` seconds.

    Times are the hub's, of its ping and of the beat by which a pool answers at once: so the seconds are the
    trip from the hub to the pool and back.
    """
    begin = time.monotonic()
    rows = cast("list[dict[str, Any]]", hub.command("ping", pool, timeout))
    asked = {str(row["pool"]): float(row["asked_at"]) for row in rows}
    heard: dict[str, float] = {}
    pause = threading.Event()
    while len(heard) < len(asked) and time.monotonic() - begin < timeout:
        for row in cast("list[dict[str, Any]]", hub.query("pools", limit=EVERYTHING, timeout=timeout)):
            name = str(row["pool"])
            seconds = float(row["heard_at"]) - asked.get(name, math.inf)
            if seconds > 0 and name not in heard:
                heard[name] = round(seconds, 6)
        if len(heard) < len(asked):
            pause.wait(PAUSE)
    return [{"pool": name, "answered": name in heard, "seconds": heard.get(name)} for name in asked]
