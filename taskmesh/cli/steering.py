"""`taskmesh cancel` and `drain`, and the commands for pools and limits: an operator's hand at a hub."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer

from taskmesh.cli.command import EVERYTHING, TOO_LATE, Reach, TaskId, command, hub_command, known_id
from taskmesh.cli.output import Output, printable
from taskmesh.errors import ConfigError, TaskMeshError

POOL_COLUMNS = ("pool", "state", "slots", "busy", "outstanding", "queues", "tags", "host", "pid", "heard")
LIMIT_COLUMNS = ("limit", "rule", "set_by", "keys", "running", "started", "waiting")
PAUSE = 0.1
"""Seconds between looks at whether a pool has left."""
NO_POOLS = "no pools: start one with `taskmesh worker`"

Pool = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name, or `all`.")]
Limit = Annotated[str, typer.Argument(metavar="NAME", help="The limit's name.")]


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
    """Cancel a task, running or not, or all tasks of a client or of a key.

    Example:
        taskmesh cancel 084a60bcc72ce7810000000000000001
    """
    given = {"cancel": task, "cancel-client": client, "cancel-key": key}
    named = [(verb, target) for verb, target in given.items() if target]
    if len(named) != 1:
        raise ConfigError("say what to cancel: the ID of a task, --client NAME or --key USER")
    verb, target = named[0]
    found = reach.command(verb, target)
    count = "" if verb == "cancel" else f"{found['cancelled']} tasks of "
    out.value(found, f"cancelled {count}{printable(target)}")


@hub_command
def stack(reach: Reach, out: Output, task: TaskId) -> None:
    """Show where a running task is in its code: the stacks of its process's threads. It goes on unharmed.

    Example:
        taskmesh stack 084a60bcc72ce7810000000000000001
    """
    from taskmesh.messages.runs import STACK

    with reach.session() as hub:
        asked: Any = hub.command("stack", task, reach.timeout)
        found: list[dict[str, Any]] = []

        def told() -> bool:
            answer: Any = hub.query("logs", f"{task} {asked['after']}", EVERYTHING, reach.timeout)
            found.extend(line for line in answer["lines"] if line["logger"] == STACK)
            return bool(found) or not answer["on_its_way"]

        if not _seen_within(reach.timeout, told):
            raise TaskMeshError(
                f"its pool has not said within {reach.timeout:g} s: it may not have started there, "
                f"`taskmesh explain {task}` says where it is"
            )
    if not found:
        raise TaskMeshError(f"task {task} has ended meanwhile")
    out.value({"task_id": task, **found[0]}, printable(found[0]["text"], keep="\n"))


@command("address", "keys", "http", "http_token_file", subject=Reach, timeout=5.0)
def drain(
    reach: Reach,
    out: Output,
    pool: Annotated[
        str, typer.Argument(metavar="POOL", help="A pool's name, or `all`; without one, the pool at --http.")
    ] = "",
    *,
    idlest: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Of POOL and POOL-anything, only the N pools with the least to do."
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Wait up to this long until it has left.")
    ] = 0.0,
) -> None:
    """Let a pool finish its running tasks, return the others to the hub, and end. Print the pools that do.

    The pods of a Kubernetes Deployment are pools of its name: take the idlest away, and no busy pod ends.

    Example:
        taskmesh drain gpu-1 --wait 600
    """
    if pool:
        left = _drain_through_hub(reach, out, pool, idlest, wait)
    elif reach.config.program.http and idlest is None:
        left = _drain_at_side_port(reach, out, wait)
    else:
        raise ConfigError("drain which pool? Name it, or give --http HOST:PORT of its side port")
    if not left:
        out.error(TimeoutError(f"not gone within {wait:g} s; it goes on draining"))
        raise typer.Exit(TOO_LATE)


def _drain_through_hub(reach: Reach, out: Output, pool: str, idlest: int | None, wait: float) -> bool:
    """Ask the hub; return True if all have left within `wait` seconds, or if `wait` is 0."""
    verb, target = ("drain", pool) if idlest is None else ("scale-in", f"{idlest}:{pool}")
    with reach.session() as hub:
        rows = cast("list[dict[str, Any]]", hub.command(verb, target, reach.timeout))
        out.value(rows, lambda rows: "\n".join(row["pool"] for row in rows) or NO_POOLS)
        sessions = {row["session"] for row in rows}  # not names: what has ended may be started again

        def gone() -> bool:
            there = hub.query("pools", limit=EVERYTHING, timeout=reach.timeout)
            return not sessions & {row["session"] for row in cast("list[dict[str, Any]]", there)}

        return not wait or _seen_within(wait, gone)


def _drain_at_side_port(reach: Reach, out: Output, wait: float) -> bool:
    """Ask the pool itself; return True if it has ended within `wait` seconds, or if `wait` is 0.

    Raises:
        TaskMeshError: no program answers, or it has no pool that could be drained.
    """
    from taskmesh.http.client import SidePortUnreachable
    from taskmesh.http.settings import side_client

    side = side_client(reach.config, reach.timeout)
    where = f"{side.host}:{side.port}"
    status, text = side.ask("POST", "/drain")
    if status != 202:
        raise TaskMeshError(f"the side port at {where} does not drain: {status} {text}")
    out.value({"draining": where}, where)

    def gone() -> bool:
        try:
            side.ask("GET", "/livez")
        except SidePortUnreachable:
            return True
        return False

    return not wait or _seen_within(wait, gone)


def _seen_within(seconds: float, happened: Callable[[], bool]) -> bool:
    """Return True if the condition comes true in time."""
    pause, end = threading.Event(), time.monotonic() + seconds
    while not happened():
        if time.monotonic() >= end:
            return False
        pause.wait(PAUSE)
    return True


@hub_command
def list_pools(reach: Reach, out: Output) -> None:
    """List the pools that the hub has a session with.

    Example:
        taskmesh pool list
    """
    out.rows(reach.query("pools"), POOL_COLUMNS, NO_POOLS)


@hub_command
def pause(reach: Reach, out: Output, pool: Pool) -> None:
    """Give a pool no new work; its running tasks continue.

    Example:
        taskmesh pool pause gpu-1
    """
    rows = reach.command("pause", pool)
    out.value(rows, lambda rows: "\n".join(f"paused {row['pool']}" for row in rows) or NO_POOLS)


@hub_command
def resume(reach: Reach, out: Output, pool: Pool) -> None:
    """Let a paused pool take work again.

    Example:
        taskmesh pool resume all
    """
    rows = reach.command("resume", pool)
    out.value(rows, lambda rows: "\n".join(f"resumed {row['pool']}" for row in rows) or NO_POOLS)


@hub_command
def list_limits(reach: Reach, out: Output) -> None:
    """List limits: what each allows, and how many tasks run, started in its window, and wait.

    Example:
        taskmesh limits list
    """
    out.rows(reach.query("limits"), LIMIT_COLUMNS, "no limits: no task has had one")


@hub_command
def set_limit(
    reach: Reach,
    out: Output,
    name: Limit,
    rule: Annotated[
        str, typer.Argument(metavar="RATE_OR_N", help="A rate such as 50/s or 600/m, or tasks at a time.")
    ],
) -> None:
    """Set a limit; it goes before that of the code until `unset`, or until the hub ends.

    Example:
        taskmesh limits set api 50/s
    """
    found = reach.command("limit", f"{name}:{rule}")
    out.value(found, f"limit {printable(name)} is {found['rule']}")


@hub_command
def unset_limit(reach: Reach, out: Output, name: Limit) -> None:
    """Leave a limit to the code again.

    Example:
        taskmesh limits unset api
    """
    found = reach.command("unlimit", name)
    out.value(found, f"limit {printable(name)} is {found['rule'] or 'not stated by any task'}")


POOL_COMMANDS = {"list": list_pools, "pause": pause, "resume": resume}
LIMIT_COMMANDS = {"list": list_limits, "set": set_limit, "unset": unset_limit}
