"""`taskmesh config show`: the settings as a program would have them here, and where each comes from."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taskmesh.cli.command import command
from taskmesh.cli.output import Output

if TYPE_CHECKING:
    from taskmesh.config import Config

COLUMNS: Final = ("setting", "value", "origin")
DEFAULT: Final = "default"
_PASSWORD: Final = re.compile(r"(?<=//)([^/@:]*):[^/@]*(?=@)")
"""The user and the password of a URL."""


@command("address", "keys")
def show(
    config: Config,
    out: Output,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Those that have their defaults, too.")] = False,
) -> None:
    """Show the settings that files, the environment and options give, and where each comes from.

    Later sources go before earlier ones: defaults, taskmesh.toml or pyproject.toml, TASKMESH_*, options.
    Passwords in URLs are shown as ***.

    Example:
        taskmesh config show --all
    """
    rows = settings_of(config)
    shown = [row for row in rows if everything or row["origin"] != DEFAULT]
    out.rows(shown, COLUMNS, "all settings have their defaults: --all shows them")


def settings_of(config: Config) -> list[dict[str, object]]:
    """Return all settings: name, value and origin."""
    from taskmesh.config import SECTIONS  # loaded with the settings; `--help` does without

    found = asdict(config)
    origins = found["origins"]
    return [
        {"setting": name, "value": masked(value), "origin": origins.get(name, DEFAULT)}
        for section in SECTIONS
        for key, value in found[section].items()
        if (name := f"{section}.{key}")
    ]


def masked(value: object) -> object:
    """Return a value without the passwords of URLs in it."""
    return _PASSWORD.sub(r"\1:***", value) if isinstance(value, str) else value


COMMANDS: Final = {"show": show}
