"""What the report makes of turns: ratios from neighbours, verdicts against the targets, failures told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.campaign import Planned, Turn, plan
from benchmarks.metrics import METRICS, TARGETS, verdict
from benchmarks.report import document, summarise

MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "system": "Linux",
    "python": "CPython",
    "packages": {"pyzmq": "27"},
}
FACTS = {"taken": "2026-01-02T03:04:05+00:00", "machine": MACHINE, "quick": False, "workers": 2, "repeats": 2}


def turn(contender: str, pair: int, **figures: float) -> Turn:
    return Turn(row="noop", contender=contender, repeat=0, pair=pair, figures=figures)


def test_ratio_is_taken_against_the_neighbour_not_against_the_median() -> None:
    turns = [
        turn("raw", 1, noop=100.0),
        turn("taskmesh", 1, noop=200.0),
        turn("raw", 2, noop=1000.0),
        turn("taskmesh", 2, noop=2100.0),
    ]

    summary = summarise(turns)["noop"]["taskmesh"]

    assert summary.ratio is not None
    assert summary.ratio == pytest.approx((2.05, 2.0, 2.1))
    assert summary.value == (1150.0, 200.0, 2100.0)


def test_failed_turn_gives_no_figure_and_is_told() -> None:
    turns = [
        turn("raw", 1, noop=100.0),
        turn("taskmesh", 1)._replace(error="wrong answer: task 3 gave 4\nmore"),
    ]

    assert "taskmesh" not in summarise(turns)["noop"]
    assert "- taskmesh, noop, turn 1: wrong answer: task 3 gave 4\n" in document(FACTS, turns)


def test_document_says_met_and_not_met_for_minimum_and_goal() -> None:
    turns = [turn("raw", 1, noop=100.0), turn("taskmesh", 1, noop=150.0)]

    text = document(FACTS, turns)

    assert "| 100/s | 150/s (1.5 x) |" in text
    assert "| taskmesh | 1.50 (1.50 - 1.50) x raw | >= 1 | met | >= 2 | not met |" in text


def test_verdict_when_less_is_better_turns_round() -> None:
    assert verdict(METRICS["p50"], 0.9, 1.0) == "met"
    assert verdict(METRICS["p50"], 1.1, 1.0) == "not met"
    assert verdict(METRICS["noop"], 0.9, 1.0) == "not met"
    assert verdict(METRICS["lost"], 0, 0) == "met"
    assert verdict(METRICS["lost"], 0, None) is None


def test_no_target_is_easier_as_a_goal_than_as_a_minimum() -> None:
    for wanted in TARGETS.values():
        for key, target in wanted.items():
            if target.minimum is not None and target.goal is not None:
                assert verdict(METRICS[key], target.goal, target.minimum) == "met", key


def test_plan_puts_raw_just_before_each_contender_of_a_row_with_ratios() -> None:
    planned = list(plan(["noop"], ["raw", "taskmesh", "processpool"], repeats=1))

    assert planned == [
        Planned("noop", "raw", 0, 1),
        Planned("noop", "taskmesh", 0, 1),
        Planned("noop", "raw", 0, 2),
        Planned("noop", "processpool", 0, 2),
    ]


def test_plan_takes_raw_once_for_a_fault_and_leaves_out_rows_a_contender_lacks() -> None:
    planned = list(plan(["fault", "busy"], ["raw", "processpool"], repeats=2))

    assert [(one.row, one.contender, one.repeat) for one in planned] == [
        ("fault", "raw", 0),
        ("fault", "processpool", 0),
        ("busy", "processpool", 0),
        ("fault", "processpool", 1),
        ("busy", "processpool", 1),
    ]


@pytest.mark.leaks("matplotlib keeps its fonts open")
def test_picture_is_written_for_figures_that_are_zero_and_far_apart(tmp_path: Path) -> None:
    plot = pytest.importorskip("benchmarks.plot", reason="matplotlib is not installed", exc_type=ImportError)
    turns = [
        turn("raw", 1, noop=100.0, lost=750.0),
        turn("taskmesh", 1, noop=9000.0, lost=0.0),
    ]

    plot.draw(summarise(turns), "a title", tmp_path / "out.png")

    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
