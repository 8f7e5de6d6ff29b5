"""Connection events of one socket, as typed values."""

from __future__ import annotations

import itertools
import math
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import zmq

from taskmesh.sockets.context import Context, forked_context, no_socket
from taskmesh.sockets.errors import (
    ContextClosed,
    HandshakeFailed,
    InvalidCombination,
    NoMessageWithinTimeout,
    NoPeerWithinTimeout,
    SocketClosed,
    SocketError,
)
from taskmesh.sockets.libzmq import stretch
from taskmesh.sockets.roles import Role

EventKind = zmq.Event
"""The kinds of libzmq's events."""

MONITOR_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class MonitorEvent:
    """One event.

    Attributes:
        kind: what happened.
        endpoint: where; the endpoint that was bound or connected.
        value: by kind a file descriptor, an errno, a wait in milliseconds, or libzmq's code of the failure.
    """

    kind: EventKind
    endpoint: str
    value: int


class Monitor:
    """The stream of connection events of one socket; made by `Socket.monitor()`.

    It belongs to the thread that has its socket. Nothing is reported over inproc: there are no connections.
    """

    def __init__(self, context: Context, watched: zmq.Socket[bytes], role: Role) -> None:
        self._context = context
        self._watched = watched
        self._role = role
        address = f"inproc://taskmesh-monitor-{next(MONITOR_NUMBERS)}"
        self._raw = context.new_raw_socket(zmq.PAIR)
        self._raw.set(zmq.LINGER, 0)
        try:
            watched.monitor(address, EventKind.ALL)
            self._raw.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise no_socket(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def raw(self) -> zmq.Socket[bytes]:
        """The pyzmq socket that events arrive on, for a poller."""
        return self._raw

    @property
    def closed(self) -> bool:
        """True if close() was called."""
        return self._raw.closed

    def recv(self, timeout: float | None = None) -> MonitorEvent:
        """The next event.

        Args:
            timeout: seconds to wait; None waits for ever, 0 not at all.

        Raises:
            NoMessageWithinTimeout: nothing happened.
            SocketClosed: the monitor is closed.
            ForkedContext: this process is a fork of the one that made the context.
        """
        if self._context.forked:
            raise forked_context()
        if self._raw.closed:
            raise SocketClosed("the monitor is closed", zmq.ENOTSOCK)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        try:
            while not self._raw.poll(stretch(deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    raise NoMessageWithinTimeout(f"no event within {timeout} s", zmq.EAGAIN)
            head, endpoint = self._raw.recv_multipart()
        except zmq.ContextTerminated:
            raise ContextClosed("the context was closed", zmq.ETERM) from None
        number, value = struct.unpack("=Hi", head)
        return MonitorEvent(EventKind(number), endpoint.decode(), value)

    def recv_many(self) -> list[MonitorEvent]:
        """The events that are there, without waiting."""
        events: list[MonitorEvent] = []
        while not self._raw.closed and self._raw.poll(0):
            events.append(self.recv(0))
        return events

    def wait_for(self, kind: EventKind, timeout: float) -> MonitorEvent:
        """The next event of a kind; those before it are passed over.

        Raises:
            NoMessageWithinTimeout: it did not happen within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            event = self.recv(max(0.0, deadline - time.monotonic()))
            if event.kind is kind:
                return event

    def wait_ready(self, timeout: float) -> MonitorEvent:
        """Wait for a connection whose handshake is done: from then on the peer is there.

        Raises:
            NoPeerWithinTimeout: nobody was there within `timeout` seconds.
            InvalidCombination: a connection without keys ended in the handshake. libzmq gives no reason, but
                this is what it does when the two roles do not fit.
            HandshakeFailed: keys or protocol do not fit.
        """
        deadline = time.monotonic() + timeout
        handshaking: set[int] = set()
        while True:
            try:
                event = self.recv(max(0.0, deadline - time.monotonic()))
            except NoMessageWithinTimeout:
                raise NoPeerWithinTimeout(f"no handshake within {timeout} s", zmq.EAGAIN) from None
            match event.kind:
                case EventKind.HANDSHAKE_SUCCEEDED:
                    return event
                case EventKind.CONNECTED | EventKind.ACCEPTED:
                    handshaking.add(event.value)
                case EventKind.DISCONNECTED if event.value in handshaking:
                    raise self._refused(event)
                case EventKind.HANDSHAKE_FAILED_NO_DETAIL:
                    raise self._refused(event)
                case EventKind.HANDSHAKE_FAILED_PROTOCOL | EventKind.HANDSHAKE_FAILED_AUTH:
                    raise HandshakeFailed(f"{event.kind.name} ({event.value:#x}) at {event.endpoint}")

    def _refused(self, event: MonitorEvent) -> SocketError:
        where = f"the connection at {event.endpoint} ended in the handshake"
        if self._watched.get(zmq.MECHANISM) != zmq.NULL:
            return HandshakeFailed(f"{where}: do the keys fit?")
        fitting = ", ".join(sorted(peer.value for peer in self._role.peers))
        return InvalidCombination(f"{where}; {self._role.value} can be connected to {fitting}")

    def close(self) -> None:
        """End the reports; closing again does nothing."""
        if self._raw.closed:
            return
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._raw.close(linger=0)
