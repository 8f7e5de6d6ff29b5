"""The running task as a parent: the place it gives away for tasks of its own, and its wait for them."""

from __future__ import annotations

import threading
from typing import Protocol

from taskmesh.errors import TaskMeshError
from taskmesh.place import Children, Place
from taskmesh.pool.limits import TimeLimit
from taskmesh.pool.orders import Answer


class Asking(Protocol):
    """The way to the supervisor."""

    def ask(self, serial: int) -> Answer:
        """Asks for a place for the tasks of the running one; waits for the answer."""
        ...


class Parent:
    """What a slot's task needs to submit tasks; for one task after the other.

    Attributes:
        has_place: the running task has been granted a place, and may have children.
    """

    def __init__(self, link: Asking, limit: TimeLimit) -> None:
        self.has_place = False
        self._children: Children | None = None
        self._link = link
        self._limit = limit
        self._lock = threading.Lock()  # a task's threads may submit too
        self._place: Place | None = None

    def place(self, serial: int, queue: str, priority: int) -> Place:
        """The running task's place; the supervisor is asked until it has granted one.

        Raises:
            TaskMeshError: there is no way to the hub; the message says why.
        """
        with self._lock:
            if self._place is not None:
                return self._place
            self._limit.hold_off()  # a frame must not be torn in two
            try:
                answer = self._link.ask(serial)
            finally:
                self._limit.let_on()
            if not answer.addresses:
                raise TaskMeshError(f"this task cannot submit tasks: {answer.trouble}")
            place = Place(tuple(answer.addresses), answer.keys, answer.granted, queue, priority, self._adopt)
            if answer.granted:
                self._place = place
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
