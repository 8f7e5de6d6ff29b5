"""Everything at once for 20 minutes, and a kill each 10 seconds. SOAK_SECONDS: another time."""

import os

import pytest

from tests.chaos.soak import Soak

SEED = 57
SECONDS = float(os.environ.get("SOAK_SECONDS", "1200"))

pytestmark = [pytest.mark.fault, pytest.mark.soak, pytest.mark.timeout(SECONDS + 400)]


def test_workflows_under_kills_end_as_they_should_and_nobody_grows(tmp_path):
    assert Soak(tmp_path, SEED, SECONDS, say=print).run() == []
