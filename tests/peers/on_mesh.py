"""A plugin of pytest: tests of dask and joblib, from their wheels, with a mesh that does the work.

`make test-peers` runs it. What refused.txt names has to fail, for the reason given there.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from weakref import WeakSet

import dask
import joblib
import pytest
from joblib import _parallel_backends as backends

from taskmesh import MeshExecutor
from tests.harness.refused import refused_tests

SLOTS = 2
REFUSED = Path(__file__).with_name("refused.txt")


class MeshBackend(backends.AutoBatchingMixin, backends.ParallelBackendBase):
    """Joblib's batches as tasks of the mesh that `executor` is."""

    supports_retrieve_callback = True
    executor: MeshExecutor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._open: WeakSet[Future[Any]] = WeakSet()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or multiprocessing.current_process().daemon:  # a mesh is no fork's
            return 1
        return n_jobs if n_jobs > 0 else max(joblib.cpu_count() + 1 + n_jobs, 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_options: Any) -> int:
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise backends.FallbackToBackend(backends.SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        return n_jobs

    def submit(self, func: Callable[[], Any], callback: Callable[[Future[Any]], None]) -> Future[Any]:
        future = self.executor.submit(func)
        self._open.add(future)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        for future in self._open:
            future.cancel()

    def terminate(self) -> None:
        self.reset_batch_stats()


joblib.register_parallel_backend("loky", MeshBackend)
backends.LokyBackend = MeshBackend  # the tests import it from there and ask for the class


@pytest.fixture(scope="session", autouse=True)
def mesh_does_the_work() -> Iterator[None]:
    """Have dask's scheduler and joblib's processes be a mesh's."""
    with MeshExecutor(SLOTS) as MeshBackend.executor, dask.config.set(scheduler=MeshBackend.executor):
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
