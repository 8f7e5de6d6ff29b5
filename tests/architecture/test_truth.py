"""Pages say what there is: what is lost and kept stands on one page, and lists name commands that exist."""

from __future__ import annotations

import re

import pytest

from tests.architecture.test_links import NAMES, PAST, command_line, text_of

TABLE = "guarantees.md#what-survives-what"
CLAIM = re.compile(r"\bin (?:its |their )?memory\b(?! files?\b)|\bdiscard\w*|\bnot available\b")
"""Words for what a hub loses, or what is missing: a new tier, or a new feature, makes them untrue."""
ALLOWED = (
    ("docs/guarantees.md", "| in memory: no journal |", "the head of the table itself"),
    ("docs/conformance.md", "would discard with a peer", "libzmq does that"),
    ("helm/taskmesh/README.md", "keep the folder in memory", "a kind of emptyDir"),
)
"""A page, the words around such a claim, and why it may stand there."""
LINKED = (
    "CHANGELOG.md",
    *(
        f"docs/{page}.md"
        for page in (
            "coming-from",
            "compared",
            "deploy",
            "glossary",
            "guide",
            "kubernetes",
            "operations",
            "security",
        )
    ),
    "docs/spark.md",
)
"""The pages that speak of what is lost or kept."""
PRESENT = [name for name in NAMES if not name.startswith("docs/adr/")]
"""The pages that do not tell of decisions of the past."""
LIST = re.compile(r"`taskmesh +([a-z][^`]*)`((?:(?:, | and | or |, and |, or |,\n\s*)`[a-z][a-z-]*`)+)")
"""A command, and words behind it that are commands too: `taskmesh status`, `pools` and `tasks`."""
CHOICE = re.compile(r"`taskmesh +([a-z][a-z-]*(?: [a-z][a-z-]*)?(?:\s+\|\s+[a-z][a-z-]*)+)`")
"""Several commands in one: `taskmesh dead list | show`."""


def claims(name: str) -> list[str]:
    """Return the claims of a page that are not allowed, with the words around each."""
    text = " ".join(text_of(name).split())
    for page, part, _ in ALLOWED:
        text = text.replace(part, "") if page == name else text
    return [text[max(0, match.start() - 60) : match.end() + 60] for match in CLAIM.finditer(text)]


def missing(text: str) -> list[str]:
    """The words of a page's lists of commands that no command has."""
    groups = command_line().commands
    lists = [(first.split(), re.findall(r"`([a-z-]+)`", rest)) for first, rest in LIST.findall(text)]
    for said in CHOICE.findall(text):
        first, *others = (one.split() for one in said.split("|"))
        lists.append((first, [*first[:1], *(word for other in others for word in other)]))
    return [
        word
        for (group, *_), words in lists
        for word in words
        if word not in {*groups, *getattr(groups.get(group), "commands", {})}
    ]


@pytest.mark.parametrize("name", PRESENT)
def test_what_is_lost_or_missing_is_told_on_one_page(name: str) -> None:
    assert claims(name) == []


def test_every_exception_is_on_its_page() -> None:
    assert [part for page, part, _ in ALLOWED if not CLAIM.search(part) or part not in text_of(page)] == []


@pytest.mark.parametrize("name", LINKED)
def test_pages_that_speak_of_a_journal_lead_to_the_table_of_what_survives(name: str) -> None:
    assert "journal" in text_of(name)
    assert TABLE in text_of(name)


def test_other_pages_do_not_speak_of_a_journal_without_it() -> None:
    speaking = {name for name in PRESENT if name.startswith("docs/") and "journal" in text_of(name)}

    assert speaking - {*LINKED, "docs/guarantees.md", "docs/architecture.md"} == set()


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(PAST[1])])
def test_words_of_a_list_of_commands_are_commands(name: str) -> None:
    text = text_of(name)
    present = text.partition("\n### Removed")[0] if name == PAST[0] else text

    assert missing(present) == []


def test_a_word_that_is_no_command_is_found() -> None:
    assert missing("`taskmesh status`, `peek` and `tasks`") == ["peek"]
    assert missing("`taskmesh dead list`, `show` or `peek`") == ["peek"]
    assert missing("`taskmesh status | peek |\n  limits`; `taskmesh limits list | raise`") == [
        "peek",
        "raise",
    ]


def test_the_list_of_all_commands_is_whole() -> None:
    (said,) = re.findall(r"`taskmesh (up \|[^`]*)`", text_of("CHANGELOG.md"))

    assert {word.strip() for word in said.split("|")} == set(command_line().commands)
