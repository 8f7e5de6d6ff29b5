"""The running task as a parent: the place it gives away for tasks of its own, and its wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from taskmesh.errors import TaskMeshError
from taskmesh.pool.limits import TimeLimit
from taskmesh.pool.orders import Answer
from taskmesh.pool.place import Children, Place
from taskmesh.wire.runs import Spec


class Asking(Protocol):
    """The way to the supervisor."""

    def ask(self, serial: int) -> Answer:
        """Asks for a place for the tasks of the running one; waits for the answer."""
        ...


class Parent:
    """What a slot's task needs to submit tasks; for one task after the other.

    A thread that a task has left behind may submit, too: as the task's that runs then, if one does.

    Attributes:
        has_place: the running task has been granted a place, and may have children.
        lock: who asks for a place holds it, and reads what comes from the supervisor. So it is taken to say
            that the slot runs nothing, after which its main thread reads that.
    """

    def __init__(self, link: Asking, limit: TimeLimit) -> None:
        self.has_place = False
        self._children: Children | None = None
        self._link = link
        self._limit = limit
        self.lock = threading.Lock()
        self._place: Place | None = None
        self._serial = -1  # the task's that it was granted to

    def place(self, running: Callable[[], tuple[int, Spec] | None]) -> Place | None:
        """The running task's place, None when none runs; the supervisor is asked until it has granted one.

        Args:
            running: tells the running task's serial and spec.

        Raises:
            TaskMeshError: there is no way to the hub, or the task has ended meanwhile: it says which.
        """
        with self.lock:
            task = running()
            if task is None:
                return None
            serial, spec = task
            if self._place is not None and self._serial == serial:
                return self._place
            self._limit.hold_off()  # a frame must not be torn in two
            try:
                answer = self._link.ask(serial)
            finally:
                self._limit.let_on()
            if not answer.addresses:
                raise TaskMeshError(f"this task cannot submit tasks: {answer.trouble}")
            now = running()
            if now is None or now[0] != serial:
                raise TaskMeshError("this task cannot submit tasks: it has ended, and this thread has not")
            addresses = tuple(answer.addresses)
            place = Place(
                addresses,
                answer.keys,
                answer.granted,
                answer.slot,
                spec.queue,
                spec.priority,
                self._adopt,
            )
            if answer.granted:
                self._place, self._serial = place, serial
                self.has_place = True
            return place

    def _adopt(self, children: Children) -> None:
        self._children = children

    def wait(self) -> None:
        """The task has returned: it is not done before its children are."""
        if self._children is not None:
            self._children.wait()
        self._leave()

    def cancel(self) -> None:
        """The task has failed: nobody waits for its children any more."""
        children = self._children
        self._leave()
        if children is not None:
            children.cancel()

    def _leave(self) -> None:
        self.has_place = False
        self._children = self._place = None
