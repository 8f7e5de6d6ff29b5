"""Pages lead somewhere: their links, and the commands, variables and tests that they name, exist."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from taskmesh.cli.application import app
from taskmesh.config import load
from taskmesh.errors import ConfigError
from tests.architecture.source import ROOT, functions, python_files

FOLDERS = ("benchmarks", "docs", "examples", "helm", "workers")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
HOME = re.compile(r"^https://(?:github|raw\.githubusercontent)\.com/taskmesh/taskmesh/(?:blob/)?main/")
"""The README stands on the package's page, too: its links have the repository's address."""
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|`|[A-Z]=\S+ )taskmesh +([a-z][^`#\n]*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
PATH = re.compile(r"`((?:taskmesh|tests|docs|examples|benchmarks|workers|helm|\.ci)/[\w./-]*)`")
PAST = ("CHANGELOG.md", "docs/adr/")
"""The beginnings of pages that tell of the past."""
FAULTS = re.compile(r"\bF(\d\d)(?:-F(\d\d))?\b")


def text_of(name: str) -> str:
    """A page of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """What can stand behind # in a link to the page, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@cache
def command_line() -> TyperGroup:
    """The program with all its commands; to build it takes 10 ms."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def options_of(words: list[str]) -> set[str] | None:
    """The options of a command or of a subcommand of it; None where there is no such command."""
    command = command_line()
    for word in words[: 2 if hasattr(command.commands.get(words[0]), "commands") else 1]:
        found = getattr(command, "commands", {}).get(word)
        if found is None:
            return None
        command = found
    return {"--help", *(option for one in command.params for option in one.opts)}


@pytest.mark.parametrize("name", NAMES)
def test_links_of_a_page_lead_to_files_and_headings_that_exist(name: str) -> None:
    lost = []
    for link in LINK.findall(FENCE.sub("", text_of(name))):
        path, _, anchor = HOME.sub(f"{ROOT}/", link).partition("#")
        target = Path(os.path.normpath((ROOT / name).parent / path)) if path else ROOT / name
        if not path.startswith("http") and not (
            target.exists() and (not anchor or anchor in anchors(target))
        ):
            lost.append(link)

    assert lost == []


def test_links_of_the_readme_work_on_the_package_s_page() -> None:
    assert [link for link in LINK.findall(text_of("README.md")) if not link.startswith("http")] == []


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(PAST)])
def test_files_and_folders_that_a_page_names_exist(name: str) -> None:
    assert [path for path in sorted(set(PATH.findall(text_of(name)))) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "CHANGELOG.md"])  # that tells of the past
def test_commands_of_a_page_exist_with_their_options(name: str) -> None:
    unknown = []
    for said in COMMAND.findall(text_of(name)):
        for one in said.split(" | "):
            options = options_of(one.split())
            if options is None or not set(OPTION.findall(said)) <= options:
                unknown.append(said)

    assert unknown == []


@pytest.mark.parametrize("name", NAMES)
def test_variables_of_a_page_are_settings(name: str) -> None:
    unknown = []
    for variable in set(re.findall(r"\bTASKMESH_[A-Z_]+[A-Z]\b", text_of(name))):
        try:
            load({}, environ={variable: "1"})
        except ConfigError as error:  # 1 may be no value of it
            unknown += [variable] * ("unknown" in str(error))

    assert unknown == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("processes")
def test_targets_of_make_that_a_page_names_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))

    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text_of(name), re.MULTILINE)) - targets == set()


def test_every_fault_of_the_guarantees_has_a_test() -> None:
    shown = {
        int(number)
        for path in python_files("tests/faults")
        for one in functions(path)
        for number in re.findall(r"_F(\d\d)", one.name)
    }
    named = {
        number
        for first, last in FAULTS.findall(text_of("docs/explanation/guarantees.md"))
        for number in range(int(first), int(last or first) + 1)
    }

    assert named
    assert named - shown == set()


def test_tests_that_the_guarantees_name_are_files() -> None:
    named = set(re.findall(r"\btests/[\w/]+", text_of("docs/explanation/guarantees.md")))

    assert [
        path for path in sorted(named) if not ((ROOT / path).is_dir() or (ROOT / f"{path}.py").is_file())
    ] == []
