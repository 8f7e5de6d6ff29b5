"""The bench of the conformance tests: our socket at one end, ours or a raw pyzmq socket at the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import zmq

from taskmesh.sockets import (
    Context,
    Dealer,
    EndpointError,
    Gather,
    NoPeerWithinTimeout,
    Pair,
    Pub,
    Pull,
    Push,
    Rep,
    Req,
    Router,
    Scatter,
    Socket,
    SocketOptions,
    Sub,
    XPub,
    XSub,
)
from tests.harness.waiting import wait_until

PATIENCE_S = 10.0
S = TypeVar("S", bound=Socket)
TYPED = {
    k.role.value: k
    for k in (Push, Pull, Scatter, Gather, Pub, Sub, XPub, XSub, Req, Rep, Dealer, Router, Pair)
}
RAW_TYPES = {"SCATTER": zmq.PUSH, "GATHER": zmq.PULL}  # what the emulation is on the wire
LARGE = bytes(256 * 1024)
TINY: dict[str, Any] = {
    "send_hwm_messages": 1,
    "recv_hwm_messages": 1,
    "send_buffer_bytes": 4096,
    "recv_buffer_bytes": 4096,
}
"""As little room as a link can have: over tcp and ipc it then holds 2 to 8 large messages."""
MOST_HELD = 12
BODIES = [b"", b"\0", b"\xff", bytes(range(256)) * 17, bytes(1024 * 1024), b"\x01topic-like"]
WATCH_NUMBERS = itertools.count()


class RawPeer:
    """A pyzmq socket with the few calls that the tests make, none of our library in between."""

    def __init__(self, context: Context, role: str, options: SocketOptions) -> None:
        self.raw = context.raw.socket(RAW_TYPES.get(role) or getattr(zmq, role))
        self.raw.set(zmq.LINGER, options.linger_ms)
        self.raw.set(zmq.SNDHWM, options.send_hwm_messages)
        self.raw.set(zmq.RCVHWM, options.recv_hwm_messages)
        self.raw.set(zmq.SNDBUF, options.send_buffer_bytes)
        self.raw.set(zmq.RCVBUF, options.recv_buffer_bytes)
        self.raw.set(zmq.RECONNECT_IVL, options.reconnect_interval_ms)
        if options.identity:
            self.raw.set(zmq.ROUTING_ID, options.identity)

    def bind(self, endpoint: str) -> str:
        try:
            self.raw.bind(endpoint)
        except zmq.ZMQError as error:
            raise EndpointError(str(error)) from None
        return self.endpoint

    @property
    def endpoint(self) -> str:
        return self.raw.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()

    def connect(self, endpoint: str) -> None:
        self.raw.connect(endpoint)

    def send(self, data: bytes, timeout: float = PATIENCE_S) -> None:
        self.raw.set(zmq.SNDTIMEO, int(timeout * 1000))
        self.raw.send(data)

    def send_parts(self, parts: Sequence[bytes], timeout: float = PATIENCE_S) -> None:
        self.raw.set(zmq.SNDTIMEO, int(timeout * 1000))
        self.raw.send_multipart(parts)

    def recv(self, timeout: float = PATIENCE_S) -> bytes:
        self.raw.set(zmq.RCVTIMEO, int(timeout * 1000))
        return self.raw.recv()

    def recv_parts(self, timeout: float = PATIENCE_S) -> list[bytes]:
        self.raw.set(zmq.RCVTIMEO, int(timeout * 1000))
        return self.raw.recv_multipart()

    def recv_many(self) -> list[bytes]:
        messages = []
        while self.raw.poll(0):
            messages.append(self.raw.recv())
        return messages

    def subscribe(self, topic: bytes) -> None:
        if self.raw.get(zmq.TYPE) == zmq.XSUB:
            self.raw.send(b"\1" + topic)
        else:
            self.raw.set(zmq.SUBSCRIBE, topic)

    def unsubscribe(self, topic: bytes) -> None:
        if self.raw.get(zmq.TYPE) == zmq.XSUB:
            self.raw.send(b"\0" + topic)
        else:
            self.raw.set(zmq.UNSUBSCRIBE, topic)

    def close(self, linger_ms: int | None = None) -> None:
        self.raw.close(linger=linger_ms)


class Watch:
    """Counts the events of one kind at one socket."""

    def __init__(self, context: Context, raw: zmq.Socket, event: int) -> None:
        self._watched = raw
        address = f"inproc://watch-{next(WATCH_NUMBERS)}"
        raw.monitor(address, event)
        self._events = context.raw.socket(zmq.PAIR)
        self._events.connect(address)

    def wait(self, number: int) -> None:
        for _ in range(number):
            assert self._events.poll(PATIENCE_S * 1000), f"fewer than {number} events within {PATIENCE_S} s"
            self._events.recv_multipart()

    def close(self) -> None:
        if not self._watched.closed:
            self._watched.monitor(None, 0)
        self._events.close(0)


class Rig:
    """Opens sockets, joins them, and closes all at the end.

    Attributes:
        transport: tcp, ipc or inproc.
        raw_peers: whether `peer` gives raw pyzmq sockets.
    """

    def __init__(self, context: Context, transport: str, folder: Path, *, raw_peers: bool) -> None:
        self.context = context
        self.transport = transport
        self.raw_peers = raw_peers
        self._folder = folder
        self._open = ExitStack()

    def close(self) -> None:
        self._open.close()

    @property
    def is_network(self) -> bool:
        """Whether the transport has connections, handshakes and kernel buffers."""
        return self.transport != "inproc"

    def address(self) -> str:
        """An endpoint to bind that was never used."""
        if self.transport == "tcp":
            return "tcp://127.0.0.1:*"
        if self.transport == "ipc":
            return f"ipc://{self._folder}/{uuid4().hex[:8]}"
        return f"inproc://{uuid4().hex}"

    def ours(self, kind: type[S], **options: Any) -> S:
        """A typed socket: the one under test."""
        socket = kind(self.context, SocketOptions(**options))
        self._open.callback(socket.close)
        return socket

    def peer(self, role: str, **options: Any) -> Any:
        """A socket for the other end: typed or raw, as the test was asked."""
        if not self.raw_peers:
            return self.ours(TYPED[role], **options)
        socket = RawPeer(self.context, role, SocketOptions(**options))
        self._open.callback(socket.close)
        return socket

    def peers(self, number: int, role: str, **options: Any) -> list[Any]:
        return [self.peer(role, **options) for _ in range(number)]

    def watch(self, socket: Any, event: int) -> Watch:
        """Counts events of a socket; a socket has one watch at a time."""
        watch = Watch(self.context, socket.raw, event)
        self._open.callback(watch.close)
        return watch

    def join(self, binder: Any, *connectors: Any) -> str:
        """Binds (unless bound), connects, and waits until both ends know each other."""
        try:
            endpoint = binder.endpoint or binder.bind(self.address())
        except EndpointError:
            endpoint = binder.bind(self.address())
        few = connectors if len(connectors) <= 50 else ()
        watches = []
        if self.is_network:
            watches = [(self.watch(binder, zmq.EVENT_HANDSHAKE_SUCCEEDED), len(connectors))]
            watches += [(self.watch(socket, zmq.EVENT_HANDSHAKE_SUCCEEDED), 1) for socket in few]
        for socket in connectors:
            socket.connect(endpoint)
        for watch, number in watches:
            watch.wait(number)
            watch.close()
        self.settle(binder, *connectors)
        return endpoint

    def settle(self, *sockets: Any) -> None:
        """Lets sockets take what their I/O thread has for them: new peers, lost peers, free room.

        A thread that waits in one of ours must learn of it: its descriptor does not tell what is taken here.
        """
        for socket in sockets:
            with socket._exclusively() if isinstance(socket, Socket) else nullcontext():
                socket.raw.get(zmq.EVENTS)

    def leave(self, receiver: Any, *senders: Any) -> None:
        """Closes senders, and waits until all they sent stands in the receiver's queues."""
        if self.is_network:
            watch = self.watch(receiver, zmq.EVENT_DISCONNECTED)
            for sender in senders:
                sender.close(linger_ms=-1)
            watch.wait(len(senders))
            watch.close()
        else:
            for sender in senders:
                sender.close(linger_ms=-1)
        self.settle(receiver)

    def lose(self, ours: Any, peer: Any) -> None:
        """Closes a peer, and waits until our socket's connection to it is gone."""
        if self.is_network:
            watch = self.watch(ours, zmq.EVENT_DISCONNECTED)
            peer.close()
            watch.wait(1)
            watch.close()
        else:
            descriptor = Path(f"/proc/self/fd/{peer.raw.get(zmq.FD)}")
            peer.close()
            # libzmq's reaper closes it once our side has let go of the common queue
            wait_until(lambda: self.settle(ours) or not descriptor.exists(), PATIENCE_S)
        self.settle(ours)

    def bind_again(self, socket: Any, endpoint: str) -> None:
        """Binds where a socket was closed a moment ago."""

        def bound() -> bool:
            try:
                socket.bind(endpoint)
            except EndpointError:
                return False
            return True

        wait_until(bound, PATIENCE_S)


def numbers(count: int, start: int = 0) -> list[bytes]:
    """Messages that can be told apart."""
    return [b"%d" % number for number in range(start, start + count)]


def fill(send: Callable[[bytes, float], None], body: bytes, at_least: int = 1) -> int:
    """Sends until nothing more is accepted for a moment, but waits longer for the first `at_least` messages.

    Returns:
        The number accepted.
    """
    sent = 0
    while True:
        try:
            send(body, PATIENCE_S if sent < at_least else 0.05)
        except (NoPeerWithinTimeout, zmq.Again):
            return sent
        sent += 1


def receive(socket: Any, count: int) -> list[bytes]:
    return [socket.recv(PATIENCE_S) for _ in range(count)]


def send_all(socket: Any, messages: Iterable[bytes]) -> None:
    for message in messages:
        socket.send(message, PATIENCE_S)


def assert_limits(rig: Rig, accepted: list[int], least: int = 20) -> None:
    """Check what a link holds with the limits 1 and 40 at one end and 1 at the other.

    `least`: of the second limit over a network. D15: what a subscriber or publisher has read of earlier
    messages may not be counted yet, up to half of the limit.
    """
    if rig.is_network:
        assert accepted[0] <= MOST_HELD
        assert least <= accepted[1] <= 40 + MOST_HELD
    else:
        assert accepted == [2, 41]  # one common queue of both limits


def assert_taken_in_turn(received: Sequence[bytes], senders: int) -> None:
    """Check messages of `senders` sockets, each its number, the first 104 times and the others 4 times."""
    for start in range(0, 4 * senders, senders):
        assert set(received[start : start + senders]) == set(numbers(senders))
    assert list(received[4 * senders :]) == [b"0"] * 100
