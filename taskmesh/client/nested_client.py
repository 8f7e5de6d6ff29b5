"""Tasks that tasks submit: the slot is a client of its own hub then (docs/adr/0008).

A slot runs one task at a time, so this process's client holds the children of one task only.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED
from typing import Any, Protocol

from taskmesh.client.client import Client
from taskmesh.client.options import TaskOptions
from taskmesh.client.submitter import Submitter
from taskmesh.config import load
from taskmesh.errors import QueueFull
from taskmesh.future import ERROR, VALUE, TaskFuture
from taskmesh.outcomes.outcome import Success, noted
from taskmesh.outcomes.waiters import running_loop
from taskmesh.pool.coroutines import runnable
from taskmesh.pool.nested import NestedContext
from taskmesh.security.keys import WORKER
from taskmesh.wire.runs import Failed

_HERE = "here"
"""The worker of a task that its parent ran itself."""


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
    """

    def __init__(self, context: NestedContext) -> None:
        self._way = (context.addresses, context.keys)
        settings = {"mesh__address": list(context.addresses), "mesh__keys": context.keys}
        self._client = Client(load({}, settings), WORKER, context.slot)
        self._submitters: dict[int, Submitter] = {}
        self._own = itertools.count(1 << 62).__next__

    def serves(self, context: NestedContext) -> bool:
        """Return True if the client leads to the hub of this place, and has not ended."""
        if self._way != (context.addresses, context.keys):
            return False
        return not self._client.closed and self._client.table.refusal is None

    def submitter(self, priority: int) -> Submitter:
        """Return the submitter for tasks of this priority. They end when this process does."""
        found = self._submitters.get(priority)
        if found is None:
            options = {"on_client_loss": "cancel", "priority": priority}
            found = self._submitters[priority] = Submitter(self._client, options)
        return found

    def run_here(
        self, submitter: Submitter, fn: TaskFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskFuture[Any]:
        """Run a call at once in this thread; return its future, which has ended."""
        future: TaskFuture[Any] = object.__new__(TaskFuture)
        future._run = submitter._functions.run_for(fn, args, kwargs)
        future._seq = self._own()
        future._extras = None
        future._state = FINISHED
        try:
            future._content, future._form = _called(fn, args, kwargs), VALUE
            future._origin = Success(1, _HERE, 0.0)
        except Exception as error:  # noqa: BLE001  it is the outcome
            future._origin = Failed(0, future._seq, 1, "exception", worker=_HERE)
            future._content, future._form = noted(error, future._label, future._origin), ERROR
        return future

    # --- what the parent does at its end

    def wait(self) -> None:
        """Wait until all children have ended."""
        self._client.wait_for_all()

    def cancel(self) -> None:
        """Cancel the children that have not ended."""
        self._client.table.cancel(self._client.table.unended)

    def close(self) -> None:
        """Close the client."""
        self._client.close(cancel=True)


def _called(fn: TaskFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function; in another thread if an event loop runs here, as it may need a loop of its own."""
    call = runnable(fn.__wrapped__)
    if running_loop() is None:
        return call(*args, **kwargs)
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(call(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=work, name="taskmesh-nested", daemon=True).start()
    return outcome.result()


class ProcessClient:
    """This process's client, if it has one."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset the client, in a child that a task has forked and that is not a slot."""
        self.lock = threading.Lock()
        self.client: NestedClient | None = None


_process = ProcessClient()


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
    return client.run_here(submitter, fn, args, kwargs)


def _client_of(context: NestedContext) -> NestedClient:
    with _process.lock:
        client = _process.client
        if client is not None and client.serves(context):
            return client
        if client is not None:
            client.close()
        client = _process.client = NestedClient(context)
        return client


def _close() -> None:
    """Close this process's client, as the slot ends."""
    if _process.client is not None:
        _process.client.close()


os.register_at_fork(after_in_child=_process.forget)
atexit.register(_close)
