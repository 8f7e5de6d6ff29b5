"""Which clauses have a test, read from the names of the tests."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conformance.clauses import CLAUSES

HERE = Path(__file__).parent


def names_of_tests() -> list[str]:
    """The names of all conformance tests."""
    return [
        node.name
        for path in sorted(HERE.glob("test_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def clauses_without_a_test(family: str | None = None) -> list[str]:
    """The ids of the clauses that no test is named after; of one family, or of all."""
    names = names_of_tests()
    return [
        clause.id
        for clause in CLAUSES
        if family in (None, clause.family) and not any(name.startswith(clause.test_prefix) for name in names)
    ]
