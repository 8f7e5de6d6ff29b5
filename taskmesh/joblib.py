"""A backend of joblib, and so of scikit-learn: batches of calls are tasks (extra `joblib`).

A batch is the argument of one task function, so that each function that it calls is pickled as data is. What
joblib asks of a backend is in its user guide, under "custom backend API".
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any

from taskmesh.errors import NoMesh, missing_extra

try:
    from joblib import cpu_count, parallel_config, register_parallel_backend
    from joblib.parallel import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend
    from threadpoolctl import ThreadpoolController
except ImportError as missing:
    raise ImportError(missing_extra("taskmesh.joblib", str(missing.name), "joblib")) from missing

from taskmesh.client.client import Client
from taskmesh.client.current_mesh import current_mesh, is_usable, open_meshes
from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.nested_client import client_here, nested_submitter
from taskmesh.client.promises import kept_value
from taskmesh.client.submitter import Submitter, client_of
from taskmesh.executor import MeshExecutor
from taskmesh.pool.slots.nested import in_slot, nested_context

Call = tuple[Callable[..., Any], Iterable[Any], dict[str, Any]]
"""A function with its arguments, as `joblib.delayed` gives it."""

DEEPEST = 1
"""The level of calls within calls whose batches are tasks still; below it they run where they are made."""

_own: list[MeshExecutor] = []
"""The mesh that was opened for joblib, if one was."""
_lock = threading.Lock()


def register(mesh: Submitter | None = None) -> None:
    """Make "taskmesh" a backend of joblib in this process.

    Args:
        mesh: the mesh that it uses. Without one, the innermost open mesh or the only one of this process; if
            none is open, a mesh with a slot for each CPU, which opens at the first call and ends with the
            program. Inside a task it is the mesh that runs the task.
    """
    register_parallel_backend("taskmesh", partial(MeshBackend, mesh))


class MeshBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """The batches of one `joblib.Parallel` as tasks of a mesh."""

    default_n_jobs = -1
    supports_retrieve_callback = True
    supports_inner_max_num_threads = True

    def __init__(self, mesh: Submitter | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.parallel: Any = None
        self._chosen = mesh
        self._lock = threading.Lock()
        self._aborted = False
        self._futures: weakref.WeakSet[TaskFuture[Any]] = weakref.WeakSet()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of jobs that is meant; -1 stands for all slots of the mesh."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or multiprocessing.current_process().daemon:  # a mesh is no fork's
            return 1
        return n_jobs if n_jobs > 0 else max(_slots(self._chosen) + 1 + n_jobs, 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """Find the mesh; without one, or for one job, the calls run where they are made.

        Each `Parallel` has a backend of its own: two generators of one `parallel_config` are two calls.
        """
        if self.parallel not in {None, parallel}:
            how = {"nesting_level": self.nesting_level, "inner_max_num_threads": self.inner_max_num_threads}
            raise FallbackToBackend(MeshBackend(self._chosen, **how))
        n_jobs = self.effective_n_jobs(n_jobs)
        mesh = _mesh(self._chosen) if n_jobs > 1 else None
        if mesh is None:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._mesh = mesh
        self._values = _Values(client_of(mesh), options.get("max_nbytes"))
        self._how = self.nesting_level + 1, n_jobs, self.inner_max_num_threads
        return n_jobs

    def get_nested_backend(self) -> tuple[Any, int]:
        """Return the backend of calls within calls, which are parallel only if they ask for it."""
        return _backend_at(self.nesting_level + 1), 1

    def start_call(self) -> None:
        """Take batches."""
        self._aborted = False

    def submit(self, func: Any, callback: Callable[[Future[Any]], object]) -> Future[Any]:
        """Submit a batch. What is wrong with it is its outcome: the callback thread submits, too."""
        refused: Future[Any] = Future()
        try:
            with self._lock:  # nothing may slip in behind `abort_everything`
                if self._aborted:
                    return refused
                future = self._mesh.submit(run_batch, self._values.replaced(func.items), *self._how)
                self._futures.add(future)
        except Exception as error:  # noqa: BLE001
            refused.set_exception(error)
            callback(refused)
            return refused
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return the results of a batch, or raise its error."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the batches that have not ended, running or not."""
        with self._lock:
            self._aborted = True
            client_of(self._mesh).table.cancel(self._futures)

    def stop_call(self) -> None:
        """Drop the values that the mesh keeps for the call."""
        self._values.clear()

    def terminate(self) -> None:
        """Forget how long batches took."""
        self.reset_batch_stats()


class _Values:
    """The large arrays of one call of `Parallel`: each is put into the mesh once, and while it is there.

    Args:
        client: of the mesh.
        smallest: bytes of an array from which on it is put; None for none.
    """

    def __init__(self, client: Client, smallest: int | None) -> None:
        self._client = client
        self._smallest = smallest
        self._kept: dict[int, tuple[weakref.ref[Any], TaskFuture[Any], int]] = {}

    def replaced(self, calls: Sequence[Call]) -> Sequence[Call]:
        """Return the calls with futures in place of large arrays.

        All of them stay if the mesh would keep too much: a hub takes no task of a client that has no room.
        """
        if self._smallest is None:
            return calls
        large = {
            id(value): value
            for _, args, kwargs in calls
            for value in (*args, *kwargs.values())
            if _size(value) >= self._smallest
        }
        sizes = {key: size for key, (_, _, size) in self._kept.copy().items()}
        sizes |= {key: _size(value) for key, value in large.items()}
        if sum(sizes.values()) > self._client.config.client.max_bytes // 2:
            self.clear()
            return calls
        futures = {key: self._future_of(value, sizes[key]) for key, value in large.items()}
        return [
            (
                function,
                [futures.get(id(arg), arg) for arg in args],
                {name: futures.get(id(arg), arg) for name, arg in kwargs.items()},
            )
            for function, args, kwargs in calls
        ]

    def clear(self) -> None:
        """Drop them."""
        self._kept.clear()

    def _future_of(self, value: object, size: int) -> TaskFuture[Any]:
        key = id(value)
        known = self._kept.get(key)
        if known is not None and known[0]() is value:
            return known[1]
        alive = weakref.ref(value, lambda _: self._kept.pop(key, None))
        future = kept_value(self._client, value)
        self._kept[key] = alive, future, size
        return future


def run_batch(calls: Sequence[Call], level: int, n_jobs: int, threads: int | None) -> list[Any]:
    """Run a batch, in a slot.

    Args:
        calls: the batch.
        level: how deep calls of `Parallel` in it are nested.
        n_jobs: batches that may run at a time, which share the CPUs.
        threads: for each thread pool of a library, such as OpenMP and BLAS; None for its share of the CPUs.
    """
    with parallel_config(_backend_at(level), n_jobs=1), _limited(threads, n_jobs):
        return [function(*args, **kwargs) for function, args, kwargs in calls]


def _backend_at(level: int) -> Any:
    return (MeshBackend if level <= DEEPEST else SequentialBackend)(nesting_level=level)


def _limited(threads: int | None, n_jobs: int) -> AbstractContextManager[object]:
    """Return the block in which thread pools are so large; the environment goes before their share."""
    if threads is None and not os.environ.keys().isdisjoint(ParallelBackendBase.MAX_NUM_THREADS_VARS):
        return nullcontext()
    pools, cpus = _thread_pools(len(sys.modules))
    return pools.limit(limits=threads or max(cpus // n_jobs, 1))  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def _thread_pools(modules: int) -> tuple[ThreadpoolController, int]:
    """Find the thread pools of this process, and its CPUs: 1 to 7 ms, needed again only after an import."""
    return ThreadpoolController(), cpu_count()


def _size(value: object) -> int:
    """Return the bytes of an array or a sparse matrix; 0 for what loky does not share, either."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return 0
    is_sparse = type(value).__module__.startswith("scipy.sparse")
    parts = getattr(value, "__dict__", {}).values() if is_sparse else (value,)
    arrays = (part for part in parts if isinstance(part, numpy.ndarray) and not part.dtype.hasobject)
    return sum(int(array.nbytes) for array in arrays)


def _mesh(chosen: Submitter | None) -> Submitter | None:
    """Return the mesh to use here; None in a task that may not wait for tasks of its own now."""
    mesh = chosen or _mesh_of_process()
    if mesh is not None:
        return mesh
    context = nested_context()
    return nested_submitter(context) if context is not None and context.granted else None


def _slots(chosen: Submitter | None) -> int:
    mesh = chosen or _mesh_of_process()
    return (client_here() if mesh is None else client_of(mesh)).slots()


def _mesh_of_process() -> Submitter | None:
    """Return the open mesh, or one that is made if there is none; None in a slot."""
    try:
        return current_mesh()
    except NoMesh:
        if in_slot():
            return None
        if open_meshes():
            raise
    with _lock:
        if not _own or not is_usable(client_of(_own[0]._mesh)):
            _own[:] = [MeshExecutor()]
        return _own[0]._mesh
