"""docs/spark.md names for every acceptance row tests that are there, and leaves none out."""

import ast
import re
from pathlib import Path

import pytest

from tests.harness.program import ROOT

pytestmark = [pytest.mark.spark]
LINE = re.compile(r"^\| (\d+) \| .* \| (.*) \|$", re.MULTILINE)


def _named() -> dict[int, set[tuple[str, str]]]:
    """The table: row -> (file, test)."""
    text = (ROOT / "docs/spark.md").read_text().partition("## Acceptance")[2]
    return {
        int(row): {
            (file, f"test_{name}")
            for file, names in re.findall(r"(test_\w+\.py): ([\w, ]+)", cell)
            for name in names.split(", ")
        }
        for row, cell in LINE.findall(text)
    }


def _written() -> dict[int, set[tuple[str, str]]]:
    """The tests themselves."""
    found: dict[int, set[tuple[str, str]]] = {}
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (
                match := re.match(r"test_row_(\d\d(?:_and_\d\d)*)_", node.name)
            ):
                for row in match[1].split("_and_"):
                    found.setdefault(int(row), set()).add((path.name, node.name))
    return found


def test_all_33_rows_have_their_tests_and_all_tests_their_rows():
    assert _named() == _written()
    assert sorted(_named()) == list(range(1, 34))
