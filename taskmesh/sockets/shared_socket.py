"""A libzmq socket that many threads may use at once: calls inside a lock, waiting outside it.

libzmq's own thread-safe types are drafts and absent from pyzmq's wheels, so the lock is ours. No call made
while it is held can block. Who finds no room (or no message) stands in line; the first in line waits on
libzmq's descriptor, the others on a condition each, and nobody overtakes. That order also makes the waiting
sound: the descriptor is edge-triggered, so only the thread that waits on it may take commands off the socket,
and every other call that does so (bind, connect, ...) wakes it to look again.
"""

from __future__ import annotations

import contextlib
import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import zmq

from taskmesh.sockets.context import Context
from taskmesh.sockets.errors import SocketClosed
from taskmesh.sockets.libzmq import LONGEST, stretch
from taskmesh.sockets.options import SocketOptions
from taskmesh.sockets.socket import DEFAULTS, Socket
from taskmesh.system.wakeup import Wakeup

T = TypeVar("T")


class SharedSocket(Socket):
    """The base of Scatter and Gather.

    Close its monitor before it. Only one thread may wait on its descriptor.

    Args:
        context: the context to open it in.
        options: how it behaves.
    """

    __slots__ = ("_line", "_lock", "_poll", "_wake")

    def __init__(self, context: Context, options: SocketOptions = DEFAULTS) -> None:
        self._poll = select.poll()
        self._wake: Wakeup | None = None
        self._new_lock()
        super().__init__(context, options)

    def _new_lock(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Condition] = deque()

    def poison(self, refusal: Callable[..., bytes]) -> None:
        """Replace the calls into libzmq by one that raises."""
        if self._context.forked:
            self._new_lock()  # at the fork another thread of the parent may have held it
        super().poison(refusal)

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the lock for a call that may take commands off the socket, then wake the waiting threads."""
        with self._lock:
            try:
                yield
            finally:
                if self._line and self._wake is not None:
                    self._wake.set()
                elif self._closed and not self._line:
                    self._drop_wake()

    def _stand_in_line(self, attempt: Callable[[], T], flag: int, timeout: float | None) -> T:
        """Wait for this thread's turn and then for the socket; the lock is held on entry and on exit.

        Raises:
            zmq.Again: the time is up.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        mine = threading.Condition(self._lock)
        self._line.append(mine)
        try:
            while self._line[0] is not mine:
                mine.wait(_left(deadline))
            return self._lead(attempt, flag, deadline)
        finally:
            self._line.remove(mine)
            if self._line:
                self._line[0].notify()
            elif self.closed:
                self._drop_wake()

    def _lead(self, attempt: Callable[[], T], flag: int, deadline: float) -> T:
        """Wait for the socket as the first in line."""
        wake = self._first_wake()
        while True:
            if self.closed:
                raise SocketClosed(f"this {self.role.value} was closed", zmq.ENOTSOCK)
            # Asking for events takes the commands off the socket, so that its descriptor may fall.
            if self._option(zmq.EVENTS) & flag:
                with contextlib.suppress(zmq.Again):
                    return attempt()
                continue
            left = _left(deadline)
            self._lock.release()
            try:
                self._poll.poll(None if left is None else stretch(left))
            finally:
                self._lock.acquire()
            wake.clear()

    def _first_wake(self) -> Wakeup:
        """Make what the waiting thread is woken by, when a thread waits for the first time."""
        if self._wake is None:
            self._wake = Wakeup()
            self._poll.register(self._wake, select.POLLIN)
            self._poll.register(self._option(zmq.FD), select.POLLIN)
        return self._wake

    def _drop_wake(self) -> None:
        if self._wake is not None:
            self._wake.close()
            self._wake = None


def _left(deadline: float) -> float | None:
    """Seconds left, a stretch of them at most; None without a deadline.

    Raises:
        zmq.Again: none are left.
    """
    if deadline == math.inf:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise zmq.Again
    return min(left, LONGEST)
