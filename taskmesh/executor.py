"""MeshExecutor: a mesh for code that knows concurrent.futures."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, Unpack, cast

from taskmesh.client.client import Client, check_slots
from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.futures.wait import wait as wait_for
from taskmesh.client.maps.items import MapItems
from taskmesh.client.maps.map import MapJob
from taskmesh.client.maps.results import ResultIterator
from taskmesh.client.options import Chunksize, OptionValues, is_count
from taskmesh.client.submitter import Submitter, check_timeout, client_of, start_map
from taskmesh.config import load
from taskmesh.errors import ConfigError
from taskmesh.hosting.transport import open_port, with_middleware
from taskmesh.middleware import Initializer
from taskmesh.pool.slots.fork_server_client import SlotOptions

if TYPE_CHECKING:
    from taskmesh.client.client import OpenPort

P = ParamSpec("P")
T = TypeVar("T")

_SWEEP = 1024
_OF_OTHERS = {
    "mp_context": "Leave it out; slots are processes that start without this program's state",
    "thread_name_prefix": "Leave it out; tasks run in processes, which a mesh names itself",
}
"""Arguments of other executors that this one has not, and what to do instead."""

_NOTHING = (None, "")
"""Values that are allowed nevertheless: programs for any executor pass the defaults along."""


class MeshExecutor(Executor):
    """A `concurrent.futures.Executor` on a mesh.

    `MeshExecutor(max_workers=4)` opens an embedded mesh of its own, and closes it at shutdown;
    `mesh.executor()` uses an open one. Leaving the `with` block by an exception, Ctrl-C among them, cancels
    what was submitted, running or not, as a mesh does; other executors wait for it first. A mesh of its own
    that has had no `shutdown` ends after its tasks when nothing refers to the executor any more; a program
    that ends waits for them.

    Args:
        max_workers: slots of the mesh of its own; None for one per CPU.
        mesh: the mesh to use instead.
        initializer: called in each slot's process before its first task, of a mesh of the executor's own.
        initargs: the arguments of `initializer`.
        max_tasks_per_child: tasks after which a slot's process is replaced; None for never.
        options: task options for everything that is submitted. What only other executors have
            (mp_context, thread_name_prefix) may stand at its default.

    Raises:
        ConfigError: an option is unknown, or its value cannot be used.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        mesh: Submitter | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        max_tasks_per_child: int | None = None,
        **options: Unpack[OptionValues],
    ) -> None:
        if max_workers is not None and mesh is not None:
            raise ValueError(
                "max_workers is for a mesh of the executor's own; the given mesh has its workers"
            )
        if initializer is not None and mesh is not None:
            raise ConfigError("initializer= is for a mesh of the executor's own: give Mesh a middleware=")
        if max_workers is not None:
            check_slots("max_workers", max_workers)
        if max_tasks_per_child is not None:
            _check_children(max_tasks_per_child, mesh)
        own = _own_options(options)
        self._own: Client | None = None
        if mesh is None:
            slots: dict[str, object] = {} if max_workers is None else {"pool__concurrency": max_workers}
            port: OpenPort = open_port
            if max_tasks_per_child is not None:  # its slots are children of this process
                slots["mesh__hub"] = "thread"
                port = partial(open_port, options=SlotOptions(max_tasks=max_tasks_per_child))
            config = load(None, {"mesh__address": "", **slots})
            starts = [] if initializer is None else [Initializer(initializer, initargs)]
            self._own = Client(with_middleware(config, starts), port)
            self._own.waits_at_exit = True
            end = weakref.finalize(self, self._own.close_unreferenced)
            end.atexit = False  # at exit the client ends itself
            mesh = Submitter(self._own, {})
        self._mesh = mesh.with_options(**own)
        self._client = client_of(mesh)
        self._lock = threading.Lock()
        self._submitted: list[weakref.ref[TaskFuture[Any]]] = []  # the pending table keeps those that go on
        self._maps: list[MapJob] = []
        self._sweep_at = _SWEEP
        self._shut = False

    @property
    def _max_workers(self) -> int:
        """The number of tasks that run at a time, under the name by which dask asks any executor for it."""
        return self._client.slots()

    def __reduce__(self) -> NoReturn:
        self._mesh.__reduce__()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T]:
        """Submit `fn(*args, **kwargs)`; raise as `Mesh.submit` does, and RuntimeError after `shutdown`."""
        self._check()
        future = self._mesh.submit(fn, *args, **kwargs)
        self._submitted.append(weakref.ref(future))
        if self._shut:
            self._refuse([future])
        if len(self._submitted) >= self._sweep_at:
            self._sweep()
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: Chunksize = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Map as `Executor.map` does. `chunksize="auto"` measures; `buffersize` counts chunks, as in 3.14."""
        self._check()
        if is_count(buffersize) and is_count(chunksize):
            buffersize *= chunksize
        check_timeout(timeout)
        items = MapItems.of(iterables, lazily=buffersize is not None)
        job = start_map(self._mesh, fn, items, chunksize, buffersize, ordered=True)
        with self._lock:
            self._maps = [*(other for other in self._maps if other.active), job]
        if self._shut:
            job.stop()
            self._refuse(job.futures)
        return ResultIterator(job, timeout, owner=self)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks, and wait for those that were submitted.

        Args:
            wait: False returns at once; what was submitted goes on, and a mesh of its own closes after it.
            cancel_futures: cancel what has not started. The hub finds out: with `wait=False` futures may be
                cancelled a little after this returns.
        """
        with self._lock:
            already, self._shut = self._shut, True
        if cancel_futures:
            self._client.cancel_unstarted(self._stop_maps())
        if wait:
            self._finish()
        elif self._own is not None and not already:
            # no daemon: the interpreter waits for it, as it does for other executors' threads
            threading.Thread(target=self._finish, name="taskmesh-shutdown", daemon=False).start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Shut down and wait; first cancel everything if the block was left by an exception."""
        if error is not None:
            self._give_up()
        self.shutdown(wait=True)

    @property
    def _futures(self) -> list[TaskFuture[Any]]:
        """The futures of single calls that have not ended, and some others."""
        return [future for known in self._submitted[:] if (future := known()) is not None]

    def _finish(self) -> None:
        try:
            for job in self._maps:
                while job.active and self._client.table.refusal is None:
                    wait_for(job.futures)
                    self._client.map_thread.flush()
            wait_for(self._futures)
        except BaseException:  # Ctrl-C while it waits
            self._give_up()
            raise
        if self._own is not None:
            self._own.close()

    def _give_up(self) -> None:
        """Cancel all that was submitted here; a mesh of its own ends with it."""
        self._client.table.cancel([future for future in self._stop_maps() if not future.done()])
        if self._own is not None:
            self._own.close(cancel=True)

    def _stop_maps(self) -> list[TaskFuture[Any]]:
        """Submit no more items of maps; return the futures of all that was submitted."""
        for job in self._maps:
            job.stop()
        return [*self._futures, *(future for job in self._maps for future in job.futures)]

    def _check(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _refuse(self, futures: list[TaskFuture[Any]]) -> None:
        """Cancel tasks that were submitted while another thread shut down, which may not wait for them."""
        self._client.table.cancel([future for future in futures if not future.done()])
        self._check()

    def _sweep(self) -> None:
        """Forget futures that have ended; so rarely that it costs nothing."""
        with self._lock:
            seen = self._submitted[:]
            alive = [known for known in seen if (future := known()) is not None and not future.done()]
            self._submitted[: len(seen)] = alive
            self._sweep_at = 2 * len(alive) + _SWEEP


def _check_children(number: object, mesh: Submitter | None) -> None:
    """Refuse a number of tasks for a process, or one for the processes of a mesh that is given.

    Raises:
        ConfigError: it cannot be used.
    """
    if not is_count(number):
        raise ConfigError(f"max_tasks_per_child has to be a whole number greater than 0, not {number!r}")
    if mesh is not None:
        raise ConfigError("max_tasks_per_child= is for a mesh of the executor's own; give it to its workers")


def _own_options(options: OptionValues) -> OptionValues:
    """Return the options without those of other executors.

    Raises:
        ConfigError: one of those asks for something.
    """
    own: dict[str, Any] = {**options}
    for word, instead in _OF_OTHERS.items():
        if own.pop(word, None) not in _NOTHING:
            raise ConfigError(f"MeshExecutor has no {word}=. {instead}")
    return cast(OptionValues, own)
