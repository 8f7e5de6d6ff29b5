"""Promises on the pages of docs/ name the tests that show them; these are there."""

import re
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, functions, python_files

MARK = "<!-- abuse list: a test looks the tests up -->"
NAMED = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
ROWS = [f"A{number}" for number in range(1, 24)]


def rows() -> dict[str, list[tuple[str, str]]]:
    """Every row of the abuse list with the tests that it names."""
    table = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").partition(MARK)[2]
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| A")]
    return {cells[1].strip(): NAMED.findall(cells[4]) for cells in lines}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_abuse_list_names_tests_that_exist(row):
    named = rows()[row]

    assert named
    assert [name for path, name in named if name not in {one.name for one in functions(Path(path))}] == []


def test_every_test_of_a_row_is_named_in_it():
    named = {name for tests in rows().values() for _, name in tests}
    files = python_files("tests/net/abuse")
    shown = {one.name for path in files for one in functions(path) if re.match(r"test_A\d\d_", one.name)}

    assert shown
    assert shown <= named
