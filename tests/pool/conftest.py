"""The pool's tests run twice: with what Linux has, and with POSIX alone."""

from collections.abc import Iterator

import pytest

from tests.pool.driver import Driver


@pytest.fixture(params=["linux", "portable"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, processes: None) -> str:
    """Choose the operating system's implementation for this process and for those that it starts."""
    monkeypatch.setenv("TASKMESH_OS", request.param)
    return request.param


@pytest.fixture
def driver(system: str) -> Iterator[Driver]:
    with Driver() as driver:
        yield driver
