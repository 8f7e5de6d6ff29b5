"""`taskmesh up`, `hub` and `worker`: programs that run until they are told to stop; `health`, their probe."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    from taskmesh.pool.slots.fork_server_client import SlotOptions
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


def size_of(text: str | int) -> int:
    """Return the bytes that a text like 512MiB says."""
    from taskmesh.settings.setting import Setting, SettingError, Size

    try:
        return int(Setting(Size).read(text))
    except SettingError as error:
        raise typer.BadParameter(str(error)) from None


def _replaced(after: str, variable: str, **how: Any) -> Any:
    text = f"Replace a slot's process {after}; default: never."
    return typer.Option(envvar=f"TASKMESH_{variable}_PER_CHILD", help=text, show_default=False, **how)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The processes of a pool's slots: the end of each, and who takes its place."""

    max_tasks_per_child: Annotated[int, _replaced("after N tasks", "MAX_TASKS", metavar="N", min=0)] = 0
    max_memory_per_child: Annotated[
        int,
        _replaced("that takes more, as 512MiB", "MAX_MEMORY", metavar="SIZE", parser=size_of),
    ] = 0
    max_age_per_child: Annotated[float, _replaced("after this time", "MAX_AGE", metavar="SECONDS", min=0)] = (
        0.0
    )

    watch: Annotated[
        bool, typer.Option("--watch", help="For development: replace the slots when a Python file changes.")
    ] = False

    gpus: Annotated[
        str,
        typer.Option(
            metavar="all|0,1|UUID",
            envvar="TASKMESH_GPUS",
            help="GPUs for the slots, as nvidia-smi counts them; each slot sees its own alone.",
        ),
    ] = ""
    gpus_per_slot: Annotated[
        float,
        typer.Option(
            metavar="N", envvar="TASKMESH_GPUS_PER_SLOT", help="GPUs of each slot; 0.5: two share one."
        ),
    ] = 1.0

    def sized(self, config: Config) -> tuple[Config, Sequence[str]]:
        """Return the settings with as many slots as the GPUs are for, and what each slot sees of these."""
        if not self.gpus:
            return config, ()
        from taskmesh.pool.gpus import capacity, chosen, devices

        gpus = chosen(self.gpus, os.environ)
        slots = config.pool.concurrency or capacity(gpus, self.gpus_per_slot)
        pool = replace(config.pool, concurrency=slots)
        return replace(config, pool=pool), devices(gpus, self.gpus_per_slot, slots)

    def options(self, modules: Sequence[str] | None, gpus: Sequence[str]) -> SlotOptions:
        """Return them as a pool takes them, with the modules that slots import and the GPUs that they see."""
        from taskmesh.pool.reload import code_folders
        from taskmesh.pool.slots.fork_server_client import SlotOptions

        if self.watch:  # the age of compiled files counts seconds: a second edit would go unnoticed
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        return SlotOptions(
            modules=tuple(modules or ()),
            max_tasks=self.max_tasks_per_child,
            max_memory=self.max_memory_per_child,
            max_age=self.max_age_per_child,
            watch=code_folders() if self.watch else (),
            gpus=gpus,
        )


@command(*OF_POOLS, *OF_HUBS, lasting=True)
def up(
    config: Config,
    out: Output,
    modules: Modules = None,
    *,
    name: Annotated[str, typer.Option(help="The pool's name.")] = "",
    processes: Processes,
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
    config, gpus = processes.sized(config)
    options = processes.options(modules, gpus)
    check_modules((*options.modules, *config.pool.only_registered, *modules_of(config.pool.middleware)))
    from taskmesh.hosting.local_pool import LocalPool

    def start_pool(loop: Loop, hub: EmbeddedHub) -> LocalPool:
        if dashboard:
            held.callback(_start_dashboard(out, loop, hub).end)
        return LocalPool(config, loop, hub, name=name, options=options)

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
    processes: Processes,
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
    config, gpus = processes.sized(config)
    options = processes.options(modules, gpus)
    check_modules((*options.modules, *config.pool.only_registered, *modules_of(config.pool.middleware)))
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
        options=options,
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
