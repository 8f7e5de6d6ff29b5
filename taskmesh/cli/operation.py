"""`taskmesh ping`, `pause`, `resume` and `cancel`: what operators tell a hub to do."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from taskmesh.cli.exits import EPILOG, FAILED, exits
from taskmesh.cli.format import harmless
from taskmesh.cli.options import Address, AsJson, ConfigFile, Keys, Reach, Timeout
from taskmesh.cli.output import Output
from taskmesh.errors import ConfigError

Pool = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name, or `all`.")]
AnyPool = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name; all of them if not given.")]
DONE = {"pause": "paused", "resume": "resumed"}


def ping(
    pool: AnyPool = "all",
    *,
    address: Address = None,
    timeout: Timeout = 5.0,
    directory: Keys = None,
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Ask pools for a sign of life, and tell how long it took; exit code 1 when one gives none."""
    out = Output(as_json=json)
    reach = Reach(file, address, timeout, directory)
    with exits(out):
        from taskmesh.cli.operator import hub_session, signs_of_life

        with hub_session(reach) as hub:
            rows = signs_of_life(hub, pool, timeout)
        out.rows(rows, ("pool", "answered", "seconds"), "no pools: start one with `taskmesh worker`")
        if not all(row["answered"] for row in rows):
            raise typer.Exit(FAILED)


def pause(
    pool: Pool,
    *,
    address: Address = None,
    timeout: Timeout = 5.0,
    directory: Keys = None,
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Give a pool no new work; what it runs goes on."""
    obeyed("pause", pool, Reach(file, address, timeout, directory), json=json)


def resume(
    pool: Pool,
    *,
    address: Address = None,
    timeout: Timeout = 5.0,
    directory: Keys = None,
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Give a paused pool work again."""
    obeyed("resume", pool, Reach(file, address, timeout, directory), json=json)


def cancel(
    task: Annotated[
        str, typer.Argument(metavar="ID", help="The task's id, as `taskmesh tasks` shows it.")
    ] = "",
    *,
    client: Annotated[
        str, typer.Option(metavar="NAME|ID", help="All tasks of clients of this name, or of one id.")
    ] = "",
    key: Annotated[
        str, typer.Option(metavar="USER", help="All tasks of who shows this key, such as client:ann.")
    ] = "",
    address: Address = None,
    timeout: Timeout = 5.0,
    directory: Keys = None,
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Cancel a task, running or not, or all tasks of a client or of a key."""
    out = Output(as_json=json)
    with exits(out):
        given = {"cancel": task, "cancel-client": client, "cancel-key": key}
        named = [(verb, target) for verb, target in given.items() if target]
        if len(named) != 1:
            raise ConfigError("say what to cancel: the ID of a task, --client NAME or --key USER")
        verb, target = named[0]
        found = command(Reach(file, address, timeout, directory), verb, target)
        what = harmless(target)
        if verb != "cancel":
            what = f"{cast('dict[str, Any]', found)['cancelled']} tasks of {what}"
        out.value(found, f"cancelled {what}")


def obeyed(verb: str, pool: str, reach: Reach, *, json: bool) -> None:
    """Sends a command to pools and prints which ones it went to."""
    out = Output(as_json=json)
    with exits(out):
        rows = cast("list[dict[str, Any]]", command(reach, verb, pool))
        out.value(
            rows, "\n".join(f"{DONE[verb]} {row['pool']}" for row in harmless(rows)) or "there are no pools"
        )


def command(reach: Reach, verb: str, target: str) -> object:
    """Has the hub carry a command out.

    Raises:
        HubUnreachable: it does not answer. TaskMeshError: it refuses.
    """
    from taskmesh.cli.operator import hub_session

    with hub_session(reach) as hub:
        return hub.command(verb, target, reach.timeout)


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    for added in (ping, pause, resume, cancel):
        app.command(epilog=EPILOG)(added)
