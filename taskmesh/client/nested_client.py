"""Tasks that tasks submit: the slot is a client of its own hub then (docs/adr/0008).

A slot runs one task at a time, so its client holds the children of one task only.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from taskmesh.client.client import Client, MeshDriver
from taskmesh.client.current_mesh import current_mesh
from taskmesh.client.futures.future import ERROR, VALUE, TaskFuture
from taskmesh.client.futures.outcome import Success, noted
from taskmesh.client.futures.wait import wait
from taskmesh.client.futures.waiters import running_loop
from taskmesh.client.options import TaskOptions
from taskmesh.client.pending_table import PendingTable, is_detached
from taskmesh.client.promises import promised
from taskmesh.client.sink import Sink, SinkInput
from taskmesh.client.submitter import Submitter
from taskmesh.config import Config, load
from taskmesh.context import headers_here
from taskmesh.errors import NoMesh, QueueFull, TaskMeshError
from taskmesh.messages.runs import PROMISE, Failed
from taskmesh.middleware import Call, installed
from taskmesh.pool.slots.coroutines import runnable
from taskmesh.pool.slots.middleware import SlotMiddleware
from taskmesh.pool.slots.nested import ClientPlace, NestedContext, nested_context

if TYPE_CHECKING:
    from taskmesh.client.port.port import SubmitPort

_HERE = "here"
"""The worker of a task that its parent ran itself."""
_ACCEPTED_S = 5.0
"""Seconds in which a hub that is there has confirmed a task."""


class TaskFunction(Protocol):
    """The part of a `@task` function that nested submission uses."""

    options: TaskOptions
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in this process."""
        ...


class NestedClient:
    """One slot as a client of its hub, for the tasks that its tasks submit.

    Args:
        context: the place of the first task that submits tasks.
        driver: of a mesh without threads.
    """

    def __init__(self, context: NestedContext, driver: MeshDriver | None = None) -> None:
        self._way = _way(context)
        settings = {"mesh__address": context.address, "mesh__keys": context.keys}
        self._client = Client(
            load({}, settings), driver or _open_port, context.role, context.slot, installed()
        )
        self._client.table.logs.context = copy_context()
        self._submitters: dict[tuple[int, bool], Submitter] = {}
        self._own = itertools.count(1 << 62).__next__
        self._sinks: list[Sink] = []

    def slots(self) -> int:
        """Return how many slots the mesh has."""
        return self._client.slots()

    def serves(self, context: NestedContext) -> bool:
        """Return True if the client leads to the hub of this place, and has not ended."""
        if self._way != _way(context):
            return False
        return not self._client.closed and self._client.table.refusal is None

    def submitter(self, priority: int) -> Submitter:
        """Return the submitter for tasks of this priority. They end when this process does."""
        key = priority, bool(headers_here())
        found = self._submitters.get(key)
        if found is None:
            options = {"on_client_loss": "cancel", "priority": priority}
            found = self._submitters[key] = Submitter(self._client, options)
        return found

    def run_here(
        self,
        middleware: SlotMiddleware,
        submitter: Submitter,
        fn: TaskFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> TaskFuture[Any]:
        """Run a call at once in this thread, inside the slot's hooks; return its future, which has ended."""
        future: TaskFuture[Any] = object.__new__(TaskFuture)
        future._seq = self._own()
        future._extras = None
        future._state = FINISHED
        with submitter.around(fn) as submitted:
            future._run, _ = submitter._functions.run_for(fn, args, kwargs)
            submitted.id = future.task_id
        spec = future._run.spec
        call = Call(spec.name, spec.queue, dict(submitted.headers), id=future.task_id, attempt=1)
        try:
            content = _called(partial(middleware.run, call, runnable(fn.__wrapped__), args, kwargs))
            future._content, future._form = content, VALUE
            future._origin = Success(1, _HERE, 0.0)
        except Exception as error:  # noqa: BLE001  it is the outcome
            middleware.failed(call, error)
            future._origin = Failed(0, future._seq, 1, "exception", worker=_HERE)
            future._content, future._form = noted(error, future._label, future._origin), ERROR
        return future

    def promise(self, key: str, expires: float | None) -> TaskFuture[Any]:
        """Submit a promise that ends with its parent."""
        return promised(self._client, key, expires, on_client_loss="cancel")

    def sink_input(self, sink: str) -> SinkInput:
        """Return the way into a sink."""
        return SinkInput(self._client, sink)

    def sink(self, name: str, credit: int) -> Sink:
        """Return a consumer of a sink, which is closed at the parent's end."""
        found = Sink(self._client, name, credit, "manual")
        self._sinks.append(found)
        return found

    # --- what the parent does at its end

    def _close_sinks(self) -> None:
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            sink.close()

    def wait(self) -> None:
        """Wait until all children have ended; a promise that none of them has waited for is given up.

        Values in sinks are children, too: consumers have acknowledged them then. Detached tasks are left to
        the hub, once it has confirmed them.
        """
        self._close_sinks()
        table = self._client.table
        unended = table.unended
        promises = [future for future in unended if future._run.spec.kind == PROMISE]
        if promises:
            others = set(unended).difference(promises)
            wait(future for future in others if not is_detached(future))
            table.cancel(promises)
        self._client.wait_for_all()
        self._client.flush_detached(None)
        self._cancel_attached()

    def cancel(self) -> None:
        """Cancel the children that have not ended, but for detached ones."""
        self._close_sinks()
        with suppress(TaskMeshError, TimeoutError):
            self._client.flush_detached(_ACCEPTED_S)
        self._cancel_attached()

    def _cancel_attached(self) -> None:
        """Cancel the children that have not ended; the hub goes on with detached ones."""
        table = self._client.table
        unended = table.unended
        table.cancel([future for future in unended if is_detached(future)], tell=False)
        table.cancel([future for future in unended if not is_detached(future)])
        table.logs.hand_over()  # now: what comes later would pass for the next task's

    def close(self) -> None:
        """Close the client."""
        self._client.close(cancel=True)


def _called(call: Callable[[], Any]) -> Any:
    """Call the function; in another thread if an event loop runs here, as it may need a loop of its own."""
    if running_loop() is None:
        return call()
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            outcome.set_exception(error)

    run = copy_context().run  # the call's thread has the task that this one has
    threading.Thread(target=run, args=(work,), name="taskmesh-nested", daemon=True).start()
    return outcome.result()


def _open_port(open_tasks: PendingTable, config: Config, role: str, slot: str) -> SubmitPort:
    from taskmesh.client.port.remote_port import RemotePort  # ZeroMQ, which most slots do not need

    return RemotePort(open_tasks, config, role=role, slot=slot)


def _way(context: NestedContext) -> tuple[str, str, str]:
    """Return the address, the keys, and with keys the client for whose user the session speaks."""
    return context.address, context.keys, context.slot if context.keys else ""


_places: WeakSet[ClientPlace] = WeakSet()
"""Of the clients of this process's slots."""


def submit_nested(
    context: NestedContext, fn: TaskFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TaskFuture[Any]:
    """Submit a call from inside a task; if no other slot can take over meanwhile, run it at once.

    Children run at a higher priority than queued work of their parent's priority, so that parents can end.

    Raises:
        QueueFull: no permit can be lent, and the call needs another queue or other tags than its parent's.
        KeysUnusable: keys are in use, and the pool's directory has no worker's key.
        HubUnreachable: the hub does not answer. Else as `Mesh.submit`.
    """
    client = _client_of(context)
    submitter = client.submitter(max(fn.options.priority, context.priority + 1))
    if context.granted:
        context.adopt(client)
        return submitter.submit(fn, *args, **kwargs)
    if fn.options.tags or fn.options.limit or fn.options.queue != context.queue:
        raise QueueFull(
            f"{fn.options.name or fn.__wrapped__.__qualname__} cannot be submitted from inside a task now: "
            "so many tasks of this pool wait for tasks of their own that there is no room for another, and "
            "this one cannot run here, as it has tags, a limit or another queue. Nest tasks less deeply, or "
            "give the pool more slots"
        )
    return client.run_here(context.middleware, submitter, fn, args, kwargs)


def promise(key: str, *, expires: float | None = None) -> TaskFuture[Any]:
    """Return the future of a promise: of what somebody gives to `Mesh.fulfil(key, value)`.

    It belongs to the innermost open mesh; inside a task, to the mesh that runs the task. There it ends when
    the task has returned and its own tasks have ended, which may depend on it.

    Args:
        key: the key.
        expires: seconds after which it ends as TaskExpired; None for no limit.

    Raises:
        NoMesh: no mesh is open here, and no task runs.
        ConfigError: the key is not text that can travel, or `expires` is not a number of seconds.
    """
    try:
        client = current_mesh()._client
    except NoMesh:
        context = nested_context()
        if context is None:
            raise
        return _parents_client(context).promise(key, expires)
    return promised(client, key, expires)


def nested_submitter(context: NestedContext) -> Submitter:
    """Return the submitter for tasks of the task that runs here, in its queue; its permit is lent."""
    submitter = _parents_client(context).submitter(context.priority + 1)
    return submitter.with_options(queue=context.queue)


def client_here() -> NestedClient:
    """Return the client of the task that runs here, whose slot goes on counting: it waits for no other task.

    Raises:
        NoMesh: no task runs here.
    """
    context = nested_context(lends=False)
    if context is None:
        raise NoMesh("no task runs here")
    return _parents_client(context)


def _parents_client(context: NestedContext) -> NestedClient:
    client = _client_of(context)
    context.adopt(client)
    return client


def _client_of(context: NestedContext) -> NestedClient:
    place = context.place
    with place.lock:
        client: NestedClient | None = place.client
        if client is not None and client.serves(context):
            return client
        if client is not None:
            client.close()
        client = place.client = NestedClient(context, place.driver)
        _places.add(place)
        return client


def _close() -> None:
    """Close this process's clients, as it ends."""
    for place in list(_places):
        place.close()


os.register_at_fork(after_in_child=_places.clear)
atexit.register(_close)
