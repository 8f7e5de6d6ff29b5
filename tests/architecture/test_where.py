"""The table "Where is ...?" of CONTRIBUTING.md leads somewhere: its modules, members and contracts exist."""

import ast
import re
import tomllib

import pytest

from tests.architecture.source import ROOT, tree

SECTION = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where is ...?\n")[2]
SECTION = SECTION.partition("\n## ")[0]
ROWS = re.findall(r"^\| (.+?) \| `([\w/]+\.py)` \| `([\w.]+)` \|$", SECTION, re.MULTILINE)
CONTRACTS = re.findall(r"^\| [^|]+ \| ((?:`[\w-]+`(?:, )?)+) \|$", SECTION, re.MULTILINE)


def test_the_table_answers_thirty_questions():
    assert len(ROWS) >= 30
    assert len({question for question, _, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("path", "name"), [row[1:] for row in ROWS])
def test_what_the_table_names_exists(path, name):
    body = tree((ROOT / "taskmesh" / path).relative_to(ROOT)).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", "") == part]
        assert found, f"taskmesh/{path} has no {name}"
        assert isinstance(found[0], ast.ClassDef | ast.FunctionDef)
        body = found[0].body


def test_contracts_that_the_table_names_exist():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    known = {contract["id"] for contract in settings["tool"]["importlinter"]["contracts"]}
    named = set(re.findall(r"`([\w-]+)`", " ".join(CONTRACTS)))

    assert named
    assert named <= known
