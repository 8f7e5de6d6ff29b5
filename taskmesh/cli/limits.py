"""`taskmesh limits`: the limits of a hub's tasks, and those that an operator sets."""

from __future__ import annotations

from typing import Annotated

import typer

from taskmesh.cli.exits import EPILOG
from taskmesh.cli.format import printable
from taskmesh.cli.operator import Reach, hub_command
from taskmesh.cli.output import Output

COLUMNS = ("limit", "rule", "set_by", "keys", "running", "started", "waiting")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The limit's name.")]

limits = typer.Typer(
    name="limits",
    help="List the limits of a hub's tasks, and set them by hand.",
    no_args_is_help=True,
)


def show(reach: Reach, out: Output) -> None:
    """List limits: what each allows, and how many tasks run, started in its window, and wait."""
    out.rows(reach.query("limits"), COLUMNS, "no limits: no task has had one")


def put(
    reach: Reach,
    out: Output,
    name: Name,
    rule: Annotated[
        str, typer.Argument(metavar="RATE_OR_N", help="A rate such as 50/s or 600/m, or tasks at a time.")
    ],
) -> None:
    """Set a limit; it goes before that of the code until `unset`, or until the hub ends."""
    found = reach.command("limit", f"{name}:{rule}")
    out.value(found, f"limit {printable(name)} is {found['rule']}")


def unset(reach: Reach, out: Output, name: Name) -> None:
    """Leave a limit to the code again."""
    found = reach.command("unlimit", name)
    out.value(found, f"limit {printable(name)} is {found['rule'] or 'not stated by any task'}")


for _name, _each in (("list", show), ("set", put), ("unset", unset)):
    limits.command(name=_name, epilog=EPILOG)(hub_command(_each))
