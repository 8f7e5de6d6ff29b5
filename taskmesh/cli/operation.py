"""`taskmesh ping`, `pause`, `resume` and `cancel`: commands of an operator that a hub carries out."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from taskmesh.cli.exits import EPILOG, FAILED
from taskmesh.cli.format import harmless
from taskmesh.cli.options import Reach, hub_command
from taskmesh.cli.output import Output
from taskmesh.errors import ConfigError

Pool = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name, or `all`.")]
AnyPool = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name; all pools if not given.")]
DONE = {"pause": "paused", "resume": "resumed"}


@hub_command
def ping(reach: Reach, out: Output, pool: AnyPool = "all") -> None:
    """Ask pools for a sign of life and print how long it took; exit code 1 if one does not answer."""
    from taskmesh.cli.operator import hub_session, signs_of_life

    with hub_session(reach) as hub:
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
        str, typer.Argument(metavar="ID", help="The task's id, as `taskmesh tasks` shows it.")
    ] = "",
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
    found = command(reach, verb, target)
    what = harmless(target)
    if verb != "cancel":
        what = f"{cast('dict[str, Any]', found)['cancelled']} tasks of {what}"
    out.value(found, f"cancelled {what}")


def command_pools(reach: Reach, out: Output, verb: str, pool: str) -> None:
    """Send a command to pools and print the pools that it went to."""
    rows = cast("list[dict[str, Any]]", command(reach, verb, pool))
    text = "\n".join(f"{DONE[verb]} {row['pool']}" for row in harmless(rows))
    out.value(rows, text or "there are no pools")


def command(reach: Reach, verb: str, target: str) -> object:
    """Have the hub carry a command out, and return its answer.

    Raises:
        HubUnreachable: it does not answer.
        TaskMeshError: it refuses.
    """
    from taskmesh.cli.operator import hub_session

    with hub_session(reach) as hub:
        return hub.command(verb, target, reach.timeout)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for added in (ping, pause, resume, cancel):
        app.command(epilog=EPILOG)(added)
