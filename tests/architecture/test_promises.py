"""Promises on the pages of docs/ name the tests that show them: these exist; `make test` runs one of each."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, functions, python_files

MARK = "<!-- abuse list: a test looks the tests up -->"
NAMED = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
ROWS = [f"A{number}" for number in range(1, 24)]


@cache
def rows() -> dict[str, list[tuple[str, str]]]:
    """Every row of the abuse list with the tests that it names."""
    table = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8").partition(MARK)[2]
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| A")]
    return {cells[1].strip(): NAMED.findall(cells[4]) for cells in lines}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_abuse_list_names_tests_that_exist(row):
    named = rows()[row]

    assert named
    assert [name for path, name in named if name not in {one.name for one in functions(Path(path))}] == []


def test_every_test_of_a_row_is_named_in_it():
    named = {name for tests in rows().values() for _, name in tests}
    files = python_files("tests/hosting/abuse")
    shown = {one.name for path in files for one in functions(path) if re.match(r"test_A\d\d_", one.name)}

    assert shown
    assert shown <= named


PURE = ("tests/core/", "tests/client/", "tests/hub/machine/", "tests/pool/machine/")
"""Folders of unit tests, all of which `make test` runs."""
CLUSTER = "Kubernetes"
"""A row that begins with it needs a cluster: `make test-kube`."""


def promises() -> list[tuple[str, str]]:
    """Every row of docs/explanation/guarantees.md that says what shows it: the fault and the last cell."""
    text = (ROOT / "docs/explanation/guarantees.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\|.*shown by \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    lines = [line.split("|") for table in tables for line in table.splitlines()]
    found = [(cells[1].strip(), cells[-2].strip()) for cells in lines]
    return [(fault, cell) for fault, cell in found if cell != "-"]  # that row promises nothing


@cache
def smoke_tests() -> frozenset[str]:
    """Every test function that is marked, itself or one of its cases."""
    return frozenset(
        one.name
        for path in python_files("tests")
        for one in functions(path)
        if any("mark.smoke" in ast.unparse(decorator) for decorator in one.decorator_list)
    )


def is_quick(cell: str) -> bool:
    """Return True if `make test` runs a test that the cell names by a fault, an attack or a path."""
    faults = re.findall(r"\bF(\d\d)\b", cell)
    attacks = re.findall(r"\b(A\d+)\b", cell)
    named = {name for attack in attacks for _, name in rows()[attack]}
    found = {name for name in smoke_tests() for number in faults if f"_F{number}_" in name}
    paths = [f"{path}.py" for path in re.findall(r"\btests/[\w/]+", cell)]
    return bool(found or named & smoke_tests()) or any(
        path.startswith(PURE) or "mark.smoke" in (ROOT / path).read_text(encoding="utf-8")
        for path in paths
        if (ROOT / path).is_file()
    )


def test_every_guarantee_is_shown_once_by_make_test():
    found = promises()

    assert len(found) > 30
    assert [fault for fault, cell in found if not fault.startswith(CLUSTER) and not is_quick(cell)] == []
