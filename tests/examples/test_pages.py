"""README and docs as a new user takes them: their Python runs, their settings and options are the code's."""

from __future__ import annotations

import re
import textwrap
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import taskmesh
from taskmesh.client.options import TaskOptions
from taskmesh.config import Config, load
from tests.harness.program import check_printed

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/how-to/guide.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMING_FROM = (ROOT / "docs/how-to/coming-from.md").read_text(encoding="utf-8")
README = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
PROGRAMS = {
    "README": README[0],  # the second one is a Spark job: tests/spark/test_readme.py
    **{f"guide-{number}": block for number, block in enumerate(BLOCK.findall(GUIDE), 1)},
    **{f"coming-from-{number}": block for number, block in enumerate(BLOCK.findall(COMING_FROM), 1)},
}
ROW = re.compile(r"^\| (?:`(\w+)` )?\| `(\w+)` \| `(.*?)` \| .+ \|$", re.MULTILINE)


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def settings_of_the_table() -> dict[str, dict[str, object]]:
    """Sections with the defaults that the guide gives, read as TOML."""
    table = GUIDE.partition("<!-- settings: a test compares them -->")[2].partition(
        "<!-- end of settings -->"
    )[0]
    sections: dict[str, dict[str, object]] = {}
    section = ""
    for named, key, default in ROW.findall(table):
        section = named or section
        sections.setdefault(section, {})[key] = tomllib.loads(f"value = {default}")["value"]
    return sections


@pytest.mark.smoke
@pytest.mark.parametrize("name", PROGRAMS)
def test_python_of_a_page_runs_as_pasted_and_prints_what_its_comments_say(name: str, tmp_path: Path) -> None:
    told = check_printed(textwrap.dedent(PROGRAMS[name]), tmp_path, "-W", "error")

    assert told or name != "README"


def test_every_setting_stands_in_the_guide_with_its_default() -> None:
    told = settings_of_the_table()
    sections = [section for section in fields(Config) if section.name != "origins"]

    assert {section: list(keys) for section, keys in told.items()} == {
        section.name: [key.name for key in fields(getattr(Config(), section.name))]
        for section in sorted(sections, key=lambda each: list(told).index(each.name))
    }
    assert load(told, environ={}) == Config()


def test_every_task_option_stands_in_the_guide_and_in_the_decorator_s_help() -> None:
    table = GUIDE.partition("## Options of a task")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    told = {
        name: eval(default, {})  # noqa: S307  our own page
        for names, defaults in cells
        for name, default in zip(re.findall(r"`(\w+)`", names), re.findall(r"`(.*?)`", defaults), strict=True)
    }

    assert sorted(told) == sorted(option.name for option in fields(TaskOptions))
    assert TaskOptions().with_changes(told) == TaskOptions()
    help_text = taskmesh.task.__doc__ or ""
    assert [name for name in told if not re.search(rf"\b{name}[,:]", help_text)] == []


def test_every_public_name_says_what_it_is_for() -> None:
    bare = []
    for name in taskmesh.__all__:
        found = getattr(taskmesh, name)
        members = vars(found).items() if isinstance(found, type) else ()
        public = [(key, value) for key, value in members if not key.startswith("_")]
        documented = [(name, found), *((f"{name}.{key}", value) for key, value in public if callable(value))]
        bare += [key for key, value in documented if not (getattr(value, "__doc__", "") or "").strip()]

    assert bare == []
