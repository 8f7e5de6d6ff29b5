"""The pool's tests run twice: with what Linux has, and with POSIX alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pool.driver import Driver
from tests.pool.gate import Gate


@pytest.fixture(params=["linux", "portable"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, processes: None) -> str:
    """Choose the operating system's implementation for this process and for those that it starts."""
    monkeypatch.setenv("TASKMESH_OS", request.param)
    return request.param


@pytest.fixture
def driver(system: str) -> Iterator[Driver]:
    with Driver() as driver:
        yield driver


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Make gates that tasks wait at."""
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(tmp_path / f"gate-{len(made)}"))
        return made[-1]

    yield make
    for gate in made:
        gate.close()
