"""`taskmesh dead`: tasks that have ended badly while nobody waited for them, looked at and run again."""

from __future__ import annotations

import time
from typing import Annotated, Any, NamedTuple

import typer

from taskmesh.cli.exits import EPILOG
from taskmesh.cli.format import printable
from taskmesh.cli.operator import Reach, hub_command
from taskmesh.cli.output import Output
from taskmesh.cli.submission import moment_of
from taskmesh.errors import ConfigError

COLUMNS = ("task_id", "name", "state", "ended", "attempts", "blocked", "replayed", "error")
Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the task that has ended.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of the tasks that have ended.")]
Task = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Only tasks of this function.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only what ended since, as 2026-12-01T09:00.")
]
Error = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Only those whose error has this in it.")
]
Most = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many, the newest.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Again = Annotated[bool, typer.Option("--again", help="Those, too, that were run again already.")]

dead = typer.Typer(
    name="dead",
    help="Dead letters: tasks that have ended badly while nobody waited for them.",
    no_args_is_help=True,
)


class Choice(NamedTuple):
    """The letters that a command is for, by their function, time or error; all of them if none is given."""

    task: str | None
    since: str | None
    error: str | None

    def rows(self, reach: Reach) -> list[dict[str, Any]]:
        """Return the rows of these letters, the newest first."""
        start = moment_of(self.since).timestamp() if self.since else 0.0
        return [
            row
            for row in reach.query("dead")
            if row["ended"] >= start
            and (not self.task or self.task in (row["name"], row["name"].rpartition(".")[2]))
            and (not self.error or self.error in row["error"])
        ]

    def ids(self, reach: Reach, given: list[str] | None, *, every: bool, fresh: bool = False) -> list[str]:
        """Return the ids that are given, or those of the letters that are chosen.

        Args:
            reach: the hub.
            given: ids.
            every: all letters may be meant.
            fresh: only letters that were not run again.

        Raises:
            ConfigError: nothing is chosen.
        """
        if given:
            return given
        if not (any(self) or every):
            raise ConfigError("name the tasks: by their ids, with --task, --since or --error, or --all")
        return [row["task_id"] for row in self.rows(reach) if not (fresh and row["replays"])]


def show_all(
    reach: Reach,
    out: Output,
    *,
    task: Task = None,
    since: Since = None,
    error: Error = None,
    limit: Most = 100,
) -> None:
    """List dead letters, the newest first."""
    rows = Choice(task, since, error).rows(reach)[:limit]
    for row in rows:
        row["ended"] = _time(row["ended"])
        row["replayed"] = len(row["replays"])
    out.rows(rows, COLUMNS, "no dead letters")


def show(reach: Reach, out: Output, task_id: Id) -> None:
    """Show a dead letter: every attempt with its error and its last output, and what it has blocked."""
    found = reach.query("dead-letter", task_id)
    lines = [f"{found['name']} {found['task_id']}: {found['state']} at {_time(found['ended'])}"]
    for attempt in found["history"]:
        what = ": ".join(filter(None, (attempt["type"] or attempt["kind"], attempt["text"])))
        lines.append(
            f"attempt {attempt['attempt']} on {attempt['worker'] or '?'}, {_time(attempt['at'])}: {what}"
        )
        lines += [f"  {line}" for line in attempt["traceback"].splitlines()]
        if attempt["output"]:
            lines += ["  last output:", *(f"    {line}" for line in attempt["output"].splitlines())]
    if found["blocked"]:
        lines.append(f"it has blocked {found['blocked']} tasks: {', '.join(found['blocked_tasks'][:10])}")
    lines += [f"run again as {replay}" for replay in found["replays"]]
    out.value(found, printable("\n".join(lines), keep="\n"))


def replay(
    reach: Reach,
    out: Output,
    ids: Ids = None,
    *,
    task: Task = None,
    since: Since = None,
    error: Error = None,
    limit: Most = 10_000,
    every: All = False,
    again: Again = False,
) -> None:
    """Run dead letters again, with what they have blocked; `taskmesh result` fetches the results."""
    verb = "dead-replay-again" if again else "dead-replay"
    chosen = Choice(task, since, error).ids(reach, ids, every=every, fresh=not again)
    with reach.session() as hub:
        told: list[Any] = [hub.command(verb, task_id, reach.timeout) for task_id in chosen[:limit]]
    out.value(told, "\n".join(f"{each['letter']} runs again as {each['task_id']}" for each in told) or "none")


def purge(
    reach: Reach,
    out: Output,
    ids: Ids = None,
    *,
    task: Task = None,
    since: Since = None,
    error: Error = None,
    every: All = False,
) -> None:
    """Forget dead letters."""
    chosen = Choice(task, since, error).ids(reach, ids, every=every)
    with reach.session() as hub:
        told = [hub.command("dead-purge", task_id, reach.timeout) for task_id in chosen]
    out.value({"purged": len(told)}, f"{len(told)} dead letters are forgotten")


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


for _name, _each in (("list", show_all), ("show", show), ("replay", replay), ("purge", purge)):
    dead.command(name=_name, epilog=EPILOG)(hub_command(_each))
