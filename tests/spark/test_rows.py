"""docs/explanation/spark.md lists acceptance rows; tests of this folder name those that they belong to."""

import ast
import re
from pathlib import Path

import pytest

from tests.harness.program import ROOT

pytestmark = [pytest.mark.spark]


def test_each_row_has_tests_and_each_test_a_row_that_is_listed():
    table = (ROOT / "docs/explanation/spark.md").read_text().partition("## Acceptance")[2]
    listed = [int(row) for row in re.findall(r"^\| (\d+) \| ", table, re.MULTILINE)]
    tested = {
        int(row)
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for rows in re.findall(r"^test_row_(\d\d(?:_and_\d\d)*)_", node.name)
        for row in rows.split("_and_")
    }

    assert sorted(tested) == listed == list(range(1, 35))
