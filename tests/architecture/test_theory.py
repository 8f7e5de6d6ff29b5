"""Theory of operation, docs/explanation/architecture.md: drawn from the code; its paths lead somewhere."""

import ast
import re
from pathlib import Path

from tests.architecture.diagrams import BLOCK, PAGE, drawings, drawn
from tests.architecture.source import ROOT, nodes, python_files

NAMED = re.compile(r"`((?:[\w.]+/)+[\w.]+\.py|(?:[\w.]+/)+)`")


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_diagrams_of_the_page_are_those_of_the_code():
    assert drawn(page()) == page(), "`make diagrams` draws them anew"


def test_every_drawing_stands_on_the_page():
    assert {name for _, name, _ in BLOCK.findall(page())} == drawings().keys()


def found(name: str) -> Path:
    """A path of the page: below taskmesh/, or from the root of the checkout."""
    return ROOT / name if name.startswith(("taskmesh/", "tests/")) else ROOT / "taskmesh" / name


def test_files_and_folders_that_the_page_names_exist():
    named = set(NAMED.findall(page()))

    assert len(named) > 40
    assert [name for name in sorted(named) if not found(name).exists()] == []


def test_names_of_code_that_the_page_uses_are_there():
    """`hub/machine/machine.py` `HubMachine._finish`: class and method are in the file."""
    pairs = re.findall(r"`([\w/]+\.py)`\s`([\w.]+)`", page())
    lost = []
    for path, names in pairs:
        text = found(path).read_text(encoding="utf-8")
        lost += [
            f"{path}: {name}"
            for name in names.split(".")
            if not re.search(rf"\b(class|def) {name}\b|^{name}\b", text, re.MULTILINE)
        ]

    assert len(pairs) > 40
    assert lost == []


def test_members_of_classes_that_the_page_names_are_there():
    """`Intake._fits`, `Submit.number`: some class of that name has such a method, field or attribute."""
    named = set(re.findall(r"`([A-Z][a-z]\w*)\.(\w+)`", page()))
    owners = {owner for owner, _ in named}
    bodies: dict[str, str] = {}
    for path in python_files("taskmesh"):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and node.name in owners:
                bodies[node.name] = bodies.get(node.name, "") + ast.unparse(node)

    assert len(named) > 20
    assert [
        f"{owner}.{member}"
        for owner, member in sorted(named)
        if not re.search(rf"(def |self\.|^    ){member}\b", bodies.get(owner, ""), re.MULTILINE)
    ] == []
