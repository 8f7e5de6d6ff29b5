"""`taskmesh schedule`: what a hub runs by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskmesh.cli.command import Reach, command, hub_command
from taskmesh.cli.output import Output, printable
from taskmesh.cli.submission import Arguments, Function, parse, resolve

if TYPE_CHECKING:
    from taskmesh.config import Config

COLUMNS = ("schedule", "when", "tz", "state", "next", "running", "fired", "skipped", "missed", "failed")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@hub_command
def list_schedules(reach: Reach, out: Output) -> None:
    """List the schedules, with the next time and the counts of each.

    Example:
        taskmesh schedule list
    """
    out.rows(
        reach.query("schedules"), COLUMNS, "no schedules: write @task(schedule=...), or use `schedule put`"
    )


@hub_command
def next_ticks(
    reach: Reach,
    out: Output,
    name: Name,
    count: Annotated[int, typer.Argument(metavar="N", min=1, max=1000, help="Number of times.")] = 10,
) -> None:
    """Show the next times of a schedule, in UTC.

    Example:
        taskmesh schedule next nightly 3
    """
    out.value(reach.query("ticks", name, count), lambda ticks: "\n".join(ticks) or "it does not run any more")


@command("address", "keys")
def put(
    config: Config,
    out: Output,
    name: Name,
    function: Function,
    arguments: Arguments = None,
    *,
    when: Annotated[str, typer.Option(metavar="LINE|SECONDS", help="A cron line, or a number of seconds.")],
    tz: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of the cron line.")] = "UTC",
    overlap: Annotated[
        str, typer.Option(metavar="RULE", help="If the last run has not ended: skip or allow this one.")
    ] = "skip",
    catchup: Annotated[
        str, typer.Option(metavar="RULE", help="Missed times to make up for: latest or none.")
    ] = "latest",
) -> None:
    """Have a hub run a function by the clock, in place of a schedule of the same name.

    Example:
        taskmesh schedule put nightly math:hypot 3 4 --when '0 3 * * *' --tz Europe/Berlin
    """
    from taskmesh.mesh import Mesh
    from taskmesh.pool.modules import use_current_directory
    from taskmesh.schedule import Schedule

    use_current_directory()
    called = resolve(function)
    positional, named = parse(arguments or ())
    rules: dict[str, Any] = {"overlap": overlap, "catchup": catchup}  # Schedule checks them
    timing = Schedule(period_or_line(when), tz=tz, **rules)
    with Mesh(config=config) as mesh:
        mesh.schedule(name, called, *positional, when=timing, **named)
    out.value({"schedule": name}, f"put {printable(name)}")


@hub_command
def pause(reach: Reach, out: Output, name: Name) -> None:
    """Pause a schedule; times that pass meanwhile do not count as missed.

    Example:
        taskmesh schedule pause nightly
    """
    out.value(reach.command("schedule-pause", name), f"paused {printable(name)}")


@hub_command
def resume(reach: Reach, out: Output, name: Name) -> None:
    """Let a paused schedule run again.

    Example:
        taskmesh schedule resume nightly
    """
    out.value(reach.command("schedule-resume", name), f"resumed {printable(name)}")


@hub_command
def remove(reach: Reach, out: Output, name: Name) -> None:
    """Remove a schedule; a run that has begun continues.

    Example:
        taskmesh schedule remove nightly
    """
    out.value(reach.command("schedule-remove", name), f"removed {printable(name)}")


@hub_command
def run(reach: Reach, out: Output, name: Name) -> None:
    """Run the call of a schedule now, whatever its times and rules.

    Example:
        taskmesh schedule run nightly
    """
    out.value(reach.command("schedule-run", name), lambda found: f"task {found['task_id']}")


COMMANDS = {
    "list": list_schedules,
    "next": next_ticks,
    "put": put,
    "pause": pause,
    "resume": resume,
    "remove": remove,
    "run": run,
}


def period_or_line(text: str) -> float | str:
    """Return a number of seconds as such, and a cron line as it is."""
    try:
        return float(text)
    except ValueError:
        return text
