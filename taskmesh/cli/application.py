"""The application: its commands in their groups, and the words that `taskmesh --help` prints."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from taskmesh.cli import (
    configuration,
    dashboard,
    dead,
    doctor,
    keys,
    programs,
    schedule,
    steering,
    store,
    submission,
    top,
    views,
)
from taskmesh.cli.command import EXIT_CODES, Command, PlainCommand, as_shown

GROUPS: dict[str, dict[str, Command | tuple[str, dict[str, Command]]]] = {
    "Run": {
        "up": programs.up,
        "hub": programs.hub,
        "worker": programs.worker,
        "dashboard": dashboard.dashboard,
        "health": programs.health,
    },
    "Submit": {
        "submit": submission.submit,
        "result": submission.result,
        "fulfil": submission.fulfil,
    },
    "Look": {
        "status": views.status,
        "top": top.top,
        "tasks": views.tasks,
        "explain": views.explain,
        "timeline": views.timeline,
        "logs": views.logs,
        "stack": steering.stack,
        "errors": views.errors,
        "events": views.events,
        "doctor": doctor.doctor,
    },
    "Steer": {
        "cancel": steering.cancel,
        "drain": steering.drain,
        "pool": (
            "List the pools of a hub, pause and resume them.",
            steering.POOL_COMMANDS,
        ),
        "limits": (
            "List the limits of a hub's tasks, and set them by hand.",
            steering.LIMIT_COMMANDS,
        ),
        "schedule": ("Show and change what a hub runs by the clock.", schedule.COMMANDS),
        "dead": ("Dead letters: tasks that have ended badly while nobody waited for them.", dead.COMMANDS),
    },
    "Keys, settings and journal": {
        "keys": (
            "Make keys, and authorize or revoke them at a hub. Roles: hub, client, worker, operator.",
            keys.COMMANDS,
        ),
        "config": ("Show the settings, and where each comes from.", configuration.COMMANDS),
        "store": ("Look at a hub's journal, while the hub runs or not.", {"status": store.status}),
    },
}
"""The commands by group; a noun has a help and commands of its own."""
EPILOG = "Exit codes: `taskmesh --help` lists them."
WITH_POOLS = ("up", "worker")


def _help(command: Command) -> str:
    """Return the docstring of a command, a line for each paragraph: typer keeps line ends."""
    paragraphs = (command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


def example_of(command: Command) -> str:
    """Return the line that a command's docstring ends with."""
    return _help(command).rpartition("Example: ")[2]


class Noun(TyperGroup):
    """Commands of one noun, or all commands."""

    def get_params(self, ctx: Any) -> Any:
        return as_shown(super().get_params(ctx))


app = typer.Typer(
    name="taskmesh",
    cls=Noun,
    help="Run Python functions on pools of worker processes, over ZeroMQ.",
    epilog=f"Example: {example_of(submission.submit)}\n\n{EXIT_CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(asked: bool) -> None:
    if asked:
        from taskmesh import __version__

        typer.echo(f"taskmesh {__version__}")
        raise typer.Exit


@app.callback()
def taskmesh(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Run Python functions on pools of worker processes, over ZeroMQ."""


for _group, _commands in GROUPS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, tuple):
            _help_text, _verbs = _command
            _first = example_of(next(iter(_verbs.values())))
            _noun = typer.Typer(
                name=_name, cls=Noun, help=_help_text, epilog=f"Example: {_first}", no_args_is_help=True
            )
            for _verb, _each in _verbs.items():
                _noun.command(_verb, help=_help(_each), epilog=EPILOG, cls=PlainCommand)(_each)
            app.add_typer(_noun, rich_help_panel=_group)
        else:
            _kind = programs.WorkerCommand if _name in WITH_POOLS else PlainCommand
            app.command(_name, help=_help(_command), epilog=EPILOG, rich_help_panel=_group, cls=_kind)(
                _command
            )
