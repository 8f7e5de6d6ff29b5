"""`taskmesh up`, `hub` and `worker`: the programs that run until they are told to stop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from taskmesh.cli.exits import EPILOG, exits
from taskmesh.cli.options import (
    DEFAULT_ADDRESS,
    Address,
    AsJson,
    Bind,
    ConfigFile,
    Http,
    HttpTokenFile,
    Keys,
    Lanes,
    LogLevel,
    Store,
    StoreFile,
    settings,
)
from taskmesh.cli.output import Output
from taskmesh.errors import ConfigError

if TYPE_CHECKING:
    from taskmesh.config import Config
    from taskmesh.net.endpoints import Endpoints
    from taskmesh.net.hub.program import PoolInHub

WORKER = (
    "Run a pool of slots that takes tasks from a hub, until it is told to stop.\n\n"
    "The current directory is on the module search path of the tasks. SIGTERM, Ctrl-C or a terminal that "
    "closes drains: tasks that have not started go back to the hub uncharged, running ones have --grace "
    "seconds. A second SIGTERM or Ctrl-C ends it at once."
)
"""The help of `taskmesh worker`; a docstring's line ends would be kept."""

Modules = Annotated[
    list[str] | None, typer.Argument(metavar="MODULE", help="Import these in every slot when it starts.")
]
Concurrency = Annotated[
    str | None, typer.Option("--concurrency", "-c", metavar="N", help="Slots; default: one per CPU.")
]
Queues = Annotated[str | None, typer.Option("--queues", metavar="A,B", help="Queues that the pool serves.")]
Tags = Annotated[
    str | None, typer.Option("--tags", metavar="A,B", help="Tags of the pool; tasks may require tags.")
]


def up(  # noqa: PLR0913  one for each option
    modules: Modules = None,
    *,
    bind: Bind = None,
    concurrency: Concurrency = None,
    queues: Queues = None,
    tags: Tags = None,
    name: Annotated[str, typer.Option(help="The pool's name.")] = "",
    http: Http = None,
    http_token_file: HttpTokenFile = None,
    directory: Keys = None,
    lanes: Lanes = None,
    log_level: LogLevel = "info",
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Run a hub and a pool in one process, enough for a single machine."""
    out = Output(as_json=json)
    with exits(out, lasting=True):
        from taskmesh.net.pool.modules import check_modules, use_current_directory

        config = settings(
            file,
            {
                "pool__concurrency": concurrency,
                "pool__queues": queues,
                "pool__tags": tags,
                "http": http,
                "http_token_file": http_token_file,
                "mesh__keys": directory,
                "hub__lanes": lanes,
            },
        )
        use_current_directory()
        check_modules(modules or ())
        from taskmesh.net.local_pool import LocalPool

        pool = LocalPool(config, slots=config.pool.slots, name=name, modules=tuple(modules or ()))
        _serve(out, config, bind, log_level, pool=pool, slots=config.pool.slots)


def hub(
    *,
    bind: Bind = None,
    http: Http = None,
    http_token_file: HttpTokenFile = None,
    directory: Keys = None,
    lanes: Lanes = None,
    store: Store = None,
    store_file: StoreFile = None,
    deletion_cost: Annotated[
        str | None,
        typer.Option(
            "--deletion-cost",
            metavar="A,B",
            help="In Kubernetes: keep the deletion cost of the pods of these Deployments; pools must "
            "have the names of their pods. Needs --http.",
        ),
    ] = None,
    log_level: LogLevel = "info",
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Run a hub: it accepts tasks from clients, hands them to pools, and records the state of each."""
    out = Output(as_json=json)
    with exits(out, lasting=True):
        given: dict[str, object] = {
            "http": http,
            "http_token_file": http_token_file,
            "mesh__keys": directory,
            "hub__lanes": lanes,
            "hub__store": store,
            "hub__store_file": store_file,
        }
        deployments = tuple(filter(None, (deletion_cost or "").split(",")))
        _serve(out, settings(file, given), bind, log_level, deployments=deployments)


def _serve(
    out: Output,
    config: Config,
    bind: str | None,
    log_level: str,
    *,
    pool: PoolInHub | None = None,
    slots: int = 0,
    deployments: tuple[str, ...] = (),
) -> None:
    from taskmesh.cli.event_log import EventLog
    from taskmesh.net.hub.program import run_hub

    addresses = (bind,) if bind else config.mesh.address or (DEFAULT_ADDRESS,)
    if len(addresses) > 1:
        named = ", ".join(addresses)
        raise ConfigError(f"a hub listens at one address, not at {named}: say which with --bind")

    def ready(endpoints: Endpoints) -> None:
        here = f", {slots} slot{'s' if slots != 1 else ''} here" if slots else ""
        out.ready(
            {
                "event": "ready",
                "gateway": endpoints.gateway,
                "collector": endpoints.collector,
                "control": endpoints.control,
                "slots": slots,
                "pid": os.getpid(),
            },
            f"taskmesh hub: ready: gateway {endpoints.gateway}, collector {endpoints.collector}, "
            f"control {endpoints.control}{here}",
        )

    def write(kind: str, text: str, fields: dict[str, object]) -> None:
        out.news(kind, text, fields, keep="\n")

    run_hub(
        config,
        addresses[0],
        pool=pool,
        ready=ready,
        record=EventLog(write, log_level).record,
        deployments=deployments,
    )


def worker(  # noqa: PLR0913  one for each option
    modules: Modules = None,
    *,
    address: Address = None,
    concurrency: Concurrency = None,
    queues: Queues = None,
    tags: Tags = None,
    name: Annotated[
        str, typer.Option(help="The pool's name, unique in the mesh; default: one made from the host's.")
    ] = "",
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", help="Time for running tasks to finish when the pool drains; default: 30."
        ),
    ] = None,
    http: Http = None,
    http_token_file: HttpTokenFile = None,
    only_registered: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE...",
            help="Run functions of these modules and packages by name, and no others; import them too.",
        ),
    ] = None,
    directory: Keys = None,
    stay: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="After a drain that no signal asked for, wait this long for a signal before ending, so that "
            "Kubernetes does not restart the container at once; default: 0.",
            show_default=False,
        ),
    ] = 0.0,
    log_level: LogLevel = "info",
    file: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Run a pool of slots that takes tasks from a hub."""
    # Only for --help and for completion in a shell: taskmesh.cli.worker reads and runs every other line.


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=EPILOG)(up)
    app.command(epilog=EPILOG)(hub)
    app.command(help=WORKER, epilog=EPILOG)(worker)
