"""Pages of docs/adr have one form, and the list names each of them by its title."""

import re

import pytest

from tests.architecture.source import ROOT

PAGES = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
HEADINGS = ["Context", "Decision", "Consequences", "Tried and left out"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_has_its_context_consequences_and_what_was_left_out(page):
    text = page.read_text(encoding="utf-8")

    assert re.match(rf"# {page.name[:4]}: \S.*\n\n## Context\n", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS


def test_the_list_names_each_decision():
    listed = re.findall(
        r"^\| \[(\d{4})\]\((.+?)\) \|",
        (ROOT / "docs/adr/README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )

    assert listed == [(page.name[:4], page.name) for page in PAGES]
