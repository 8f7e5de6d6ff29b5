"""What is in the repository works on any machine: no path of one, no registry's address, no lock file."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.harness.requirement import require

pytestmark = pytest.mark.usefixtures("processes")

# Put together here, so that this file is not its own finding.
MACHINE_PATH = re.compile(
    r"(?<![\w.$~-])/(?:"
    + "|".join(["wo" + "rk", "ro" + "ot", "fa" + "rm", "ho" + r"me/\w+", "tm" + r"p/\w+"])
    + r")/"
)
REGISTRY_HOST = re.compile(
    r"\b(?:"
    + "|".join(
        host.replace(" ", r"\.")
        for host in [
            "pypi org",
            "pythonhosted org",
            "npmjs org",
            "npmjs com",
            "crates io",
            "deb debian org",
            "ubuntu com",
        ]
    )
    + r")\b"
)


def _tracked() -> list[Path]:
    git = shutil.which("git")
    require(
        git and (ROOT / ".git").exists(), "a git checkout and git, to know which files belong to the project"
    )
    listing = subprocess.run(
        [str(git), "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
    )
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def _findings(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in _tracked():
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
            found += [f"{path.relative_to(ROOT)}:{number}: {hit.group()}" for hit in pattern.finditer(line)]
    return found


def test_no_tracked_file_names_a_path_of_one_machine():
    assert _findings(MACHINE_PATH) == []


def test_no_tracked_file_names_a_registry():
    assert _findings(REGISTRY_HOST) == []


def test_no_lock_file_is_tracked():
    locks = {"uv.lock", "poetry.lock", "Pipfile.lock", "package-lock.json"}

    assert [path for path in _tracked() if path.name in locks] == []


def test_no_empty_file_is_tracked():
    """What a test has left in the working folder is empty more often than not."""
    empty = [path.relative_to(ROOT).as_posix() for path in _tracked() if not path.stat().st_size]

    assert empty == ["taskmesh/py.typed"]
