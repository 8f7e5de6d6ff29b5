"""Nested tasks, in a slot: the running task as the parent of tasks that it submits (docs/adr/0008)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from taskmesh.errors import TaskMeshError
from taskmesh.messages.runs import Spec
from taskmesh.pool.slots.messages import PermitReply
from taskmesh.pool.slots.soft_timeout import TimeLimit

if TYPE_CHECKING:
    from taskmesh.pool.slots.middleware import SlotMiddleware


class SubmittedTasks(Protocol):
    """The tasks that a task has submitted."""

    def wait(self) -> None: ...

    def cancel(self) -> None: ...


@dataclass(eq=False)
class ClientPlace:
    """Keeps the client of a slot.

    Attributes:
        lock: held while another is made.
        client: None as long as no task has submitted others.
        driver: of a mesh without threads.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    client: Any = None
    driver: Any = None

    def close(self) -> None:
        """Close the client, if there is one."""
        client, self.client = self.client, None
        if client is not None:
            client.close()


@dataclass(frozen=True, slots=True)
class NestedContext:
    """The means of a running task to submit tasks of its own.

    Attributes:
        address: the hub's gateway.
        keys: the directory of keys, empty for none.
        granted: another slot has this one's permit now; if not, the task must run its children itself.
        role: whose key is shown.
        slot: the pool's name, this process's id, and the task's client.
        queue: the task's own.
        priority: the task's own.
        adopt: takes the children, before the first of them is submitted.
        middleware: the slot's, for children that the task runs itself.
        place: of the slot's client.
    """

    address: str
    keys: str
    role: str
    granted: bool
    slot: str
    queue: str
    priority: int
    adopt: Callable[[SubmittedTasks], None]
    middleware: SlotMiddleware
    place: ClientPlace


@dataclass(frozen=True, slots=True)
class RunningTask:
    """The task that a slot runs.

    Attributes:
        serial: its number in the slot.
        spec: its spec.
    """

    serial: int
    spec: Spec


class PermitLink(Protocol):
    """The link to the supervisor."""

    def ask(self, serial: int, *, lends: bool = True) -> PermitReply:
        """Ask for the way to the hub, and that another slot gets this one's permit; wait for the reply."""
        ...


class NestedTasks:
    """The children of the task that a slot runs; for one task after the other.

    A thread that a task has left behind may submit, too: as the task's that runs then, if one does.

    Attributes:
        place: of the slot's client.
        may_exist: the running task has submitted others, or its permit is lent so that it may.
        lock: held by a thread that asks for the permit to be lent, which reads the socket meanwhile. The
            slot's main thread takes it to say that nothing runs, and reads the socket after that.
    """

    def __init__(self, link: PermitLink, limit: TimeLimit, middleware: SlotMiddleware) -> None:
        self.may_exist = False
        self._children: SubmittedTasks | None = None
        self._link = link
        self._limit = limit
        self._middleware = middleware
        self.lock = threading.Lock()
        self.place = ClientPlace()
        self._context: NestedContext | None = None
        self._serial = -1  # of the task that has it

    def context(
        self, running: Callable[[], RunningTask | None], *, lends: bool = True
    ) -> NestedContext | None:
        """Return the running task's context, None if none runs; ask the supervisor until the permit is lent.

        Args:
            running: returns the running task, None if none runs.
            lends: False for the way to the hub only.

        Raises:
            TaskMeshError: there is no way to the hub, or the task has ended meanwhile; the text says which.
        """
        with self.lock:
            task = running()
            if task is None:
                return None
            serial, spec = task.serial, task.spec
            if self._context is not None and self._serial == serial:
                return self._context
            self._limit.block()  # a frame must not be torn in two
            try:
                reply = self._link.ask(serial, lends=lends)
            finally:
                self._limit.unblock()
            if not reply.address:
                raise TaskMeshError(f"this task cannot submit tasks: {reply.trouble}")
            now = running()
            if now is None or now.serial != serial:
                raise TaskMeshError("this task cannot submit tasks: it has ended, and this thread has not")
            context = NestedContext(
                reply.address,
                reply.keys,
                reply.role,
                reply.granted,
                reply.slot,
                spec.queue,
                spec.priority,
                self._adopt,
                self._middleware,
                self.place,
            )
            if reply.granted:
                self._context, self._serial = context, serial
                self.may_exist = True
            return context

    def _adopt(self, children: SubmittedTasks) -> None:
        self._children = children
        self.may_exist = True

    def wait(self) -> None:
        """Wait for the children of a task that has returned: it is not done before they are."""
        if self._children is not None:
            self._children.wait()
        self._leave()

    def cancel(self) -> None:
        """Cancel the children of a task that has failed."""
        children = self._children
        self._leave()
        if children is not None:
            children.cancel()

    def _leave(self) -> None:
        self.may_exist = False
        self._children = self._context = None


class ContextSource(Protocol):
    """Knows the running task."""

    def __call__(self, *, lends: bool) -> NestedContext | None:
        """Return its context; None while no task runs."""
        ...


_sources: list[ContextSource] = []


def install(source: ContextSource | None) -> None:
    """Set the source of the running task's context; a slot calls this once. None removes it."""
    _sources[:] = [] if source is None else [source]


def in_slot() -> bool:
    return bool(_sources)


def nested_context(*, lends: bool = True) -> NestedContext | None:
    """Return the context of the task that this slot runs, for tasks of its own; None if no task runs.

    Args:
        lends: another slot works in place of this one until the task ends. False for a task that does not
            wait for others, or not so far: it may ask again.

    Raises:
        TaskMeshError: there is no way to the hub; the message says why.
    """
    return _sources[0](lends=lends) if _sources else None
