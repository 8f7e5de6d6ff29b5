"""`taskmesh dashboard`: a program that shows a hub's mesh in browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from taskmesh.cli.command import Reach, command
from taskmesh.cli.output import Output
from taskmesh.cli.program_log import ProgramLog

if TYPE_CHECKING:
    from taskmesh.config import Config

HTTP = "127.0.0.1:5581"
OPENING = 2.0
"""Seconds that the hub has to answer; a program that is asked to end waits no longer for it."""


@command("address", "keys", lasting=True)
def dashboard(
    config: Config,
    out: Output,
    *,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = HTTP,
    token_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The token that browsers have to show; default: one is made and printed.",
        ),
    ] = "",
    allow: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="What browsers may do: cancel, stack, pause, resume, drain. Default: nothing."
        ),
    ] = "",
    behind_proxy: Annotated[
        str,
        typer.Option(metavar="HOST", help="The host name of a proxy with TLS, by which browsers reach it."),
    ] = "",
) -> None:
    """Show a hub's mesh in browsers, as a program of its own, with an operator's session.

    Open the address that it prints. It needs the extra `dashboard`: `pip install '.[dashboard]'` in a clone.

    Example:
        taskmesh dashboard --http 127.0.0.1:5581 --allow cancel,stack
    """
    from taskmesh.hosting.dashboard_process import check_extra

    check_extra()
    from taskmesh.dashboard.access import dashboard_settings
    from taskmesh.dashboard.program import run_dashboard

    def ready(at: str, token: str) -> None:
        url = f"{at}#t={token}" if token else at
        out.ready("dashboard", url, {"url": url, "hub": config.mesh.address})

    run_dashboard(
        dashboard_settings(http, token_file, behind_proxy, allow),
        Reach(config, OPENING).session,
        ready=ready,
        record=ProgramLog(out).record,
    )
