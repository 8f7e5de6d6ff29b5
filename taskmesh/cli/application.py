"""The application: its commands and the words that `taskmesh --help` prints."""

from __future__ import annotations

from typing import Annotated

import typer

from taskmesh.cli import (
    dead,
    drain,
    health,
    keys,
    limits,
    operation,
    programs,
    schedule,
    store,
    submission,
    views,
)
from taskmesh.cli.exits import EPILOG, EXIT_CODES

app = typer.Typer(
    name="taskmesh",
    help="Run Python functions on pools of worker processes, over ZeroMQ.",
    epilog=EXIT_CODES,
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


for _command in (programs.up, programs.hub):
    app.command(epilog=EPILOG)(_command)
app.command(epilog=EPILOG, help=programs.WORKER, cls=programs.WorkerCommand)(programs.worker)
for _command in (
    submission.submit,
    submission.result,
    views.status,
    views.pools,
    views.tasks,
    views.explain,
    views.graph,
    operation.ping,
    operation.pause,
    operation.resume,
    operation.cancel,
    operation.fulfil,
    drain.drain,
    drain.scale_in,
    health.health,
):
    app.command(epilog=EPILOG)(_command)
for _name, _command in schedule.COMMANDS.items():
    schedule.schedule.command(_name, epilog=EPILOG)(_command)
app.add_typer(schedule.schedule)
app.add_typer(keys.keys)
app.add_typer(limits.limits)
app.add_typer(store.store)
app.add_typer(dead.dead)
