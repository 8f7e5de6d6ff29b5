"""The campaign of `make test`: 2,000 seeds, none fails, and nothing was tried less than twenty times."""

import subprocess
import sys

import pytest

SEEDS = 2000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_seeds_keep_every_promise_and_try_everything():
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS), "--start", "0"]

    outcome = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)

    assert outcome.returncode == 0, outcome.stdout[-4000:] + outcome.stderr[-2000:]
    assert f"{SEEDS} seeds" in outcome.stdout
    assert "0 failed" in outcome.stdout
