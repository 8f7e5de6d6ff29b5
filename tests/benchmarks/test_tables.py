"""The tables of the docs are what the committed runs say, not what somebody typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.environment import interpreter, last_line, probe
from benchmarks.tables import PAGES, fill

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"cores": 2, "system": "Linux", "python": "CPython", "packages": {"pyzmq": "27"}}


def turn(row: str, contender: str, pair: int, **figures: float) -> dict[str, object]:
    return {"row": row, "contender": contender, "repeat": 0, "pair": pair, "figures": figures}


@pytest.mark.parametrize("page", PAGES)
def test_page_says_what_the_runs_in_the_repository_measured(page: str) -> None:
    text = (ROOT / page).read_text()

    assert "<!-- table " in text
    assert fill(text) == text, "python -m benchmarks.tables"


def test_table_of_peers_gives_ratios_with_spread_faults_and_who_is_left_out(tmp_path: Path) -> None:
    turns = [
        turn("noop", "raw", 1, noop=1000.0),
        turn("noop", "dask", 1, noop=10.0),
        turn("noop", "raw", 2, noop=1000.0),
        turn("noop", "dask", 2, noop=30.0),
        turn("clients", "dask", 7, clients=40.0),
        turn("fault", "dask", 3, lost=0, repeated=250, fault=1.5),
        turn("fault", "raw", 4, lost=750, repeated=0),
        turn("fault", "parsl", 5, lost=0, repeated=0, fault=3.0),
        turn("fault", "parsl", 6, lost=1, repeated=0),
    ]
    facts = {
        "taken": "2026-01-02T03:04:05+00:00",
        "machine": MACHINE,
        "quick": False,
        "workers": 2,
        "repeats": 2,
    }
    left_out = {"ray": "no wheel for this Python"}
    (tmp_path / "peers.json").write_text(json.dumps({**facts, "left_out": left_out, "turns": turns}))

    text = fill("before\n<!-- table peers -->\nold\n<!-- end of table peers -->\nafter", tmp_path)

    assert text.startswith("before\n<!-- table peers -->\nMeasured 2026-01-02 03:04 UTC: ")
    assert "| Dask | 20/s<br>0.02 x (0.01 - 0.03) | 40/s | 0 / 250; 1.500 x |" in text
    assert "| raw pyzmq | 1,000/s | - | 750 / 0 |" in text
    assert "| Parsl HTEX | - | - | 0 - 1 / 0 |" in text
    assert "other work" not in text
    assert "- Ray is left out: no wheel for this Python" in text
    assert text.endswith("<!-- end of table peers -->\nafter")
    assert "old" not in text


def test_table_of_a_run_on_a_busy_machine_says_so(tmp_path: Path) -> None:
    turns = [{**turn("noop", "raw", 1, noop=1000.0), "foreign_cpus": 1.5}]
    facts = {
        "taken": "2026-01-02T03:04:05+00:00",
        "machine": MACHINE,
        "quick": False,
        "workers": 2,
        "repeats": 1,
    }
    (tmp_path / "peers.json").write_text(json.dumps({**facts, "turns": turns}))

    text = fill("<!-- table peers -->\n<!-- end of table peers -->", tmp_path)

    assert "**The machine had much other work meanwhile" in text


def test_table_without_a_run_stays_as_it_is(tmp_path: Path) -> None:
    text = "<!-- table latest -->\nold\n<!-- end of table latest -->"

    assert fill(text, tmp_path) == text


def test_table_that_does_not_end_takes_nothing_with_it(tmp_path: Path) -> None:
    (tmp_path / "latest.json").write_text((ROOT / "benchmarks" / "results" / "latest.json").read_text())

    with pytest.raises(ValueError, match="has no <!-- end of table latest -->"):
        fill("<!-- table latest -->\nall that follows", tmp_path)


@pytest.mark.usefixtures("processes")
def test_peer_that_could_not_be_installed_is_told_with_pips_reason(tmp_path: Path) -> None:
    (tmp_path / "parsl").mkdir()
    (tmp_path / "parsl" / "error").write_text(
        "WARNING: slow\nERROR: No matching distribution found for parsl\nhint\n"
    )

    found = probe("parsl", tmp_path)

    assert found.missing == "its installation failed: ERROR: No matching distribution found for parsl"


@pytest.mark.usefixtures("processes")
def test_peer_whose_interpreter_is_broken_is_told_and_does_not_end_the_run(tmp_path: Path) -> None:
    own = tmp_path / "dask" / "bin"
    own.mkdir(parents=True)
    (tmp_path / "dask" / "ready").touch()
    (own / "python").write_text("#!/bin/sh\necho 'no such library' >&2\nexit 3\n")
    (own / "python").chmod(0o755)

    assert probe("dask", tmp_path).missing == "no such library"
    assert last_line("one\ntwo\n") == "two"
    assert last_line("") == ""


def test_peer_with_other_settings_runs_in_the_environment_of_that_peer(tmp_path: Path) -> None:
    (tmp_path / "celery").mkdir()
    (tmp_path / "celery" / "ready").touch()

    assert interpreter("celery-durable", tmp_path) == str(tmp_path / "celery" / "bin" / "python")
    assert interpreter("taskmesh-file", tmp_path) == sys.executable
