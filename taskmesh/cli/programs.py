"""`taskmesh up`, `hub` and `worker`: the programs that run until they are told to stop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from taskmesh.cli.event_log import EventLog
from taskmesh.cli.exits import FAILED
from taskmesh.cli.options import (
    DEFAULT_ADDRESS,
    Address,
    Bind,
    ConfigFile,
    Http,
    HttpTokenFile,
    Journal,
    JournalFile,
    Keys,
    Lanes,
    LogLevel,
    Strict,
    command,
    settings,
)
from taskmesh.cli.output import Output

if TYPE_CHECKING:
    from taskmesh.config import Config
    from taskmesh.net.endpoints import Endpoints
    from taskmesh.net.hub.listening_hub import PoolInHub

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
Grace = Annotated[
    str | None,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        help="Time for running tasks to finish when the pool drains; default: 30.",
    ),
]
OnlyRegistered = Annotated[
    list[str] | None,
    typer.Option(
        "--only-registered",
        metavar="MODULE...",
        help="Run functions of these modules and packages by name, and no others; import them too.",
    ),
]

SlotUser = Annotated[
    str | None,
    typer.Option(
        "--slot-user",
        metavar="NAME",
        help="As root: run tasks as this user, who cannot read this program's keys.",
    ),
]

OPTIONS = {
    "address": Address,
    "concurrency": Concurrency,
    "queues": Queues,
    "tags": Tags,
    "grace": Grace,
    "http": Http,
    "http_token_file": HttpTokenFile,
    "only_registered": OnlyRegistered,
    "slot_user": SlotUser,
    "keys": Keys,
    "lanes": Lanes,
    "journal": Journal,
    "journal_file": JournalFile,
    "strict": Strict,
}
"""Options of programs that are settings, by the setting's name."""


OF_POOLS = ("concurrency", "queues", "tags", "grace", "http", "http_token_file")
"""The options of every program that has slots."""


def config_of(*names: str) -> Callable[..., Config]:
    """Return a function of the options with these names, and of --config, that returns all settings."""

    def make(*, file: ConfigFile = None, **given: object) -> Config:
        return settings(file, {name: value or None for name, value in given.items()})

    kind = inspect.Parameter.KEYWORD_ONLY
    options = {**{name: OPTIONS[name] for name in names}, "file": ConfigFile}
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in options.items()]
    )
    return make


@command(
    config_of(*OF_POOLS, "keys", "lanes", "journal", "journal_file", "strict"),
    lasting=True,
)
def up(
    config: Config,
    out: Output,
    modules: Modules = None,
    *,
    bind: Bind = None,
    name: Annotated[str, typer.Option(help="The pool's name.")] = "",
    log_level: LogLevel = "info",
) -> None:
    """Run a hub and a pool in one process, enough for a single machine."""
    from taskmesh.net.pool.modules import check_modules, use_current_directory

    use_current_directory()
    check_modules(modules or ())
    from taskmesh.net.local_pool import LocalPool

    slots, imported = config.pool.slots, tuple(modules or ())
    pool = LocalPool(config, slots=slots, name=name, modules=imported)
    _serve(out, config, bind, log_level, pool=pool, slots=config.pool.slots)


@command(
    config_of("http", "http_token_file", "keys", "lanes", "journal", "journal_file", "strict"),
    lasting=True,
)
def hub(
    config: Config,
    out: Output,
    *,
    bind: Bind = None,
    log_level: LogLevel = "info",
) -> None:
    """Run a hub: it accepts tasks from clients, hands them to pools, and records the state of each."""
    _serve(out, config, bind, log_level)


def _serve(
    out: Output,
    config: Config,
    bind: str | None,
    log_level: str,
    *,
    pool: PoolInHub | None = None,
    slots: int = 0,
) -> None:
    from taskmesh.net.hub.program import run_hub

    def ready(endpoints: Endpoints) -> None:
        here = f", {slots} slot{'s' if slots != 1 else ''} here" if slots else ""
        out.ready(
            "hub",
            f"gateway {endpoints.gateway}, collector {endpoints.collector}, "
            f"control {endpoints.control}{here}",
            {
                "gateway": endpoints.gateway,
                "collector": endpoints.collector,
                "control": endpoints.control,
                "slots": slots,
            },
        )

    run_hub(
        config,
        bind or config.mesh.address or DEFAULT_ADDRESS,
        pool=pool,
        ready=ready,
        record=event_log(out, log_level).record,
    )


def event_log(out: Output, level: str) -> EventLog:
    """Return the log of a program, whose lines have no control characters but line ends."""
    return EventLog(partial(out.news, keep="\n"), level)


class WorkerCommand(TyperCommand):
    """The command `worker`: its option --only-registered takes all words up to the next option."""

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


@command(
    config_of("address", *OF_POOLS, "only_registered", "slot_user", "keys"),
    lasting=True,
)
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
    """Run a pool of slots that takes tasks from a hub."""
    from taskmesh.net.pool.modules import check_modules, use_current_directory

    use_current_directory()
    check_modules((*(modules or ()), *config.pool.only_registered))
    from taskmesh.net.pool.program import run_pool

    slots = config.pool.slots

    def ready(pool: str, address: str) -> None:
        queues = ", ".join(config.pool.queues)
        plural = "s" if slots != 1 else ""
        out.ready(
            "worker",
            f"pool {pool}, {slots} slot{plural}, queues {queues}, hub {address}",
            {
                "pool": pool,
                "slots": slots,
                "queues": config.pool.queues,
                "tags": config.pool.tags,
                "address": address,
            },
        )

    drained = run_pool(
        config,
        config.mesh.address or DEFAULT_ADDRESS,
        slots=slots,
        name=name,
        modules=tuple(modules or ()),
        ready=ready,
        news=lambda kind, text: out.news(kind, text, {"message": text}),
        record=event_log(out, log_level).record,
    )
    if not drained:
        raise typer.Exit(FAILED)
