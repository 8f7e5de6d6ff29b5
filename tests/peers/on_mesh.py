"""A plugin of pytest: tests of dask, from its wheel, with a mesh that does the work.

`make test-peers` runs it. What refused.txt lists has to fail, for the reason given there: a test of it that
passes is a failure, too, so that the list can only shrink.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

from taskmesh import MeshExecutor

SLOTS = 2
REFUSED = Path(__file__).with_name("refused.txt")


@pytest.fixture(scope="session", autouse=True)
def mesh_does_the_work() -> Iterator[None]:
    """Have dask's scheduler be a mesh's."""
    with MeshExecutor(SLOTS) as executor, dask.config.set(scheduler=executor):
        yield


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Have those that refused.txt lists fail."""
    refused = dict(_refused())
    for item in items:
        reason = refused.get(f"{item.module.__name__}::{item.nodeid.partition('::')[2]}")
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def _refused() -> Iterator[tuple[str, str]]:
    """Yield the tests, by module and name, with the reason above them."""
    reason = ""
    for line in REFUSED.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line:
            yield line, reason
