"""The options that commands share, and the settings that follow from them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taskmesh.cli.event_log import LEVELS
from taskmesh.cli.exits import exits
from taskmesh.cli.output import Output
from taskmesh.core.ids import parse

if TYPE_CHECKING:
    from taskmesh.config import Config

DEFAULT_ADDRESS = "tcp://127.0.0.1:5550"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ENDPOINT",
        help=f"The hub's gateway. Default: TASKMESH_ADDRESS, the configuration's, {DEFAULT_ADDRESS}.",
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
    if level not in LEVELS:
        raise typer.BadParameter(f"{level!r} is none of {', '.join(LEVELS)}")
    return level


def known_id(given: Any) -> Any:
    """Return the ids that are given, one or several; refuse a text that is none."""
    try:
        for text in [given] if isinstance(given, str) else given or ():
            parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return given


TaskId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The task's id, as `taskmesh tasks` shows it.", callback=known_id),
]
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
Journal = Annotated[
    str | None,
    typer.Option(
        "--journal",
        metavar="FILE|URL",
        help="Where accepted tasks outlive the hub and its clients: a file, or redis://HOST:PORT/DB. "
        "Default: TASKMESH_JOURNAL, the configuration's, or none.",
    ),
]
JournalFile = Annotated[
    Path | None,
    typer.Option(
        "--journal-file", metavar="FILE", help="A file with the journal's URL, if it has a password."
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="A task is accepted when the journal is on disk: power loss takes none."),
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


def hub_settings(
    *, address: Address = None, directory: Keys = None, file: ConfigFile = None, **more: object
) -> Config:
    """Return the settings of a command that needs a hub, with its address.

    Args:
        address: --address.
        directory: --keys.
        file: --config.
        more: further settings, None where an option is not given.
    """
    config = settings(file, {"mesh__address": address or None, "mesh__keys": directory, **more})
    return replace(config, mesh=replace(config.mesh, address=config.mesh.address or DEFAULT_ADDRESS))


Command = Callable[..., None]


def command(make: Callable[..., object], *, lasting: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of `make`, and --json.

    The command takes the outcome of `make` and its output as its first two parameters. Errors of both
    become exit codes.

    Args:
        make: makes something of options.
        lasting: the command is a program that runs until it is stopped, see `exits`.
    """
    shared = _options(make)
    json = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)

    def decorated(run: Command) -> Command:
        @functools.wraps(run)
        def whole(*args: Any, json: bool, **given: Any) -> None:
            out = Output(as_json=json)
            with exits(out, lasting=lasting), out.whole() if lasting else contextlib.nullcontext():
                made = make(**{option.name: given.pop(option.name) for option in shared})
                run(made, out, *args, **given)

        options = [*_options(run, 2), *shared, json]
        whole.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        whole.__annotations__ = {option.name: option.annotation for option in options}
        return whole

    return decorated


def _options(function: Callable[..., object], start: int = 0) -> list[inspect.Parameter]:
    """Return the named parameters of a function from one on, their annotations as objects."""
    return [
        each.replace(annotation=eval(each.annotation, function.__globals__))  # noqa: S307  our own
        if isinstance(each.annotation, str)
        else each
        for each in list(inspect.signature(function).parameters.values())[start:]
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
