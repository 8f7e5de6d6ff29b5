"""Levels of tests: derived from folders and fixtures, and held to."""

import re
import subprocess
import sys

import pytest

from tests.harness.levels import FAULTS, INTEGRATION, PLATFORM
from tests.harness.program import ROOT

LINE = [sys.executable, "-c", "pass"]


def test_a_unit_test_that_starts_a_process_fails(request):
    assert request.node.get_closest_marker("unit")
    with pytest.raises(AssertionError, match="fixture `processes`"):
        subprocess.run(LINE, check=True)


def test_one_that_asks_for_the_fixture_may(request, processes):
    assert request.node.get_closest_marker("integration")
    assert subprocess.run(LINE, check=True).returncode == 0


def test_make_unit_leaves_out_the_folders_that_have_no_unit_test():
    lists = dict(re.findall(r"^(PLATFORM|BEYOND) +:= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(lists["PLATFORM"].split()) == PLATFORM
    apart = {  # in those, or beside unit tests
        "tests/hosting/abuse",
        "tests/hub",
        "tests/pool",
        "tests/client/port",
    }
    assert {f"tests/{name}" for name in lists["BEYOND"].split()} == {
        *(f"tests/{name}" for name in FAULTS),
        *(INTEGRATION - apart),
    }
