"""`taskmesh worker` is another program from its first moment on."""

import importlib.util
import sys

import pytest

from taskmesh.cli import main
from taskmesh.cli.succession import succeeded
from tests.programs import command, outcome_of


def test_it_loads_neither_the_other_commands_nor_the_mesh():
    python, *line = command("worker", "--help")

    outcome = outcome_of([python, "-X", "importtime", *line])

    loaded = {row.rpartition("|")[2].strip() for row in outcome.stderr.splitlines()}
    assert outcome.returncode == 0
    assert "--concurrency" in outcome.stdout
    assert "taskmesh.cli" in loaded
    assert not {name for name in loaded if name.partition(".")[0] in ("typer", "zmq", "msgspec")}


@pytest.mark.parametrize("line", [[], ["hub"], ["--version"], ["submit", "worker"]])
def test_every_other_line_stays_with_the_command_line(line: list[str]):
    succeeded(line)


def test_without_its_package_the_cure_is_told(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["taskmesh", "worker", "--name", "one"])

    assert main() == 2
    assert "the package taskmesh_workers is not installed" in capsys.readouterr().err
