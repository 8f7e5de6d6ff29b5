"""`taskmesh drain` and `scale-in`: pools leave, asked through their hub or at their own side port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer

from taskmesh.cli.exits import TOO_LATE
from taskmesh.cli.operator import EVERYTHING, Reach, hub_command
from taskmesh.cli.options import (
    Address,
    ConfigFile,
    Http,
    HttpTokenFile,
    Keys,
    Timeout,
    command,
    hub_settings,
)
from taskmesh.cli.output import Output
from taskmesh.errors import ConfigError, TaskMeshError

Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait up to this long until it has left.")
]
PAUSE = 0.1
"""Seconds between looks at whether a pool has left."""


def reach_or_side_port(
    *,
    http: Http = None,
    http_token_file: HttpTokenFile = None,
    address: Address = None,
    timeout: Timeout = 5.0,
    directory: Keys = None,
    file: ConfigFile = None,
) -> Reach:
    """Return the hub, and the settings of the side port too."""
    side = {"http": http, "http_token_file": http_token_file}
    return Reach(hub_settings(address=address, directory=directory, file=file, **side), timeout)


@command(reach_or_side_port)
def drain(
    reach: Reach,
    out: Output,
    pool: Annotated[
        str, typer.Argument(metavar="POOL", help="A pool's name, or `all`; without one, the pool at --http.")
    ] = "",
    *,
    wait: Wait = 0.0,
) -> None:
    """Let a pool finish its running tasks, return the others to the hub, and end."""
    if pool:
        left = through_hub(out, "drain", pool, reach, wait=wait)
    else:
        if not reach.config.program.http:
            raise ConfigError("drain which pool? Name it, or give --http HOST:PORT of its side port")
        left = at_side_port(out, reach, wait)
    ended(out, wait, left=left)


@hub_command
def scale_in(
    reach: Reach,
    out: Output,
    pools: Annotated[
        str, typer.Argument(metavar="POOL", help="Pools of this name, and of POOL-anything; or `all`.")
    ],
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of pools to drain.")],
    *,
    wait: Wait = 0.0,
) -> None:
    """Drain the N pools with the least to do, and print their names.

    The pods of a Kubernetes Deployment are pools of its name: take away those, and no busy pod ends.
    """
    ended(out, wait, left=through_hub(out, "scale-in", f"{number}:{pools}", reach, wait=wait))


def ended(out: Output, wait: float, *, left: bool) -> None:
    """End the command with its exit code if the pools have not left in time."""
    if not left:
        out.error(TimeoutError(f"not gone within {wait:g} s; it goes on draining"))
        raise typer.Exit(TOO_LATE)


def through_hub(out: Output, verb: str, target: str, reach: Reach, *, wait: float) -> bool:
    """Ask the hub; return True if all have left within `wait` seconds, or if `wait` is 0."""
    with reach.session() as hub:
        rows = cast("list[dict[str, Any]]", hub.command(verb, target, reach.timeout))
        what = "" if verb == "scale-in" else f"{verb}ing "
        out.value(
            rows, lambda rows: "\n".join(f"{what}{row['pool']}" for row in rows) or "there are no pools"
        )
        sessions = {row["session"] for row in rows}  # not names: what has ended may be started again

        def gone() -> bool:
            there = hub.query("pools", limit=EVERYTHING, timeout=reach.timeout)
            return not sessions & {row["session"] for row in cast("list[dict[str, Any]]", there)}

        return not wait or seen_within(wait, gone)


def at_side_port(out: Output, reach: Reach, wait: float) -> bool:
    """Ask the pool itself; return True if it has ended within `wait` seconds, or if `wait` is 0.

    Raises:
        TaskMeshError: no program answers, or it has no pool that could be drained.
    """
    from taskmesh.http.client import SidePortUnreachable
    from taskmesh.http.settings import side_client

    side = side_client(reach.config, reach.timeout)
    status, text = side.ask("POST", "/drain")
    if status != 202:
        raise TaskMeshError(f"the side port at {side.host}:{side.port} does not drain: {status} {text}")
    out.value({"draining": f"{side.host}:{side.port}"}, f"draining {side.host}:{side.port}")

    def gone() -> bool:
        try:
            side.ask("GET", "/livez")
        except SidePortUnreachable:
            return True
        return False

    return not wait or seen_within(wait, gone)


def lines_of(rows: list[dict[str, Any]], what: str) -> str:
    """Return a line for each pool, with what happens to it before its name."""
    return "\n".join(f"{what}{row['pool']}" for row in rows) or "there are no pools"


def seen_within(seconds: float, happened: Callable[[], bool]) -> bool:
    """Return True if the condition comes true in time."""
    pause, end = threading.Event(), time.monotonic() + seconds
    while not happened():
        if time.monotonic() >= end:
            return False
        pause.wait(PAUSE)
    return True
