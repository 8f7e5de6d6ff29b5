"""`taskmesh health`: one probe of a side port, for images without curl or a shell."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from taskmesh.cli.exits import FAILED
from taskmesh.cli.options import ConfigFile, Http, answer_within, command, settings
from taskmesh.cli.output import Output
from taskmesh.cli.probe import PATHS
from taskmesh.http.client import SideClient


class Probe(enum.StrEnum):
    """The probes of a side port."""

    live = "live"
    ready = "ready"
    startup = "startup"


def side_of(
    *,
    http: Http = None,
    timeout: Annotated[float, answer_within("How long to wait for the answer.")] = 3.0,
    file: ConfigFile = None,
) -> SideClient:
    """Return the client of the side port that is asked."""
    from taskmesh.http.settings import side_client

    return side_client(settings(file, {"http": http}), timeout)


@command(side_of)
def health(
    side: SideClient,
    out: Output,
    probe: Annotated[Probe, typer.Argument(help="The probe to ask for.")] = Probe.ready,
) -> None:
    """Ask the side port of a hub or worker if it is live, ready or started; exit code 1 if it is not."""
    status, text = side.ask("GET", PATHS[probe.value])
    good = status == 200
    out.value({"probe": probe.value, "ok": good, "message": text}, text)
    if not good:
        raise typer.Exit(FAILED)
