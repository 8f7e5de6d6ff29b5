"""`taskmesh health`: one probe of a side port, for images without curl or a shell."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from taskmesh.cli.exits import EPILOG, FAILED, exits
from taskmesh.cli.options import AsJson, ConfigFile, Http, answer_within, settings
from taskmesh.cli.output import Output
from taskmesh.cli.probe import PATHS


class Probe(enum.StrEnum):
    """The probes of a side port."""

    live = "live"
    ready = "ready"
    startup = "startup"


def health(
    probe: Annotated[Probe, typer.Argument(help="The probe to ask for.")] = Probe.ready,
    *,
    http: Http = None,
    timeout: Annotated[float, answer_within("How long to wait for the answer.")] = 3.0,
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Ask the side port of a hub or worker if it is live, ready or started; exit code 1 if it is not."""
    out = Output(as_json=json)
    with exits(out):
        from taskmesh.http.settings import side_client

        status, text = side_client(settings(file, {"http": http}), timeout).ask("GET", PATHS[probe.value])
        good = status == 200
        out.value({"probe": probe.value, "ok": good, "message": text}, text)
        if not good:
            raise typer.Exit(FAILED)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EPILOG)(health)
