"""The context: owner of I/O threads and of every socket made in it.

It is owned explicitly (no global instance), ends within a deadline, refuses to be used in a forked child, and
checks the combination of roles over inproc, where libzmq checks nothing.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import zmq

from taskmesh.sockets.errors import (
    ContextClosed,
    ContextNotClosed,
    ForkedContext,
    InvalidCombination,
    InvalidOption,
    SocketError,
)
from taskmesh.sockets.roles import Role

MAX_SOCKETS = 65_535
"""The most sockets that libzmq allows in one context."""


_FILES_TO_BEGIN = 16  # two threads and the first sockets, with some to spare


class InprocBoard:
    """The ends, bound and connected, at each inproc endpoint of one context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[str, list[tuple[Role, bool]]] = {}

    def enter(self, endpoint: str, role: Role, *, bound: bool) -> None:
        """Note one end.

        Raises:
            InvalidCombination: an end on the other side cannot be connected to this role.
        """
        with self._lock:
            ends = self._ends.setdefault(endpoint, [])
            for other, other_bound in ends:
                if other_bound != bound and not role.accepts(other):
                    fitting = ", ".join(sorted(peer.value for peer in role.peers))
                    raise InvalidCombination(
                        f"{role.value} cannot be connected to {other.value} at {endpoint}; "
                        f"it can to {fitting}"
                    )
            ends.append((role, bound))

    def leave(self, endpoint: str, role: Role, *, bound: bool) -> None:
        """Forget one end."""
        with self._lock:
            ends = self._ends[endpoint]
            ends.remove((role, bound))
            if not ends:
                del self._ends[endpoint]


class Context:
    """Owns libzmq's I/O threads and the sockets made in it.

    Used as a context manager it closes what is still open in it; sockets of other threads must be closed by
    these threads before that. Sockets may be handed from one thread to another, but never used by two at a
    time (Scatter and Gather excepted).

    Args:
        io_threads: libzmq's I/O threads; one carries about 1 GB/s.
        max_sockets: how many sockets may be open at a time; a monitor counts as two more.

    Raises:
        SocketError: too few descriptors or threads are left to begin with.
    """

    def __init__(self, *, io_threads: int = 1, max_sockets: int = 8192) -> None:
        if io_threads < 0 or not 1 <= max_sockets <= MAX_SOCKETS:
            raise InvalidOption(f"io_threads must be >= 0 and max_sockets between 1 and {MAX_SOCKETS}")
        _check_descriptors()
        _check_threads(io_threads + 2)
        self._raw: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=io_threads)
        self._raw.set(zmq.MAX_SOCKETS, max_sockets)
        self._pid = os.getpid()
        self._closing = False
        self._ender: threading.Thread | None = None
        self._sockets: weakref.WeakSet[ClosableSocket] = weakref.WeakSet()
        self.inproc = InprocBoard()
        CONTEXTS.add(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._sockets)} sockets"
        return f"<Context {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(force=True)

    @property
    def raw(self) -> zmq.Context[zmq.Socket[bytes]]:
        """The pyzmq context."""
        return self._raw

    @property
    def closed(self) -> bool:
        """True if close() was called; nothing can be made in it any more."""
        return self._closing

    @property
    def forked(self) -> bool:
        """True if this process is a fork of the one that made the context."""
        return os.getpid() != self._pid

    def check_usable(self) -> None:
        """Refuse use after close() and in a forked child.

        Raises:
            ContextClosed: close() was called.
            ForkedContext: this process is a fork of the one that made the context.
        """
        if self.forked:
            raise forked_context()
        if self._closing:
            raise ContextClosed("the context is closed; make a new Context")

    def new_raw_socket(self, zmq_type: int) -> zmq.Socket[bytes]:
        """A pyzmq socket in this context, for the typed sockets and their monitors.

        Raises:
            ContextClosed: close() was called.
            ForkedContext: this process is a fork of the one that made the context.
            SocketError: the limit of sockets or of file descriptors is reached.
        """
        self.check_usable()
        try:
            return self._raw.socket(zmq_type)
        except zmq.ZMQError as error:
            self.check_usable()  # closed meanwhile, by another thread
            raise no_socket(error) from None

    def adopt(self, socket: ClosableSocket) -> None:
        """Count a socket as belonging here, until it is closed."""
        self._sockets.add(socket)

    def release(self, socket: ClosableSocket) -> None:
        """Forget a socket that was closed."""
        self._sockets.discard(socket)

    def close(self, timeout: float = 5.0, *, force: bool = False) -> None:
        """End the context: calls blocked in its sockets raise ContextClosed, then these must be closed.

        Args:
            timeout: seconds to wait for the sockets to be closed and for their lingering messages.
            force: close the sockets that are still open, with at most half of `timeout` for their linger.
                Only when no other thread uses them.

        Raises:
            ContextNotClosed: time is up. The context goes on ending as soon as its sockets are closed.
        """
        if self.forked:
            self._closing = True  # the parent's context: nothing here may touch it
            return
        self._closing = True
        if force:
            for socket in list(self._sockets):
                socket.close(longest_linger_ms=int(timeout * 500))
        if self._raw.closed:
            return
        if self._ender is None:
            # term() blocks for as long as a socket is open, and cannot be interrupted: so not in this thread.
            ender = threading.Thread(target=self._raw.term, name="taskmesh-context-end", daemon=True)
            ender.start()
            self._ender = ender
        self._ender.join(timeout)
        if self._ender.is_alive():
            left = ", ".join(sorted(repr(socket) for socket in self._sockets)) or "none, messages linger"
            raise ContextNotClosed(f"the context did not end within {timeout} s; open sockets: {left}")

    def forget_after_fork(self) -> None:
        """Make every socket of this context raise ForkedContext; run in a forked child."""
        for socket in list(self._sockets):
            socket.poison(refuse_forked)


class ClosableSocket(Protocol):
    """A socket as its context sees it."""

    def close(self, linger_ms: int | None = None, *, longest_linger_ms: int | None = None) -> None:
        """Close the socket."""

    def poison(self, refusal: Callable[..., bytes]) -> None:
        """Replace the calls into libzmq by one that raises."""


def forked_context() -> ForkedContext:
    """The error for use in a forked child."""
    return ForkedContext(
        "a context cannot be used in a forked child; make a new Context there, or start the child by spawn"
    )


def _check_descriptors() -> None:
    """Look whether libzmq will get the descriptors of its threads: without them it ends the process.

    Raises:
        SocketError: it will not.
    """
    taken: list[int] = []
    try:
        while len(taken) < _FILES_TO_BEGIN:
            taken += os.pipe()
    except OSError as error:
        raise SocketError(f"no socket can be made ({error}); raise `ulimit -n`", error.errno or 0) from None
    finally:
        for fd in taken:
            os.close(fd)


def _check_threads(count: int) -> None:
    """Look whether libzmq will get its threads, and `close` its one: without them it ends the process.

    Raises:
        SocketError: it will not.
    """
    over = threading.Event()
    taken: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=over.wait, name="taskmesh-context-probe", daemon=True)
            thread.start()
            taken.append(thread)
    except RuntimeError as error:
        raise SocketError(
            f"no socket can be made ({error}); raise `ulimit -u` or `-v`, or the container's limit of pids",
            errno.EAGAIN,
        ) from None
    finally:
        over.set()
        for thread in taken:
            thread.join()


def no_socket(error: zmq.ZMQError) -> SocketError:
    """Our error for a socket that could not be made."""
    return SocketError(
        f"no socket could be made ({error}); raise Context(max_sockets=...) or `ulimit -n`", error.errno or 0
    )


def refuse_forked(*_: object, **__: object) -> bytes:
    """Stands in for the calls into libzmq in a forked child: no check is then needed on each message."""
    raise forked_context()


CONTEXTS: weakref.WeakSet[Context] = weakref.WeakSet()
"""Every context of this process; only the fork handler reads it."""


def _forget_all() -> None:
    for context in list(CONTEXTS):
        context.forget_after_fork()


os.register_at_fork(after_in_child=_forget_all)
