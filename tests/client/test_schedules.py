"""Schedules of an embedded mesh, as users write them: options, declarations, refusals."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from taskmesh import Mesh, Schedule, current_task, task
from taskmesh.errors import ConfigError
from taskmesh.schedule import declarations
from tests.harness.journal import Journal
from tests.harness.waiting import wait_until

END_S = 20


@pytest.fixture
def mesh(processes: None) -> Iterator[Mesh]:
    with Mesh(workers=2) as mesh:
        yield mesh


def note(path: str, word: str = "") -> None:
    tick = current_task().scheduled_for
    assert tick is not None
    Journal(path).append(f"{tick.timestamp()} {time.time()} {word}")


def fail() -> None:
    raise ValueError("it is broken")


def firings(path: Path) -> list[tuple[float, float]]:
    """The nominal and the real time of each firing."""
    return [(float(line.split()[0]), float(line.split()[1])) for line in Journal(path).lines()]


def seconds_of(mesh: Mesh, path: Path, count: int, bound: float) -> None:
    """Each second fires once, for its own time, and none is late, once a slot has imported this module."""
    mesh.submit(firings, path).result(END_S)
    mesh.schedule("tick", note, str(path), when=1)
    wait_until(lambda: len(firings(path)) >= count, count + END_S, tick=0.2)
    found = firings(path)[:count]
    late = [real - nominal for nominal, real in found]

    assert [after[0] - before[0] for before, after in pairwise(found)] == [1.0] * (count - 1)
    assert min(late) >= 0
    assert sorted(late)[len(late) // 2] <= bound
    wait_until(lambda: mesh.status()["tasks"]["queued"] == 0)  # the last one may be about to end


def test_a_second_s_period(mesh: Mesh, tmp_path: Path):
    seconds_of(mesh, tmp_path / "journal", 4, bound=0.5)  # of a machine that others use


@pytest.mark.soak
@pytest.mark.timeout(360)
def test_three_hundred_seconds(mesh: Mesh, tmp_path: Path):
    seconds_of(mesh, tmp_path / "journal", 300, bound=0.01)
    late = [real - nominal for nominal, real in firings(tmp_path / "journal")[:300]]

    assert sum(late) / 300 <= 0.01
    assert max(late) <= 0.05


def test_a_schedule_takes_arguments_and_options_and_is_replaced(mesh: Mesh, tmp_path: Path):
    journal = tmp_path / "journal"
    mesh.schedule("n", task(retries=2, priority=3)(note), str(journal), word="first", when=0.1)
    wait_until(lambda: len(firings(journal)) >= 2, END_S)
    mesh.schedule("n", partial(note, str(journal)), word="second", when=Schedule(0.1, overlap="allow"))
    wait_until(lambda: Journal(journal).lines()[-1].endswith("second"), END_S)

    assert mesh.unschedule("n") is True
    assert mesh.unschedule("n") is False


def test_code_declares_and_meshes_that_are_open_are_told(processes: None, tmp_path: Path):
    journals = [tmp_path / "before", tmp_path / "after"]

    @task(schedule=0.1)
    def before(path: str = str(journals[0])) -> None:
        note(path)

    with Mesh(workers=2):
        wait_until(lambda: firings(journals[0]), END_S)

        @task(schedule=Schedule(0.1, overlap="skip"))
        def after(path: str = str(journals[1])) -> None:
            note(path)

        wait_until(lambda: firings(journals[1]), END_S)
    assert {one.name.rpartition(".")[2] for one in declarations()} >= {"before", "after"}
    assert before.scheduled is not None
    assert after.scheduled is not None


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("every day", "cron line"),
        ("61 * * * *", r"'61 \* \* \* \*' is no cron line .*: write minute, hour, day"),
        ("0 0 31 2 *", "is no cron line"),
        (0, "from 0.01 on"),
        (float("nan"), "from 0.01 on"),
        (10**400, "from 0.01 on"),
        (True, "from 0.01 on"),
        (None, "not None"),
        ([1], "from 0.01 on"),
    ],
)
def test_what_is_no_schedule_is_refused_at_once(when: object, said: str):
    with pytest.raises(ConfigError, match=said):
        task(schedule=when)(note) if when is not None else Mesh().schedule("n", note, when=when)


@pytest.mark.parametrize(
    "rules",
    [
        {"overlap": "both"},
        {"overlap": "queue"},
        {"catchup": "all"},
        {"tz": ""},
        {"tz": "Europe/Nowhere"},
        {"when": "0 9 * * *", "tz": "../etc/passwd"},
    ],
)
def test_rules_are_checked_where_they_are_written(rules: dict[str, object]):
    with pytest.raises(ConfigError):
        Schedule(**{"when": 1, **rules})  # type: ignore[arg-type]


def test_a_task_that_needs_arguments_cannot_be_declared():
    with pytest.raises(ConfigError, match="without arguments"):
        task(schedule=1)(note)


def test_options_of_single_calls_are_refused():
    with pytest.raises(ConfigError, match="leave key="):
        task(schedule=1, key="k")(fail)
    with pytest.raises(ConfigError, match="single calls"):
        task(schedule=1, delay=3)(fail)
