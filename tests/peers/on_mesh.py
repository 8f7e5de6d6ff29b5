"""A plugin of pytest: tests of dask, joblib and CPython's executors, with a mesh that does the work.

`make test-peers` runs it. What refused.txt names has to fail, for the reason given there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dask
import joblib
import pytest
from joblib import _parallel_backends as backends

from taskmesh import Mesh
from taskmesh.joblib import MeshBackend
from tests.harness.refused import refused_tests

SLOTS = 2
REFUSED = Path(__file__).with_name("refused.txt")


MeshBackend.default_n_jobs = 1  # as of the backend in whose place it is
joblib.register_parallel_backend("loky", MeshBackend)
backends.LokyBackend = MeshBackend  # the tests import it from there and ask for the class


@pytest.fixture(scope="session", autouse=True)
def mesh_does_the_work() -> Iterator[None]:
    """Have dask's scheduler and joblib's processes be a mesh's."""
    with Mesh(workers=SLOTS) as mesh, dask.config.set(scheduler=mesh.executor()):
        yield


@pytest.hookimpl(tryfirst=True)  # before -k takes tests away
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Have those that refused.txt names fail."""
    named = {f"{_file(item)}::{item.nodeid.partition('::')[2]}": item for item in items}
    files = {_file(item) for item in items}
    for refused in refused_tests(REFUSED):
        tests = [item for name, item in named.items() if refused.names(name)]
        for item in tests:
            item.add_marker(pytest.mark.xfail(reason=refused.reason, strict=True))
        if not tests and any(map(refused.is_about, files)) and "::" not in "".join(config.args):
            raise pytest.UsageError(f"refused.txt: there is no test {refused.pattern}")


def _file(item: pytest.Function) -> str:
    return item.module.__name__.replace(".", "/")
