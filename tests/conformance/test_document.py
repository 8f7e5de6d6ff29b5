"""docs/explanation/conformance.md is what the tests say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conformance.clauses import DEVIATIONS, SHOWN_IN_CORE
from tests.conformance.coverage import proofs_of_clauses

ROOT = Path(__file__).parents[2]


def test_a_clause_without_a_test_would_be_noticed() -> None:
    found = proofs_of_clauses()

    assert "PIPE-13" in found
    assert not any(each.startswith(("test_PIPE_99_", "PIPE-99")) for each in found)


def test_what_shows_a_clause_in_core_is_there() -> None:
    for clause, place in SHOWN_IN_CORE.items():
        file, name = place.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), clause


def test_the_document_is_up_to_date() -> None:
    command = [sys.executable, "-m", "tests.conformance.document", "--collect-only", "--check"]

    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)

    assert finished.returncode == 0, finished.stderr


def test_every_note_is_referred_to() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py"))

    assert [note for note in DEVIATIONS if f"{note}:" not in text] == []
