"""`taskmesh schedule` against a hub with a pool."""

from pathlib import Path

import pytest

from tests.harness.journal import words
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")


def schedule(shared_programs: Programs, address: str, *line: str, code: int = 0) -> str:
    outcome = shared_programs.run("schedule", *line, "--address", address)
    assert outcome.returncode == code, outcome.stderr
    return outcome.stdout + outcome.stderr


def listed(shared_programs: Programs, address: str) -> dict[str, dict[str, object]]:
    outcome = shared_programs.run("schedule", "list", "--address", address, "--json")
    return {row["schedule"]: row for row in rows(outcome)}


def test_a_schedule_is_put_looked_at_run_and_removed(shared_programs: Programs, address: str, tmp_path: Path):
    journal = tmp_path / "journal"
    line = ("put", "nightly", "tests.hosting.workload:noted", f'["{journal}", "ran"]')

    assert (
        schedule(shared_programs, address, *line, "--when", "0 3 * * *", "--tz", "Europe/Berlin")
        == "put nightly\n"
    )
    assert listed(shared_programs, address)["nightly"]["tz"] == "Europe/Berlin"
    assert len(schedule(shared_programs, address, "next", "nightly", "3").splitlines()) == 3
    assert schedule(shared_programs, address, "run", "nightly").startswith("task ")
    wait_until(lambda: words(journal) == ["ran"])
    assert schedule(shared_programs, address, "remove", "nightly") == "removed nightly\n"
    assert "nightly" not in listed(shared_programs, address)
    assert "nightly" in schedule(shared_programs, address, "remove", "nightly", code=1)


def test_a_period_fires_is_paused_and_goes_on(shared_programs: Programs, address: str):
    schedule(shared_programs, address, "put", "often", "operator:add", "1", "2", "--when", "0.2")

    def fired() -> int:
        return int(str(listed(shared_programs, address)["often"]["fired"]))

    wait_until(lambda: fired() >= 2)
    assert schedule(shared_programs, address, "pause", "often") == "paused often\n"
    row = listed(shared_programs, address)["often"]
    assert (row["state"], row["fired"]) == ("paused", fired())
    assert schedule(shared_programs, address, "resume", "often") == "resumed often\n"
    wait_until(lambda: fired() > int(str(row["fired"])))
    schedule(shared_programs, address, "remove", "often")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (("put", "x", "operator:add", "--when", "99 * * * *"), 2, "99"),
        (("put", "x", "operator:add", "--when", "60", "--overlap", "perhaps"), 2, "overlap"),
        (("put", "x", "operator:add", "--when", "60", "--catchup", "all"), 2, "catchup"),
        (("put", "x", "operator:add", "--when", "60", "--tz", "Mars/Olympus"), 2, "Mars/Olympus"),
        (("pause", "nobody"), 1, "nobody"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    shared_programs: Programs, address: str, line: tuple[str, ...], code: int, said: str
):
    assert said in schedule(shared_programs, address, *line, code=code)
