"""`taskmesh schedule` against a hub with a pool."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.journal import words
from tests.harness.programs import Programs, rows, shared
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    yield from shared(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def address(programs: Programs) -> str:
    address = programs.hub()[1]
    programs.worker(address, "--name", "steady")
    return address


def schedule(programs: Programs, address: str, *line: str, code: int = 0) -> str:
    outcome = programs.run("schedule", *line, "--address", address)
    assert outcome.returncode == code, outcome.stderr
    return outcome.stdout + outcome.stderr


def listed(programs: Programs, address: str) -> dict[str, dict[str, object]]:
    outcome = programs.run("schedule", "list", "--address", address, "--json")
    return {row["schedule"]: row for row in rows(outcome)}


def test_a_schedule_is_put_looked_at_run_and_removed(programs: Programs, address: str, tmp_path: Path):
    journal = tmp_path / "journal"
    line = ("put", "nightly", "tests.net.workload:noted", f'["{journal}", "ran"]')

    assert (
        schedule(programs, address, *line, "--when", "0 3 * * *", "--tz", "Europe/Berlin") == "put nightly\n"
    )
    assert listed(programs, address)["nightly"]["tz"] == "Europe/Berlin"
    assert len(schedule(programs, address, "next", "nightly", "3").splitlines()) == 3
    assert schedule(programs, address, "run", "nightly").startswith("task ")
    wait_until(lambda: words(journal) == ["ran"])
    assert schedule(programs, address, "remove", "nightly") == "removed nightly\n"
    assert "nightly" not in listed(programs, address)
    assert "nightly" in schedule(programs, address, "remove", "nightly", code=1)


def test_a_period_fires_is_paused_and_goes_on(programs: Programs, address: str):
    schedule(programs, address, "put", "often", "operator:add", "1", "2", "--when", "0.2")

    def fired() -> int:
        return int(str(listed(programs, address)["often"]["fired"]))

    wait_until(lambda: fired() >= 2)
    assert schedule(programs, address, "pause", "often") == "paused often\n"
    row = listed(programs, address)["often"]
    assert (row["state"], row["fired"]) == ("paused", fired())
    assert schedule(programs, address, "resume", "often") == "resumed often\n"
    wait_until(lambda: fired() > int(str(row["fired"])))
    schedule(programs, address, "remove", "often")


def test_backfill_fires_each_time_once(programs: Programs, address: str):
    schedule(programs, address, "put", "hourly", "operator:add", "1", "2", "--when", "0 * * * *")
    span = ("2026-01-05T00:00:00Z", "2026-01-05T23:00:00Z")

    assert schedule(programs, address, "backfill", "hourly", *span) == "24 runs of hourly\n"
    assert schedule(programs, address, "backfill", "hourly", *span) == "0 runs of hourly\n"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("put", "x", "operator:add", "--when", "99 * * * *"), 1, "99"),
        (("put", "x", "operator:add", "--when", "60", "--overlap", "perhaps"), 2, "overlap"),
        (("put", "x", "operator:add", "--when", "60", "--catchup", "all"), 1, "catchup"),
        (("put", "x", "operator:add", "--when", "60", "--tz", "Mars/Olympus"), 1, "Mars/Olympus"),
        (("pause", "nobody"), 1, "nobody"),
        (("backfill", "nobody", "yesterday", "today"), 2, "yesterday"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    programs: Programs, address: str, line: tuple[str, ...], code: int, said: str
):
    assert said in schedule(programs, address, *line, code=code)
