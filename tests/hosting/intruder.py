"""Somebody with a good key and bad intentions: a client or operator, or a worker, that says what it likes."""

import contextlib
import secrets
from collections.abc import Callable

from taskmesh.link.endpoints import Endpoints, Target
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.frames import encode, to_client, to_pool
from taskmesh.messages.runs import TOKEN
from taskmesh.security.keys import credentials_of
from taskmesh.sockets import (
    Context,
    Dealer,
    KeyPair,
    NoMessageWithinTimeout,
    Pull,
    Push,
    Socket,
    SocketOptions,
    Sub,
    new_key_pair,
    raw_key,
)
from tests.harness.cluster import Cluster
from tests.harness.waiting import wait_until

PLAIN = SocketOptions()
Meet = Callable[..., "Peer"]
"""Makes a peer of a role and a name; a third argument is the directory of a key that is known."""


class Peer:
    """Somebody with a key, who says what he likes."""

    def __init__(self, context: Context, keyed: Cluster, role: str, name: str, folder: str = "") -> None:
        self.context = context
        self.hub = Endpoints.of(keyed.address)
        self.credentials = credentials_of(folder or keyed.ring.peer(role, name), role)
        self.way = Target(self.hub, self.credentials.hub_keys[0])
        self.options = self.way.options(PLAIN, self.credentials.pair)
        self.gateway = Dealer(context, self.options)
        self.gateway.connect(self.hub.gateway)
        self.sockets: list[Socket] = [self.gateway]

    def close(self) -> None:
        for socket in self.sockets:
            socket.close()
        self.sockets.clear()

    def say(self, message: m.ClientMessage) -> None:
        self.gateway.send_parts(encode(message), timeout=5)

    def ask(self, message: m.ClientMessage) -> m.ToClient:
        """The answer, or whatever comes next."""
        self.say(message)
        return self.heard()

    def heard(self, timeout: float = 5) -> m.ToClient:
        return to_client.decode(self.gateway.recv_parts(timeout=timeout))


class FalsePool:
    """A worker with a key of its own, on collector and control."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.token = secrets.token_bytes(TOKEN)
        self.collector = Push(peer.context, peer.options)
        self.collector.connect(peer.hub.collector)
        self.control = Sub(peer.context, peer.options)
        self.control.subscribe(b"pool.")
        self.control.subscribe(b"all.")
        self.control.connect(peer.hub.control)
        peer.sockets += [self.collector, self.control]

    def say(self, message: m.PoolMessage, token: bytes | None = None) -> None:
        self.collector.send_parts([self.token if token is None else token, *encode(message)], timeout=5)

    def heard(self, kind: type, timeout: float = 5) -> m.ToPool:
        """The next message of this kind on the control channel."""
        while True:
            message = to_pool.decode(self.control.recv_parts(timeout=timeout)[1:])
            if isinstance(message, kind):
                return message

    def join(self, name: str, number: int = 1, queue: str = "none") -> tuple[m.Welcome, KeyPair]:
        """A session of its own, with the pair of keys for its lane."""
        pair = new_key_pair()
        hello = m.Hello(name, 99, number, 1, [queue], [], 0, 0, [], key=raw_key(pair.public))
        welcome: list[m.Welcome] = []

        def welcomed() -> bool:
            self.say(hello)
            with contextlib.suppress(NoMessageWithinTimeout):
                welcome.append(self.heard(m.Welcome, 0.2))
            return bool(welcome) and welcome[-1].pool == name

        wait_until(welcomed)
        return welcome[-1], pair

    def serve(self, name: str, queue: str) -> m.Tasks:
        """Takes work off a queue as a pool would; returns the first that comes."""
        welcome, pair = self.join(name, queue=queue)
        lane = Pull(self.peer.context, self.peer.way.options(PLAIN, pair))
        self.peer.sockets.append(lane)
        lane.connect(self.peer.hub.lane(welcome.lane))
        found: list[m.Tasks] = []

        def came() -> bool:
            self.say(m.Beat(welcome.epoch, welcome.session, name, 0, 0, 0, []))
            with contextlib.suppress(NoMessageWithinTimeout):
                message = to_pool.decode(lane.recv_parts(timeout=0.2))
                assert isinstance(message, m.Tasks)
                found.append(message)
            return bool(found)

        wait_until(came, 20)
        return found[0]
