"""A browser for the tests of pages."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.dashboard.chromium import Chromium, Opened, chromium


@pytest.fixture
def opened(tmp_path: Path, processes: None) -> Iterator[Opened]:
    """Opens the page of a dashboard."""
    with ExitStack() as held:

        def at(url: str) -> Chromium:
            return held.enter_context(chromium(url, tmp_path))

        yield at
