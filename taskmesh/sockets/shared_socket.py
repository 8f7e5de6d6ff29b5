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
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar

import zmq

from taskmesh.sockets.context import Context
from taskmesh.sockets.errors import DraftUnavailable, SocketClosed
from taskmesh.sockets.libzmq import LONGEST, has_drafts, stretch
from taskmesh.sockets.monitor import Monitor
from taskmesh.sockets.options import SocketOptions
from taskmesh.sockets.roles import Role
from taskmesh.sockets.socket import DEFAULTS, Socket
from taskmesh.system.wakeup import Wakeup

T = TypeVar("T")


class SharedSocket(Socket):
    """The base of Scatter and Gather.

    Args:
        context: the context to open it in.
        options: how it behaves.
        native: use libzmq's own draft type. Both ends of a connection must then be native.

    Raises:
        DraftUnavailable: native was asked for and libzmq has no drafts.
    """

    __slots__ = ("_line", "_lock", "_native", "_poll", "_wake")

    emulated_by: ClassVar[Role]

    def __init__(self, context: Context, options: SocketOptions = DEFAULTS, *, native: bool = False) -> None:
        if native and not has_drafts():
            # libzmq would make the socket, and abort the whole process at its first handshake.
            raise DraftUnavailable(
                f"this libzmq has no drafts, so no native {self.role.value}; leave native=False,"
                " or build pyzmq against a libzmq with drafts"
            )
        self._native = native
        self._poll = select.poll()
        self._wake: Wakeup | None = None
        self._new_lock()
        super().__init__(context, options)

    def _new_lock(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Condition] = deque()

    @property
    def native(self) -> bool:
        """True if this is libzmq's own type."""
        return self._native

    @property
    def wire_role(self) -> Role:
        """The role as peers see it: PUSH for Scatter and PULL for Gather, unless native."""
        return self.role if self._native else self.emulated_by

    @property
    def endpoint(self) -> str:
        """The endpoint bound or connected last; see Socket.endpoint."""
        with self._lock:
            return self._last_endpoint()

    def fileno(self) -> int:
        """The descriptor for pollers; see Socket.fileno. Only one thread may wait on it."""
        with self._lock:
            return super().fileno()

    def bind(self, endpoint: str) -> str:
        """Listens at an endpoint; see Socket.bind."""
        with self._changing():
            return super().bind(endpoint)

    def connect(self, endpoint: str) -> None:
        """Connects to an endpoint; see Socket.connect."""
        with self._changing():
            super().connect(endpoint)

    def unbind(self, endpoint: str) -> None:
        """Stops listening; see Socket.unbind."""
        with self._changing():
            super().unbind(endpoint)

    def disconnect(self, endpoint: str) -> None:
        """Ends a connection; see Socket.disconnect."""
        with self._changing():
            super().disconnect(endpoint)

    def monitor(self) -> Monitor:
        """Opens the stream of connection events; see Socket.monitor. Close it before the socket."""
        with self._changing():
            return super().monitor()

    def close(self, linger_ms: int | None = None, *, longest_linger_ms: int | None = None) -> None:
        """Closes the socket; threads that wait in it get SocketClosed. See Socket.close."""
        with self._changing():
            super().close(linger_ms, longest_linger_ms=longest_linger_ms)
            if not self._line:
                self._drop_wake()

    def poison(self, refusal: Callable[..., bytes]) -> None:
        """Replaces the calls into libzmq by one that raises."""
        if self._context.forked:
            self._new_lock()  # at the fork another thread of the parent may have held it
        super().poison(refusal)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the lock for a call that may take commands off the socket, then wakes who waits for them."""
        with self._lock:
            try:
                yield
            finally:
                if self._line and self._wake is not None:
                    self._wake.set()

    def _stand_in_line(self, attempt: Callable[[], T], flag: int, timeout: float | None) -> T:
        """Waits for this thread's turn and then for the socket; the lock is held on entry and on exit.

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
        """Waits for the socket as the first in line."""
        wake = self._first_wake()
        while True:
            if self.closed:
                raise SocketClosed(f"this {self.role.value} was closed", zmq.ENOTSOCK)
            if (
                int(self._raw.get(zmq.EVENTS)) & flag
            ):  # also takes the commands off, so the descriptor may fall
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
        """Makes what the waiting thread is woken by, when a thread waits for the first time."""
        if self._wake is None:
            self._wake = Wakeup()
            self._poll.register(self._wake, select.POLLIN)
            self._poll.register(self._descriptor(), select.POLLIN)
        return self._wake

    def _descriptor(self) -> int:
        if not self._native:
            return super().fileno()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pyzmq calls the descriptor of a draft socket experimental
            return super().fileno()

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
