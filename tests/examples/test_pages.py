"""README and docs as a new user takes them: their Python runs, their lists are written from the code."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

import taskmesh
from docs.generated import LISTS, written
from taskmesh import NoRetry, errors
from taskmesh.spark.steps.errors import NoMeshWorkers
from tests.harness.page import Reader, programs_of
from tests.harness.program import check_printed
from tests.harness.programs import Programs
from tests.harness.requirement import require

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
README = programs_of((ROOT / "README.md").read_text(encoding="utf-8"))
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
OF_SPARK = ("spark", "capacity")
"""Beginnings of the names of pages whose blocks are parts of Spark jobs: tests/spark has them."""
OF_PEERS = ("how-to/dask", "how-to/joblib")
"""Beginnings of the names of pages whose programs need the packages of `make .venv/ready-peers`."""
FOLLOWED = ("tutorial/", "how-to/prefect")
"""Beginnings of the names of pages that `first_hour` follows in environments of their own."""
PAGES = {
    str(page.relative_to(ROOT / "docs")): page.read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.parent.name != "adr"
}
PROGRAMS = {
    "README": README[0],  # the second one is a Spark job: tests/spark/test_readme.py
    **{
        f"{name}-{number}": program
        for name, text in PAGES.items()
        if not name.startswith(FOLLOWED) and not Path(name).name.startswith(OF_SPARK)
        for number, program in enumerate(programs_of(text), 1)
    },
}
LESSONS = [name for name in PAGES if re.fullmatch(r"tutorial/(?!index|spark).*", name)]


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name.startswith(OF_PEERS) else pytest.mark.smoke) for name in PROGRAMS],
)
def test_python_of_a_page_runs_as_pasted_and_prints_what_its_comments_say(name: str, tmp_path: Path) -> None:
    if name.startswith(OF_PEERS):
        pytest.importorskip("dask", reason="make .venv/ready-peers")
    told = check_printed(PROGRAMS[name], tmp_path, "-W", "error")

    assert told or name != "README"


@pytest.mark.smoke
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_can_be_followed_to_the_letter(name: str, programs: Programs) -> None:
    require(shutil.which("curl"), "curl: apt install curl")

    assert Reader(programs).follow(PAGES[name]) > 3


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_the_reference_is_written_from_the_code(name: str) -> None:
    mark = f"<!-- generated: {name} -->"

    assert [page for page, text in PAGES.items() if mark in text]
    assert len(written(mark, ROOT).splitlines()) > 5


def test_a_setting_of_two_sections_has_a_variable_for_each() -> None:
    assert '`TASKMESH_CLIENT__MAX_BYTES` | `"1GiB"`' in LISTS["settings"]()
    assert "`TASKMESH_HUB__MAX_BYTES` | `0`" in LISTS["settings"]()


def test_a_traceback_has_the_address_of_the_section_of_its_error() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    sections = re.findall(r"^#{2,3} (\w+)$", PAGES["reference/errors.md"], re.MULTILINE)
    page = next(url for url in URLS.values() if url.endswith("docs/index.md")).replace(
        "index", "reference/errors"
    )
    notes = {kind.__name__: getattr(kind("why"), "__notes__", []) for kind in kinds}

    assert sorted(notes) == sorted(sections)
    assert notes.pop("TaskMeshError") == []
    assert notes == {name: [f"See {page}#{name.lower()}"] for name in notes}
    assert not hasattr(NoRetry("why"), "__notes__")
    assert NoMeshWorkers("why").__notes__ == notes["TaskError"]


def test_every_public_name_says_what_it_is_for() -> None:
    bare = []
    for name in taskmesh.__all__:
        found = getattr(taskmesh, name)
        members = vars(found).items() if isinstance(found, type) else ()
        public = [(key, value) for key, value in members if not key.startswith("_")]
        documented = [(name, found), *((f"{name}.{key}", value) for key, value in public if callable(value))]
        bare += [key for key, value in documented if not (getattr(value, "__doc__", "") or "").strip()]

    assert bare == []
