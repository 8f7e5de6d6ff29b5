"""The clauses that have a test: by the name of a test of one role, by the mark of one of several."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from taskmesh import sockets
from tests.conformance.clauses import CLAUSES

HERE = Path(__file__).parent


def each(**clauses: str) -> pytest.MarkDecorator:
    """Runs a test for several roles, as `kind`.

    Args:
        clauses: by the role's class, the ids of the clauses that the test proves for it, with blanks between.
    """
    cases = [
        pytest.param(
            getattr(sockets, role), marks=pytest.mark.clauses(*ids.split()), id=ids.replace(" ", "+")
        )
        for role, ids in clauses.items()
    ]
    return pytest.mark.parametrize("kind", cases)


def proofs_of_clauses() -> list[str]:
    """The names of all conformance tests of one role, and the ids of the clauses that others prove."""
    tests = [
        node
        for path in sorted(HERE.glob("test_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    marks = [
        node.value
        for test in tests
        for decorator in test.decorator_list
        for node in ast.walk(decorator)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [*(test.name for test in tests), *" ".join(marks).split()]


def clauses_without_a_test() -> list[str]:
    """The ids of the clauses that no test proves."""
    found = proofs_of_clauses()
    return [
        clause.id
        for clause in CLAUSES
        if not any(test == clause.id or test.startswith(clause.test_prefix) for test in found)
    ]
