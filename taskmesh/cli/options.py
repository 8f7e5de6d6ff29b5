"""The options that commands share, and the settings that follow from them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskmesh.cli.exits import exits
from taskmesh.cli.output import Output

if TYPE_CHECKING:
    from taskmesh.config import Config

DEFAULT_ADDRESS = "tcp://127.0.0.1:5550"
EVERYTHING = 1_000_000
"""Rows to ask a hub for, where all are wanted."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Address = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        metavar="ENDPOINT",
        help="The hub's gateway; may be repeated, and is then tried in order. Default: TASKMESH_ADDRESS, the "
        f"configuration's, {DEFAULT_ADDRESS}.",
    ),
]
Bind = Annotated[
    str | None,
    typer.Option(
        "--bind",
        "--address",
        metavar="ENDPOINT",
        help="Where to listen: tcp://HOST:PORT (collector and control take the next two ports; port 0: any "
        f"free ones) or ipc://PATH. Default: TASKMESH_ADDRESS, the configuration's, {DEFAULT_ADDRESS}.",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Side port for probes and metrics; default: none.",
    ),
]
HttpTokenFile = Annotated[
    str | None,
    typer.Option(
        "--http-token-file", metavar="FILE", help="The token of the side port; required beyond loopback."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings, in place of taskmesh.toml or pyproject.toml."),
]
Keys = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="DIR",
        help="The directory of this program's keys. Default: TASKMESH_KEYS, the configuration's, or none.",
    ),
]


def known_level(level: str) -> str:
    """Return the level; refuse a word that is not a level of the log."""
    from taskmesh.cli.event_log import LEVELS

    if level not in LEVELS:
        raise typer.BadParameter(f"{level!r} is none of {', '.join(LEVELS)}")
    return level


LogLevel = Annotated[
    str,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="debug (with the tracebacks of tasks that fail), info, warning or error.",
        callback=known_level,
    ),
]
Lanes = Annotated[
    str | None,
    typer.Option(
        "--lanes",
        metavar="FIRST-LAST",
        help="Ports for the lanes of pools. Default: any on loopback, 5600-6799 elsewhere.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Redis in which outcomes of tasks with a key outlive the hub: redis://HOST:PORT/DB. "
        "Default: TASKMESH_STORE, the configuration's, or none.",
    ),
]
StoreFile = Annotated[
    Path | None,
    typer.Option("--store-file", metavar="FILE", help="A file with that URL, if it has a password."),
]
LONGEST_ANSWER = 1_000_000
"""Seconds that an answer may be waited for; poll(2) takes no more than 24 days."""
LONGEST_TASK = 1_000_000_000
"""Seconds that a task may be waited for; a lock takes no more than 292 years."""


def answer_within(what: str) -> Any:
    """Return the option --timeout of a command that asks for an answer; `what` is its help."""
    return typer.Option("--timeout", metavar="SECONDS", min=0.01, max=LONGEST_ANSWER, help=what)


Timeout = Annotated[float, answer_within("How long to wait for the hub.")]


def settings(file: Path | None, given: dict[str, object]) -> Config:
    """Return all settings; those that were `given` (not None) go before files and environment.

    Raises:
        ConfigError: one is unknown or wrong.
    """
    from taskmesh.config import load

    return load(file, {key: value for key, value in given.items() if value is not None}, command_line=True)


@dataclass(frozen=True, slots=True)
class Reach:
    """The options by which a command finds its hub.

    Attributes:
        file: --config.
        address: --address, in order of preference.
        timeout: --timeout, seconds to wait for an answer.
        keys: --keys.
    """

    file: Path | None
    address: Sequence[str] | None
    timeout: float
    keys: Path | None = None

    @property
    def config(self) -> Config:
        """The settings, with the hub's addresses in order: as given, as configured, or the default."""
        address = list(self.address) if self.address else None
        config = settings(self.file, {"mesh__address": address, "mesh__keys": self.keys})
        mesh = config.mesh
        return replace(config, mesh=replace(mesh, address=mesh.address or (DEFAULT_ADDRESS,)))


def reach_of(
    *,
    address: Address = None,
    timeout: Timeout = 5.0,
    directory: Keys = None,
    file: ConfigFile = None,
    json: AsJson = False,
) -> tuple[Reach, Output]:
    """Return what the options of a command that asks a hub come to."""
    return Reach(file, address, timeout, directory), Output(as_json=json)


def hub_command(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `reach_of`; it takes their outcome as its first two parameters.

    The errors of the command become exit codes.
    """

    @functools.wraps(command)
    def run(*args: Any, **given: Any) -> None:
        reach, out = reach_of(**{option.name: given.pop(option.name) for option in shared})
        with exits(out):
            command(reach, out, *args, **given)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[2:]
    shared = inspect.signature(reach_of, eval_str=True).parameters.values()
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in (*own, *shared)}
    return run
