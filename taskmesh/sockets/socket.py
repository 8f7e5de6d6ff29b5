"""The base of all roles: life cycle, endpoints, options, waiting, and the translation of libzmq's errors.

Messages go through `_send` and `_recv`, bound once when the socket is made to pyzmq's compiled methods.
close() and fork() replace them by calls that raise, so nothing is checked on each message.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import ClassVar, Self, cast

import zmq
import zmq.backend

from taskmesh.sockets.context import Context
from taskmesh.sockets.endpoint import SocketFile, check_port, for_its_owner, needs_ipv6, obstacle
from taskmesh.sockets.errors import (
    ContextClosed,
    EndpointError,
    InvalidOption,
    PeerUnreachable,
    SocketClosed,
    SocketError,
    WrongTurn,
)
from taskmesh.sockets.libzmq import stretch
from taskmesh.sockets.monitor import Monitor
from taskmesh.sockets.options import SocketOptions
from taskmesh.sockets.roles import Role

INPROC = "inproc://"
DEFAULTS = SocketOptions()


class Socket:
    """A ZeroMQ socket of one role; the base of all typed sockets.

    A socket belongs to one thread at a time (Scatter and Gather excepted).

    Args:
        context: the context to open it in.
        options: how it behaves.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_context",
        "_files",
        "_inproc",
        "_monitor",
        "_option",
        "_options",
        "_raw",
        "_recv",
        "_send",
    )

    role: ClassVar[Role]
    emulated_by: ClassVar[Role | None] = None
    """The role in its place towards libzmq and peers."""

    def __init__(self, context: Context, options: SocketOptions = DEFAULTS) -> None:
        self._context = context
        self._options = options
        self._closed = False
        self._inproc: list[tuple[str, bool]] = []
        self._files: dict[str, SocketFile] = {}
        self._monitor: Monitor | None = None
        self._raw = open_raw(context, self.wire_role, options)
        self._send: Callable[..., object] = zmq.backend.Socket.send.__get__(self._raw)
        self._recv: Callable[..., bytes] = zmq.backend.Socket.recv.__get__(self._raw)
        self._option: Callable[[int], int] = zmq.backend.Socket.get.__get__(self._raw)
        context.adopt(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' closed' if self.closed else ''} at {id(self):#x}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def wire_role(self) -> Role:
        """The role as peers see it."""
        return self.emulated_by or self.role

    @property
    def raw(self) -> zmq.Socket[bytes]:
        """The pyzmq socket, for a poller; messages sent and received there pass by all checks."""
        return self._raw

    @property
    def closed(self) -> bool:
        """True if close() was called."""
        return self._closed

    @property
    def endpoint(self) -> str:
        """The endpoint bound or connected last, with the port or name that a wildcard became.

        Raises:
            EndpointError: nothing has been bound or connected.
        """
        self._context.check_usable()
        try:
            with self._exclusively():
                text = self._last_endpoint()
        except zmq.ZMQError as error:
            raise translated(error, self) from None
        if not text:
            raise EndpointError("the socket has no endpoint yet; bind() or connect() it first")
        return text

    def _last_endpoint(self) -> str:
        return cast("bytes", self._raw.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def _exclusively(self) -> AbstractContextManager[None]:
        """Return a context for a call that may take libzmq's commands off the socket."""
        return contextlib.nullcontext()

    def fileno(self) -> int:
        """The descriptor for pollers. It is edge-triggered: after each wake-up drain until nothing is left.

        Raises:
            SocketClosed: the socket is closed.
        """
        try:
            with self._exclusively():
                return int(self._raw.get(zmq.FD))
        except zmq.ZMQError as error:
            raise translated(error, self) from None

    def bind(self, endpoint: str) -> str:
        """Listen at an endpoint: tcp://127.0.0.1:*, ipc://path or inproc://name. An ipc path has mode 0700.

        Returns:
            The endpoint as it became, with the port in place of a wildcard.

        Raises:
            EndpointError: the endpoint is malformed, taken or cannot be reached; or its path is no socket's.
            InvalidCombination: over inproc, a socket of a role that does not fit waits there.
        """
        return self._join(endpoint, bound=True)

    def connect(self, endpoint: str) -> None:
        """Connect to an endpoint. The peer need not be there yet; libzmq connects again after a loss.

        Raises:
            EndpointError: the endpoint is malformed.
            InvalidCombination: over inproc, the socket bound there has a role that does not fit. Over tcp and
                ipc the handshake shows it: `Monitor.wait_ready` raises it.
        """
        self._join(endpoint, bound=False)

    def _join(self, endpoint: str, *, bound: bool) -> str:
        """Bind or connect, after checks that libzmq does not make; return the endpoint as it became."""
        self._context.check_usable()
        check_port(endpoint)
        if bound and (trouble := obstacle(endpoint)):
            raise EndpointError(f"cannot bind {endpoint!r}: {trouble}", errno.EADDRINUSE)
        inproc = endpoint.startswith(INPROC)
        with self._exclusively():
            if inproc:
                self._context.inproc.enter(endpoint, self.wire_role, bound=bound)
            try:
                if not inproc and needs_ipv6(endpoint):
                    self._raw.setsockopt(zmq.IPV6, 1)
                if bound:
                    with for_its_owner(endpoint):
                        self._raw.bind(endpoint)
                else:
                    self._raw.connect(endpoint)
                became = self._last_endpoint()
            except zmq.ZMQError as error:
                if inproc:
                    self._context.inproc.leave(endpoint, self.wire_role, bound=bound)
                raise endpoint_error("bind" if bound else "connect", endpoint, error, self) from None
            if inproc:
                self._inproc.append((endpoint, bound))
            elif bound and (file := SocketFile.of(endpoint)):
                self._files[endpoint] = file
        return became

    def unbind(self, endpoint: str) -> None:
        """Stop listening. libzmq also drops the peers that came in through this endpoint, and their queues.

        Raises:
            EndpointError: the socket is not bound there.
        """
        self._leave(endpoint, bound=True)

    def disconnect(self, endpoint: str) -> None:
        """End a connection. Messages queued for it are thrown away.

        Raises:
            EndpointError: the socket is not connected there.
        """
        self._leave(endpoint, bound=False)

    def _leave(self, endpoint: str, *, bound: bool) -> None:
        self._context.check_usable()
        with self._exclusively():
            file = self._files.pop(endpoint, None) if bound else None
            if file is not None:
                file.remove()
            try:
                (self._raw.unbind if bound else self._raw.disconnect)(endpoint)
            except zmq.ZMQError as error:
                raise endpoint_error("unbind" if bound else "disconnect", endpoint, error, self) from None
            if (endpoint, bound) in self._inproc:
                self._inproc.remove((endpoint, bound))
                self._context.inproc.leave(endpoint, self.wire_role, bound=bound)

    def monitor(self) -> Monitor:
        """Open the stream of connection events of this socket; open it before bind() and connect().

        Close it before the socket, if other threads use that.

        Raises:
            SocketError: a monitor of this socket is open already.
        """
        self._context.check_usable()
        with self._exclusively():
            if self._monitor is not None and not self._monitor.closed:
                raise SocketError("the socket has a monitor; close that one first")
            self._monitor = Monitor(self._context, self._raw, self.wire_role)
            return self._monitor

    def close(self, linger_ms: int | None = None, *, longest_linger_ms: int | None = None) -> None:
        """Close the socket; closing it again does nothing.

        Args:
            linger_ms: in place of the linger of its options.
            longest_linger_ms: an upper limit on the linger of its options.
        """
        with self._exclusively():
            if not self._closed:
                self._closed = True
                self._close(linger_ms, longest_linger_ms)

    def _close(self, linger_ms: int | None, longest_linger_ms: int | None) -> None:
        linger = self._options.linger_ms if linger_ms is None else linger_ms
        if longest_linger_ms is not None and (linger < 0 or linger > longest_linger_ms):
            linger = longest_linger_ms
        self.poison(refuse_closed)
        if self._context.forked:
            return  # the parent's socket: nothing here may touch it
        if self._monitor is not None:
            self._monitor.close()
        for endpoint, bound in self._inproc:
            if bound:
                # close() frees the name later, in libzmq's reaper: binding it again would fail till then.
                # (The error is that of a context that is closing.)
                with contextlib.suppress(zmq.ZMQError):
                    self._raw.unbind(endpoint)
            self._context.inproc.leave(endpoint, self.wire_role, bound=bound)
        self._inproc.clear()
        for file in self._files.values():
            file.remove()
        self._files.clear()
        self._raw.close(linger=linger)
        self._context.release(self)

    def poison(self, refusal: Callable[..., bytes]) -> None:
        """Replace the calls into libzmq by one that raises; the context does it after a fork."""
        self._send = self._recv = refusal

    def _wait(self, flag: int, seconds: float) -> None:
        """Wait until the socket is ready for `flag`, or the time or a stretch of it is up."""
        try:
            zmq.zmq_poll([(self._raw, flag)], stretch(seconds))
        except zmq.ZMQError as error:
            raise translated(error, self) from None


def open_raw(context: Context, role: Role, options: SocketOptions) -> zmq.Socket[bytes]:
    """A pyzmq socket with the options set.

    Raises:
        InvalidOption: libzmq refuses a value.
    """
    settings = list(options.settings(role))
    raw = context.new_raw_socket(role.zmq_type)
    try:
        for option, value in settings:
            raw.set(option, value)
    except zmq.ZMQError as error:
        raw.close(linger=0)
        raise InvalidOption(f"libzmq refuses {zmq.SocketOption(option).name} = {value!r}: {error}") from None
    return raw


def translated(error: zmq.ZMQError, socket: Socket) -> SocketError:
    """Our error for libzmq's."""
    number = error.errno or 0
    name = socket.role.value
    if number == zmq.ETERM:
        return ContextClosed(f"the context of this {name} was closed", number)
    if number == zmq.ENOTSOCK:
        return SocketClosed(f"this {name} is closed", number)
    if number == zmq.EHOSTUNREACH:
        return PeerUnreachable(f"no peer of this {name} has that identity (any more)", number)
    if number == zmq.EFSM:
        return WrongTurn(f"{name} alternates between send and recv; it is the other one's turn", number)
    return SocketError(f"{name}: {error}", number)


def endpoint_error(verb: str, endpoint: str, error: zmq.ZMQError, socket: Socket) -> SocketError:
    """Our error for a failed bind, connect, unbind or disconnect, with what to do."""
    number = error.errno or 0
    if number in (zmq.ETERM, zmq.ENOTSOCK, zmq.ENOTSUP):
        return translated(error, socket)
    remedy = {
        zmq.EADDRINUSE: "somebody listens there; choose another, or port 0 for any",
        zmq.EADDRNOTAVAIL: "this machine has no such address",
        zmq.EINVAL: "write tcp://host:port, ipc://path or inproc://name",
        zmq.EPROTONOSUPPORT: "write tcp://host:port, ipc://path or inproc://name",
        errno.ENOENT: "it is not in use here; `endpoint` tells the full name",
        errno.ENODEV: "this machine has no such interface",
    }.get(number, "")
    return EndpointError(f"cannot {verb} {endpoint!r}: {error}{'; ' + remedy if remedy else ''}", number)


def refuse_closed(*_: object, **__: object) -> bytes:
    """Stands in for the calls into libzmq once a socket is closed."""
    raise SocketClosed("the socket is closed", zmq.ENOTSOCK)
