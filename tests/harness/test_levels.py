"""Levels of tests: derived from folders and fixtures, and held to."""

import subprocess
import sys

import pytest

LINE = [sys.executable, "-c", "pass"]


def test_a_unit_test_that_starts_a_process_fails(request):
    assert request.node.get_closest_marker("unit")
    with pytest.raises(AssertionError, match="fixture `processes`"):
        subprocess.run(LINE, check=True)


def test_one_that_asks_for_the_fixture_may(request, processes):
    assert request.node.get_closest_marker("integration")
    assert subprocess.run(LINE, check=True).returncode == 0
