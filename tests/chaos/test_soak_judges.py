"""The judges of a soak: what they have to see, and what they have to let pass."""

import math
import random
from pathlib import Path

import pytest

from tests.chaos.company import Record
from tests.chaos.soak import TOGETHER, Sample, judge_limits, slopes
from tests.chaos.ticks import LOG, PERIOD, RETURN, judge_ticks
from tests.chaos.workflows import AT_ONCE, RATE
from tests.harness.journal import Journal


def fire(folder: Path, *places: int, pid: int = 1) -> None:
    for place in places:
        Journal(folder / LOG).write("tick", place, f"id-{place}", 1, pid)


class TestTicks:
    @pytest.fixture(autouse=True)
    def clocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.chaos.ticks.time.time", lambda: 0.0)
        monkeypatch.setattr("tests.chaos.ticks.time.monotonic", lambda: 0.0)

    def test_every_tick_once_is_right_and_none_at_all_is_not(self, tmp_path: Path):
        assert judge_ticks(tmp_path, Record()) == ["the schedule has never fired"]
        fire(tmp_path, 3, 5, 4)
        assert judge_ticks(tmp_path, Record()) == []

    def test_twice_is_wrong_unless_the_first_ran_in_a_slot_that_died(self, tmp_path: Path):
        fire(tmp_path, 3, pid=1)
        fire(tmp_path, 3, pid=2)
        assert judge_ticks(tmp_path, Record()) == [f"ticks that fired twice: [{3 * PERIOD}] (1)"]
        assert judge_ticks(tmp_path, Record(struck={1})) == []

    def test_only_a_hubs_death_explains_a_missed_one(self, tmp_path: Path):
        fire(tmp_path, 200, 202)
        missed = [f"ticks that were missed: [{201 * PERIOD}] (1)"]
        ready = 201 * PERIOD - RETURN
        assert judge_ticks(tmp_path, Record()) == missed
        assert judge_ticks(tmp_path, Record(hub_kills=[ready - 2], hub_starts=[0, ready - 1])) == missed
        assert judge_ticks(tmp_path, Record(hub_kills=[ready - 1], hub_starts=[0, ready])) == []


class TestLimits:
    def run(self, spans: Journal, index: int, limits: str, *kinds: str) -> None:
        for kind in kinds:
            spans.write(kind, index, limits, f"id-{index}", 1, 7)

    def test_as_many_at_a_time_as_may_be(self, tmp_path: Path):
        spans = Journal(tmp_path / "spans")
        assert judge_limits(spans) == ["no limited task has run"]
        for index in range(AT_ONCE):
            self.run(spans, index, "rate+concurrency", "begin")
        self.run(spans, 9, "concurrency", "begin")  # its slot was killed
        for index in range(AT_ONCE):
            self.run(spans, index, "rate+concurrency", "finish")
        assert judge_limits(spans) == []

    def test_one_more_at_a_time_and_too_many_in_a_second(self, tmp_path: Path):
        spans = Journal(tmp_path / "spans")
        for index in range(2 * RATE):
            self.run(spans, index, "rate+concurrency", "begin")
        for index in range(AT_ONCE + 1):
            self.run(spans, index, "rate+concurrency", "finish")

        assert judge_limits(spans) == [
            f"{2 * RATE} starts in a second with a limit of {RATE}",
            f"{AT_ONCE + 1} tasks at a time with a limit of {AT_ONCE}",
        ]


@pytest.mark.parametrize(
    ("leak", "wrong"),
    [
        ((0.0, 0.0, 0.0), []),
        ((2.0, 0, 0), ["memory"]),
        ((0, 1.0, 0), ["descriptors"]),
        ((0, 0, 1), ["threads"]),
    ],
)
def test_a_slope_is_seen_and_what_comes_and_goes_is_not(leak: tuple[float, float, float], wrong: list[str]):
    chance = random.Random(5)
    samples = [
        Sample(float(second), *(50 + grows * second / 100 + chance.choice((0, 0, 20)) for grows in leak))
        for second in range(80 * TOGETHER)
    ]

    found = list(slopes(samples, lambda when: math.floor(when) / 200))  # four million tasks

    assert [words.split()[0] for words, right in found if not right] == wrong
    assert len(found) == 3
