"""The programs of examples/workflows run, and so does the code for Celery's canvas on its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import taskmesh
from taskmesh import Mesh, TaskFuture, task
from tests.harness.program import check_printed

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {path.stem: path for path in sorted((ROOT / "examples" / "workflows").glob("*.py"))}
MOST_LINES = 15
PAGE = (ROOT / "docs/how-to/celery.md").read_text(encoding="utf-8")
LIST = (ROOT / "docs/how-to/workflows.md").read_text(encoding="utf-8")
CANVAS = re.findall(
    r"^\| (`.+`) \| (.+?) \| ?.*\|$",
    PAGE.partition("<!-- canvas")[2].partition("<!-- end of canvas -->")[0],
    re.MULTILINE,
)
# What Celery's canvas and a task's options offer; each has a row.
WORDS = (
    *("chain(", "group(", "chord(", ".map(", ".starmap(", ".chunks(", "link=", "link_error="),
    *("countdown=", "eta=", "expires=", "self.retry(", "rate_limit=", "beat_schedule", "result.get("),
    *("result.revoke(", "group_result.join(", "immutable=True", "self.replace("),
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_workflow_has_at_most_15_lines_and_prints_what_its_comments_say(name: str, tmp_path: Path) -> None:
    text = PROGRAMS[name].read_text(encoding="utf-8")

    assert check_printed(text, tmp_path, "-W", "error")
    assert sum(1 for line in text.splitlines() if line.strip()) <= MOST_LINES


def test_every_workflow_stands_in_the_page() -> None:
    assert [name for name in PROGRAMS if f"(../../examples/workflows/{name}.py)" not in LIST] == []


def test_the_canvas_is_complete() -> None:
    left = " ".join(celery for celery, _ in CANVAS)

    assert [word for word in WORDS if word not in left] == []


@task
def a(x: int) -> int:
    return x + 1


@task
def b(x: int) -> int:
    return x * 2


@task
def add(x: int, y: int) -> int:
    return x + y


@task
def total(values: list[int]) -> int:
    return sum(values)


@task
def e(end: taskmesh.Outcome[int]) -> str:
    return repr(end.exception())


@task
def spread(n: int) -> TaskFuture[int]:
    return total.submit([a.submit(x) for x in range(n)])


@task
def children(n: int) -> list[TaskFuture[int]]:
    return [a.submit(x) for x in range(n)]


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    with Mesh(workers=2) as mesh:
        yield mesh


@pytest.mark.parametrize(("celery", "code"), CANVAS, ids=[celery[:40] for celery, _ in CANVAS])
def test_code_of_the_canvas_runs(celery: str, code: str, mesh: Mesh) -> None:
    if code == "not available":
        return
    values = {"xs": [1, 2, 3], "pairs": [(1, 2), (3, 4)], "at": datetime.now(UTC), "c": b, "mesh": mesh}
    public = {name: getattr(taskmesh, name) for name in taskmesh.__all__}
    names: dict[str, Any] = {**public, **globals(), **values}
    *before, last = code.strip("`").split("; ")
    for statement in before:
        exec(statement, names)  # noqa: S102  our own page
    value = eval(last, names)  # noqa: S307  our own page

    futures = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, TaskFuture)]
    for future in futures:
        if "delay=" in code:
            future.cancel()
        elif "failure" not in code and ".cancel" not in code:
            assert future.exception(timeout=30) is None
