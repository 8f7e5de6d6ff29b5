"""The simulated world itself: the same seed plays the same way, and what it tells of a failure replays it."""

import os
import re
import subprocess
import sys
from functools import partial

import pytest

from tests.simulation.simulate import main
from tests.simulation.simulation import Report, SimulationFailure, World


@pytest.fixture(scope="module")
def played() -> list[tuple[World, Report]]:
    """The worlds of seeds 0 to 11 after their end, and their reports."""
    worlds = [World(seed) for seed in range(12)]
    return [(world, world.run()) for world in worlds]


def test_the_same_seed_plays_the_same_way():
    first, second = World(3, trace=True), World(3, trace=True)
    reports = first.run(), second.run()

    assert reports[0] == reports[1]
    assert first.trace == second.trace
    assert len(first.trace) > 1000


@pytest.mark.nightly
def test_it_does_so_whatever_the_hashes_of_texts_are(processes):
    """A set of names has another order in each process."""
    line = [sys.executable, "-m", "tests.simulation", "--start", "504", "--trace"]
    environments = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("0", "1")]
    run = partial(subprocess.run, line, stdout=subprocess.PIPE, check=True)
    told = {run(env=each).stdout for each in environments}

    assert len(told) == 1


def test_another_seed_plays_another_way(played):
    (_, first), (_, second) = played[4:6]

    assert first.steps != second.steps


def test_a_seed_is_large_enough(played):
    world, report = played[8]

    assert report.tasks >= 200
    assert len(world.pools) == 3
    assert len(world.clients) == 2
    assert len(played[6][0].clients) == 3, "they take from sinks"


OWN = {("full", "journal"), ("oom", "slot"), ("place given", "slot"), ("place refused", "slot")}
OWN |= {
    ("too large", "call"),
    ("too large", "result"),
    ("drain", "pool"),
    ("scale-in", "pool"),
    ("own task", "pool"),
    ("replaced", "slot"),
    ("runs again for its result", "task"),
}


@pytest.mark.parametrize("seed", [0, 7, 8, 12, 13])
def test_without_faults_every_task_runs_as_often_as_planned(seed):
    report = World(seed, calm=True).run()

    assert set(report.faults) <= OWN, "what tasks do to themselves, and operators to pools"


def test_a_broken_promise_names_the_seed_and_the_command_that_replays_it(monkeypatch):
    monkeypatch.setattr("tests.simulation.audit.Audit.started", _refuse)

    with pytest.raises(SimulationFailure, match=r"(?s)seed 8 at .*nothing may run.*--start 8 --seeds 1"):
        World(8).run()


def _refuse(*_: object) -> None:
    raise AssertionError("nothing may run")


class TestCommandLine:
    def test_it_counts_and_succeeds(self, capsys):
        assert main(["--seeds", "3", "--start", "20", "--processes", "1"]) == 0

        out = capsys.readouterr().out
        assert "3 seeds" in out
        assert "0 failed" in out

    def test_it_fails_with_the_seeds_that_broke_a_promise(self, capsys, monkeypatch):
        monkeypatch.setattr("tests.simulation.audit.Audit.started", _refuse)

        assert main(["--seeds", "2", "--start", "20", "--processes", "1"]) == 1
        assert "--start 20 --seeds 1" in capsys.readouterr().out

    def test_it_plays_other_seeds_each_time_and_says_which(self, capsys):
        assert main(["--seeds", "1", "--processes", "1"]) == 0
        assert main(["--seeds", "1", "--processes", "1"]) == 0

        firsts = re.findall(r"seeds from (\d+) on: --start \1 --seeds 1", capsys.readouterr().out)
        assert len(set(firsts)) == 2

    def test_it_prints_every_event_when_asked(self, capsys):
        assert main(["--start", "21", "--trace"]) == 0

        out = capsys.readouterr().out
        assert "Hello(" in out
        assert "Leave(" in out
