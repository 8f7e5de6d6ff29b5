"""Programs that a test starts are ended when it is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import Programs, running


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    yield from running(tmp_path)
