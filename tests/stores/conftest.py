"""Redis servers for tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_server import RedisServer, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    yield from serving(tmp_path)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[RedisServer]:
    """One that asks for a password."""
    yield from serving(tmp_path, password="right-and-secret")  # noqa: S106
