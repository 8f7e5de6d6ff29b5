"""`taskmesh up`, `hub` and `worker`: programs that run until they are told to stop; `health`, their probe."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskmesh.cli.command import FAILED, PlainCommand, command
from taskmesh.cli.output import Output
from taskmesh.cli.program_log import LEVELS, ProgramLog
from taskmesh.errors import TaskMeshError
from taskmesh.http.client import PROBES, SideClient

if TYPE_CHECKING:
    from taskmesh.config import Config
    from taskmesh.hosting.dashboard_process import DashboardProcess
    from taskmesh.hosting.local_pool import LocalPool
    from taskmesh.hub.embedded_hub import EmbeddedHub
    from taskmesh.link.endpoints import Endpoints
    from taskmesh.system.loop import Loop

OF_HUBS = ("bind", "http", "http_token_file", "keys", "lanes", "journal", "journal_file", "strict")
OF_POOLS = ("concurrency", "mode", "processes", "queues", "tags", "grace", "middleware", "only_registered")


def known_level(level: str) -> str:
    """Return the level; refuse a word that is not a level of the log."""
    if level not in LEVELS:
        raise typer.BadParameter(f"{level!r} is none of {', '.join(LEVELS)}")
    return level


LogLevel = Annotated[
    str,
    typer.Option(
        metavar="LEVEL",
        envvar="TASKMESH_LOG_LEVEL",
        help="debug (with the tracebacks of tasks that fail), info, warning or error.",
        callback=known_level,
    ),
]
Modules = Annotated[
    list[str] | None, typer.Argument(metavar="MODULE", help="Import these in every slot when it starts.")
]


@command(*OF_POOLS, *OF_HUBS, lasting=True)
def up(
    config: Config,
    out: Output,
    modules: Modules = None,
    *,
    name: Annotated[str, typer.Option(help="The pool's name.")] = "",
    log_level: LogLevel = "info",
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the mesh in browsers, see `taskmesh dashboard`.")
    ] = False,
) -> None:
    """Run a hub and a pool in one process, enough for a single machine.

    Example:
        taskmesh up --concurrency 4 --journal tasks.db
    """
    from taskmesh.pool.modules import check_modules, modules_of, use_current_directory

    use_current_directory()
    check_modules((*(modules or ()), *config.pool.only_registered, *modules_of(config.pool.middleware)))
    from taskmesh.hosting.local_pool import LocalPool

    def start_pool(loop: Loop, hub: EmbeddedHub) -> LocalPool:
        if dashboard:
            held.callback(_start_dashboard(out, loop, hub).end)
        return LocalPool(config, loop, hub, name=name, modules=tuple(modules or ()))

    with contextlib.ExitStack() as held:
        _serve(out, config, log_level, start_pool)


def _start_dashboard(out: Output, loop: Loop, hub: EmbeddedHub) -> DashboardProcess:
    """Start a dashboard of a hub in this process; its address is printed when the loop hears of it."""
    from taskmesh.hosting.dashboard_process import DashboardProcess

    process = DashboardProcess(hub.links.private.address())

    def heard() -> None:
        loop.unwatch(process.report)
        try:
            url = process.url()
        except TaskMeshError as error:
            out.error(error)
        else:
            out.news("dashboard", f"dashboard: {url}", {"url": url})

    loop.watch(process.report, heard)
    return process


@command(*OF_HUBS, lasting=True)
def hub(config: Config, out: Output, *, log_level: LogLevel = "info") -> None:
    """Run a hub: it accepts tasks from clients, hands them to pools, and records the state of each.

    Example:
        taskmesh hub --bind tcp://127.0.0.1:5550 --journal tasks.db
    """
    _serve(out, config, log_level)


def _serve(
    out: Output,
    config: Config,
    log_level: str,
    start_pool: Callable[[Loop, EmbeddedHub], LocalPool] | None = None,
) -> None:
    from taskmesh.hub.program import run_hub

    def ready(endpoints: Endpoints) -> None:
        places = {name: getattr(endpoints, name) for name in ("gateway", "collector", "control")}
        slots = config.pool.slots if start_pool is not None else 0
        here = f", {plural(slots)} here" if slots else ""
        text = ", ".join(f"{name} {place}" for name, place in places.items())
        out.ready("hub", f"{text}{here}", {**places, "slots": slots})

    log = ProgramLog(out, log_level)
    run_hub(config, config.mesh.address, start_pool=start_pool, ready=ready, record=log.record)


def plural(slots: int) -> str:
    """Return the number of slots in words."""
    return f"{slots} slot{'s' if slots != 1 else ''}"


class WorkerCommand(PlainCommand):
    """A command that runs a pool: its option --only-registered takes all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args, "--only-registered"))


def spread(words: Sequence[str], option: str) -> list[str]:
    """Return the words with an option repeated before each of its values."""
    found: list[str] = []
    is_value = False
    for word in words:
        is_value = not word.startswith("-") and (is_value or found[-1:] == [option])
        if is_value and found[-1] != option:
            found.append(option)
        found.append(word)
    return found


@command("address", *OF_POOLS, "http", "http_token_file", "slot_user", "keys", lasting=True)
def worker(
    config: Config,
    out: Output,
    modules: Modules = None,
    *,
    name: Annotated[
        str, typer.Option(help="The pool's name, unique in the mesh; default: one made from the host's.")
    ] = "",
    log_level: LogLevel = "info",
) -> None:
    """Run a pool of slots that takes tasks from a hub, until it is told to stop.

    The current directory is on the module search path of the tasks. SIGTERM, Ctrl-C or a terminal that closes
    drains: tasks that have not started go back to the hub uncharged, running ones have --grace seconds.
    A second SIGTERM or Ctrl-C ends it at once.

    Example:
        taskmesh worker --queues default,gpu --concurrency 2
    """
    from taskmesh.pool.modules import check_modules, modules_of, use_current_directory

    use_current_directory()
    check_modules((*(modules or ()), *config.pool.only_registered, *modules_of(config.pool.middleware)))
    from taskmesh.pool.program import run_pool

    slots, queues = config.pool.slots, config.pool.queues

    def ready(pool: str, address: str) -> None:
        out.ready(
            "worker",
            f"pool {pool}, {plural(slots)}, queues {', '.join(queues)}, hub {address}",
            {"pool": pool, "slots": slots, "queues": queues, "tags": config.pool.tags, "address": address},
        )

    drained = run_pool(
        config,
        name=name,
        modules=tuple(modules or ()),
        ready=ready,
        news=lambda kind, text: out.news(kind, text, {"message": text}),
        record=ProgramLog(out, log_level).record,
    )
    if not drained:
        raise typer.Exit(FAILED)


class Probe(enum.StrEnum):
    """The probes of a side port."""

    live = "live"
    ready = "ready"
    startup = "startup"


def side_of(config: Config, timeout: float) -> SideClient:
    """Return the client of the side port that the settings name."""
    from taskmesh.http.settings import side_client

    return side_client(config, timeout)


@command("http", subject=side_of, timeout=3.0)
def health(
    side: SideClient,
    out: Output,
    probe: Annotated[Probe, typer.Argument(help="The probe to ask for.")] = Probe.ready,
) -> None:
    """Ask the side port of a hub or worker if it is live, ready or started; exit code 1 if it is not.

    Example:
        taskmesh health ready --http 127.0.0.1:5580
    """
    status, text = side.ask("GET", PROBES[probe])
    good = status == 200
    out.value({"probe": probe.value, "ok": good, "message": text}, text)
    if not good:
        raise typer.Exit(FAILED)
