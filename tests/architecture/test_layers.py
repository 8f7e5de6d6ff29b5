"""Layers and cycles: the contracts of [tool.importlinter] in pyproject.toml hold."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

pytestmark = pytest.mark.usefixtures("processes")

ROOMS = (
    "client",
    "client/machine",
    "client/port",
    "core",
    "hosting",
    "hub",
    "hub/journal",
    "hub/machine",
    "hub/machine/books",
    "hub/machine/views",
    "link",
    "messages",
    "pool",
    "pool/machine",
    "pool/slots",
    "serialize",
    "shm",
    "sockets",
    "spark",
    "spark/evaluation",
    "spark/jobs",
    "spark/steps",
    "system",
)
"""Those that contracts name."""
MODULES = (
    "link/link",
    *(f"messages/{name}" for name in ("frames", "mesh_messages", "runs", "slot_messages")),
)
"""Those that a contract names one by one."""


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()"]
    return subprocess.run(
        [*command, "--no-cache", "--no-logo"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_contracts_of_the_layers_are_kept():
    outcome = _lint_imports(ROOT)

    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def _project(folder: Path, modules: dict[str, str]) -> Path:
    """Write a project with our contracts and the given modules of taskmesh."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text("[tool.importlinter]" + text.partition("[tool.importlinter]")[2])
    always = (
        "__init__",
        "cli",
        *(f"{room}/__init__" for room in ROOMS),
        *MODULES,
    )
    for name, source in {**dict.fromkeys(always, ""), **modules}.items():
        file = folder / "taskmesh" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    return folder


def test_contracts_are_broken_when_a_lower_layer_imports_a_higher_one(tmp_path):
    project = _project(tmp_path, {"errors": "import taskmesh.core\n"})

    outcome = _lint_imports(project)

    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "taskmesh.errors is not allowed to import taskmesh.core" in outcome.stdout


def test_contracts_are_broken_when_a_module_stands_in_no_layer(tmp_path):
    project = _project(tmp_path, {"stray": ""})

    outcome = _lint_imports(project)

    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "stray" in outcome.stdout


@pytest.mark.parametrize(
    ("room", "other"),
    [
        ("pool", "hub"),
        ("hub", "pool/slots"),
        ("client/machine", "pool"),
        ("hub/machine", "hub/journal"),
        ("hub/machine/books", "hub/machine/views"),
        ("core", "link"),
        ("spark/steps", "spark/jobs"),
        ("shm", "messages"),
        ("messages", "serialize"),
    ],
)
def test_contracts_are_broken_when_a_room_looks_into_another(tmp_path, room, other):
    project = _project(tmp_path, {f"{room}/__init__": f"import taskmesh.{other.replace('/', '.')}\n"})

    outcome = _lint_imports(project)

    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert f"taskmesh.{room.replace('/', '.')} ->" in outcome.stdout.replace("\n", " ")


def test_contracts_are_kept_when_imports_point_downwards(tmp_path):
    project = _project(tmp_path, {"hub/__init__": "import taskmesh.core\n", "errors": ""})

    outcome = _lint_imports(project)

    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_every_layer_module_has_one_place():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(contract["layers"] for contract in contracts if contract["id"] == "layers")

    names = [name.strip(" ()") for row in rows for name in row.replace("|", ":").split(":")]

    assert sorted(set(names)) == sorted(names)
