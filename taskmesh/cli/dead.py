"""`taskmesh dead`: tasks that have ended badly while nobody waited for them, looked at and run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskmesh.cli.command import EVERYTHING, FAILED, Reach, TaskId, hub_command, known_id
from taskmesh.cli.output import Output, printable, time_of_day
from taskmesh.cli.submission import moment_of
from taskmesh.errors import ConfigError, HubUnreachable, TaskMeshError

if TYPE_CHECKING:
    from taskmesh.client.client import Client
    from taskmesh.client.futures.future import TaskFuture
    from taskmesh.messages.mesh_messages import Answer

Ask = Callable[[str], Any]
"""Asks the hub for a view."""
COLUMNS = ("task_id", "name", "state", "ended", "attempts", "error")
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="The ids of the tasks that have ended.", callback=known_id),
]
Most = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many, the newest.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


@dataclass(frozen=True, slots=True)
class Choice:
    """The letters that a command is for, by their function, time or error; all of them if none is given."""

    task: Annotated[str | None, typer.Option(metavar="NAME", help="Only tasks of this function.")] = None
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what ended since, as 2026-12-01T09:00.")
    ] = None
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those whose error has this in it.")
    ] = None

    def rows(self, ask: Ask) -> list[dict[str, Any]]:
        """Return the rows of these letters, the newest first."""
        start = moment_of(self.since).timestamp() if self.since else 0.0
        return [
            row
            for row in ask("dead")
            if row["ended"] >= start
            and (not self.task or self.task in (row["name"], row["name"].rpartition(".")[2]))
            and (not self.error or self.error in row["error"])
        ]

    def ids(self, ask: Ask, given: list[str] | None, *, every: bool) -> list[str]:
        """Return the ids that are given, or those of the letters that are chosen.

        Args:
            ask: asks the hub.
            given: ids.
            every: all letters may be meant.

        Raises:
            ConfigError: nothing is chosen.
        """
        if given:
            return given
        if not (self.task or self.since or self.error or every):
            raise ConfigError("name the tasks: by their ids, with --task, --since or --error, or --all")
        return [row["task_id"] for row in self.rows(ask)]


@hub_command
def show_all(reach: Reach, out: Output, *, choice: Choice, limit: Most = 100) -> None:
    """List dead letters, the newest first.

    Example:
        taskmesh dead list --error TimeoutError --limit 20
    """
    rows = choice.rows(reach.query)[:limit]
    for row in rows:
        row["ended"] = time_of_day(row["ended"])
    out.rows(rows, COLUMNS, "no dead letters")


@hub_command
def show(reach: Reach, out: Output, task_id: TaskId) -> None:
    """Show a dead letter: how its last attempt failed, and the last output of that.

    Example:
        taskmesh dead show 084a60bcc72ce7810000000000000001
    """
    found = reach.query("dead-letter", task_id)
    what = ": ".join(filter(None, (found["type"] or found["kind"], found["text"])))
    lines = [
        f"{found['name']} {found['task_id']}: {found['state']} at {time_of_day(found['ended'])}",
        f"attempt {found['attempts']} on {found['worker'] or '?'}: {what}",
        *(f"  {line}" for line in found["traceback"].splitlines()),
    ]
    if found["output"]:
        lines += ["last output:", *(f"  {line}" for line in found["output"].splitlines())]
    out.value(found, printable("\n".join(lines), keep="\n"))


@hub_command
def replay(
    reach: Reach,
    out: Output,
    ids: Ids = None,
    *,
    choice: Choice,
    limit: Most = 10_000,
    every: All = False,
) -> None:
    """Submit the calls of dead letters again, as a client; `taskmesh result` fetches the results.

    Example:
        taskmesh dead replay --since 2026-12-01T09:00
    """
    from taskmesh.client.submitter import client_of
    from taskmesh.mesh import Mesh

    with Mesh(config=reach.config) as mesh:
        client = client_of(mesh)
        port = client.open()

        def ask(what: str, argument: str = "") -> Any:
            return port.query(what, argument, EVERYTHING, reach.timeout)

        told, refused = [], {}
        for task_id in choice.ids(ask, ids, every=every)[:limit]:
            try:
                letter = ask("dead-call", task_id)
            except HubUnreachable:
                raise
            except TaskMeshError as refusal:
                refused[task_id] = str(refusal)
                continue
            told.append({"letter": task_id, "task_id": submit_again(client, letter).task_id})
    lines = [f"{each['letter']} runs again as {each['task_id']}" for each in told]
    lines += [f"{task_id} does not: {why}" for task_id, why in refused.items()]
    told += [{"letter": task_id, "error": why} for task_id, why in refused.items()]
    out.value(told, "\n".join(lines) or "none")
    if refused:
        raise typer.Exit(FAILED)


def submit_again(client: Client, letter: Answer) -> TaskFuture[Any]:
    """Submit the call of a dead letter.

    A call without a key gets one: while it is on its way, and a day after it has succeeded, the letter is not
    run once more.
    """
    from msgspec.structs import replace

    from taskmesh.client.futures.future import OpenRun
    from taskmesh.client.options import DETACHED_KEEP
    from taskmesh.core.specs import spec_number
    from taskmesh.messages.runs import CALL, FIRING
    from taskmesh.messages.schedules import split_tick

    [spec], [run] = letter.specs, letter.runs
    [payload] = run.payloads
    kind = spec.kind
    if kind == FIRING:
        kind, (_, payload) = CALL, split_tick(payload)
    spec = replace(spec, kind=kind, detach=True, on_client_loss="run", keep=max(spec.keep, DETACHED_KEEP))
    again = OpenRun(
        client.table, spec_number(spec), spec, client.new_group(), run.key or f"dead letter {letter.value}"
    )
    again.part = run.part
    return client.table.put(again, payload)


@hub_command
def purge(reach: Reach, out: Output, ids: Ids = None, *, choice: Choice, every: All = False) -> None:
    """Forget dead letters.

    Example:
        taskmesh dead purge 084a60bcc72ce7810000000000000001
    """
    chosen = choice.ids(reach.query, ids, every=every)
    with reach.session() as hub:
        told = [hub.command("dead-purge", task_id, reach.timeout) for task_id in chosen]
    out.value({"purged": len(told)}, f"{len(told)} dead letters are forgotten")


COMMANDS = {"list": show_all, "show": show, "replay": replay, "purge": purge}
