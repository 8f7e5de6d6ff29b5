"""What a type checker sees of the public names: the case files hold under mypy and basedpyright, both strict.

A case file asserts with `assert_type`, and marks a line that must be an error twice, once for each checker:
`# type: ignore[arg-type]  # pyright: ignore[reportArgumentType]`. A mark without an error is one to both, so
that a type that grows too wide fails here.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.harness.requirement import require

pytestmark = pytest.mark.usefixtures("processes")

FOLDER = Path(__file__).parent
CASES = sorted(FOLDER.glob("case_*.py"))
WRONG = 'def double(number: int) -> int:\n    return number * 2\n\n\ndouble("2")\n'
UNUSED_MARKS = "print(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]\n"


def _mypy(paths: list[Path], cache: Path) -> subprocess.CompletedProcess[str]:
    return _check("mypy", "--config-file", "pyproject.toml", "--cache-dir", str(cache), *map(str, paths))


def _basedpyright(paths: list[Path], _: Path) -> subprocess.CompletedProcess[str]:
    return _check("basedpyright", *map(str, paths))  # its rules stand in pyproject.toml, where it finds them


def _check(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    require(find_spec(tool), f"{tool}, which make test installs")
    command = [sys.executable, "-m", tool, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)


CHECKERS = pytest.mark.parametrize("checker", [_mypy, _basedpyright], ids=["mypy", "basedpyright"])


@pytest.mark.slow
@pytest.mark.timeout(180)
@CHECKERS
def test_public_types_hold(checker, tmp_path):
    assert CASES, "no case_*.py here: the public types are unchecked"
    outcome = checker(CASES, tmp_path)

    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.slow
@pytest.mark.timeout(180)
@CHECKERS
@pytest.mark.parametrize("source", [WRONG, UNUSED_MARKS], ids=["wrong", "unused-marks"])
def test_checker_reports_what_is_wrong(checker, source, tmp_path):
    case = tmp_path / "case_wrong.py"
    case.write_text(source, encoding="utf-8")

    outcome = checker([case], tmp_path)

    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "case_wrong.py:5" in outcome.stdout or "case_wrong.py:1" in outcome.stdout
