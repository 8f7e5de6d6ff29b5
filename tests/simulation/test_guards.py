"""Take any guard out, and the simulation notices: otherwise its silence would mean nothing."""

import time

import pytest

from tests.simulation.guards import GUARDS
from tests.simulation.journal_guards import JOURNAL_GUARDS
from tests.simulation.simulation import SimulationFailure, World
from tests.simulation.sink_guards import SINK_GUARDS

pytestmark = pytest.mark.nightly

SECONDS = 60.0
SEEDS = 400


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "take_out", [*GUARDS, *JOURNAL_GUARDS, *SINK_GUARDS], ids=lambda guard: guard.__name__
)
def test_without_a_guard_some_seed_fails(take_out, monkeypatch):
    take_out(monkeypatch)
    began = time.process_time()

    for seed in range(SEEDS):
        try:
            World(seed).run()
        except SimulationFailure:
            return
        assert time.process_time() - began < SECONDS, f"{seed + 1} seeds, and none has failed"
    pytest.fail(f"{SEEDS} seeds, and none has failed")
