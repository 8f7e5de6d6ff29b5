"""A unit of systemd as tests need it: its entries, and the environment that it gives its program."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.harness.program import ROOT

FOLDER = ROOT / "deploy" / "systemd"
PROGRAM = "/opt/taskmesh/bin/taskmesh"


class Unit:
    """One unit file.

    Attributes:
        entries: the values of each key, of all sections.
    """

    def __init__(self, name: str) -> None:
        self.entries: dict[str, list[str]] = {}
        for line in (FOLDER / f"{name}.service").read_text(encoding="utf-8").splitlines():
            key, is_entry, value = line.partition("=")
            if is_entry and not line.startswith("#"):
                self.entries.setdefault(key, []).append(value)

    def one(self, key: str) -> str:
        """The value of a key that stands there once."""
        (value,) = self.entries[key]
        return value

    def seconds(self, key: str) -> int:
        """The value of a key that is a time."""
        return int(self.one(key))

    def line(self) -> list[str]:
        """The arguments of the program that the unit starts."""
        program, *arguments = shlex.split(self.one("ExecStart"))
        assert program == PROGRAM
        return arguments

    def environment(self, state: Path) -> dict[str, str]:
        """The variables that the unit and its file give the program; `state` stands for /var/lib."""
        file = self.one("EnvironmentFile").removeprefix("-")
        lines = (FOLDER / Path(file).name).read_text(encoding="utf-8").splitlines()
        given = [*self.entries.get("Environment", ()), *(line for line in lines if line[:1] not in ("#", ""))]
        return {
            name: value.replace("%S", str(state))
            for name, _, value in (each.partition("=") for each in given)
        }
