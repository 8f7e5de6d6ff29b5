"""Fixed seeds of the simulation: 200 in `make test`, 2,000 each night, which try each thing twenty times."""

import subprocess
import sys

import pytest

from tests.simulation.campaign import PORTION, play

SEEDS = 2000


@pytest.mark.parametrize("first", range(0, 200, PORTION))
def test_two_hundred_seeds_keep_every_promise(first):
    assert play(range(first, first + PORTION)).failures == {}


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_two_thousand_seeds_keep_every_promise_and_try_everything(processes):
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS), "--start", "0"]

    outcome = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)

    assert outcome.returncode == 0, outcome.stdout[-4000:] + outcome.stderr[-2000:]
    assert f"{SEEDS} seeds" in outcome.stdout
    assert "0 failed" in outcome.stdout
