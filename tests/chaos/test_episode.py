"""One short episode from a fixed seed; `make chaos` plays longer ones, from other seeds."""

import pytest

from tests.chaos.episode import Episode

pytestmark = [pytest.mark.nightly, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(240)]

SEED = 2
SECONDS = 15


def test_an_episode_of_random_faults_breaks_no_promise(tmp_path, capsys):
    assert Episode(tmp_path, SEED, SECONDS, harsh=True, say=print).run() == []

    timeline = capsys.readouterr().out
    assert "kill the hub" in timeline, "a seed that strikes hard enough"
