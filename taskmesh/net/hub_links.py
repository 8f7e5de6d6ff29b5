"""The hub's sockets: gateway ROUTER, collector PULL, control XPUB, and a PUSH lane for each pool session."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from taskmesh.core.events import ClientGone, FromClient, FromHub, FromPool, LaneLost, LinksLost
from taskmesh.errors import RemoteProtocolError
from taskmesh.net import wires
from taskmesh.net.endpoints import LANE_SUFFIX, Endpoints, refuse_taken, tcp_parts
from taskmesh.net.loop import Loop
from taskmesh.sockets import (
    Cancelled,
    Context,
    PeerUnreachable,
    Pull,
    Push,
    Router,
    Sendable,
    SocketError,
    Subscribed,
    XPub,
)
from taskmesh.wire import messages as m
from taskmesh.wire.frames import encode, from_client, from_pool

SWEEP = 0.1
"""Seconds between looks at the lanes' links."""
BATCH = 256
"""Messages taken off a socket before the others get their turn."""
PORTION = 20_000
"""Tasks taken in before pools get their turn: some 50 ms of work."""
FEW = 8
"""Messages of clients taken at a time, to be counted: one may hold thousands of tasks."""
ALL = b"all."


def topic(pool: str) -> bytes:
    """The control topic of one pool; dots in its name are escaped, so that no topic begins another."""
    return b"pool.%s." % pool.replace("%", "%25").replace(".", "%2E").encode()


def pool_of(topic: bytes) -> str:
    """The pool that a topic is for, "" if it is none's."""
    if not topic.startswith(b"pool."):
        return ""
    return topic[5:-1].decode(errors="replace").replace("%2E", ".").replace("%25", "%")


class LaneLink:
    """One lane: a bound PUSH whose only peer is the pool's PULL; holds messages until that has dialled."""

    def __init__(self, socket: Push, pool: str) -> None:
        self.socket = socket
        self.pool = pool
        self.waiting: deque[Sequence[Sendable]] = deque()
        self.linked = False
        self.lost = False

    def push(self, frames: Sequence[Sendable]) -> bool:
        """Sends, or keeps when nobody is there; False when it was kept."""
        if not self.waiting and self.socket.try_send_parts(frames):
            return True
        self.waiting.append(frames)
        return False

    def flush(self) -> bool:
        """Sends what was kept; True when nothing is left."""
        self.linked = True
        while self.waiting:
            if not self.socket.try_send_parts(self.waiting[0]):
                return False
            self.waiting.popleft()
        return True


class HubSockets:
    """HubLinks over ZeroMQ, with an optional pool in the same loop (`taskmesh up`, hub="process").

    Args:
        events: the hub shell's. max_payload: bytes of one call or result that come in.
        local_pool, local: the in-process pool's id and its events, if there is one.
    """

    def __init__(
        self,
        context: Context,
        loop: Loop,
        events: deque[object],
        record: Callable[[str, dict[str, object]], None],
        local_pool: str = "",
        local: deque[object] | None = None,
        *,
        max_payload: int = 256 << 20,
    ) -> None:
        self.events: deque[object] = deque()  # nothing waits here: what arrives goes to the hub's shell
        self._context = context
        self._loop = loop
        self._events = events
        self._record = record
        self._local_pool = local_pool
        self._local = local
        self._local_sessions: set[int] = set()
        self._lanes: dict[int, LaneLink] = {}
        self._identities: dict[int, bytes] = {}
        self._clients: dict[bytes, int] = {}
        self._silenced: set[str] = set()
        self.refused = 0
        self._sweep_at = 0.0
        self.gateway = Router(context, wires.wall(wires.GATEWAY, max_payload))
        self.collector = Pull(context, wires.wall(wires.COLLECTOR, max_payload))
        self.control = XPub(context, wires.CONTROL)
        self.endpoints = Endpoints("", "", "")

    def bind(self, endpoints: Endpoints) -> None:
        """Listens on all three and starts to take messages in.

        Raises:
            EndpointError: an address is taken; nothing listens then.
        """
        for endpoint in (endpoints.gateway, endpoints.collector, endpoints.control):
            refuse_taken(endpoint)
        self.gateway.bind(endpoints.gateway)
        self.collector.bind(endpoints.collector)
        self.control.bind(endpoints.control)
        self.endpoints = endpoints
        self._loop.watch(self.gateway.raw, self._from_clients)
        self._loop.watch(self.collector.raw, self._from_pools)
        self._loop.watch(self.control.raw, self._subscriptions)

    # --- HubLinks -----------------------------------------------------------------------------------------

    def push(self, session: int, message: m.Tasks) -> None:
        """On the session's lane, or into the local pool's hands."""
        if session in self._local_sessions and self._local is not None:
            self._local.append(FromHub(message))
            return
        lane = self._lanes.get(session)
        if lane is not None and not lane.push(encode(message)) and not lane.lost:
            self._wait_for(session, lane)

    def publish(self, pool: str, message: m.ToPool) -> None:
        """On the control channel; the local pool hears what is for it or for all."""
        if self._local is not None and pool in ("", self._local_pool):
            self._local.append(FromHub(message))
            if pool:
                return
        self.control.try_send_parts([topic(pool) if pool else ALL, *encode(message)])

    def send_client(self, client: int, message: m.ToClient) -> None:
        """To a client's newest link."""
        identity = self._identities.get(client)
        if identity is None:
            return
        try:
            self.gateway.try_send_parts([identity, *encode(message)])
        except PeerUnreachable:
            self._forget_client(client)
            self._events.append(ClientGone(client))

    def _forget_client(self, client: int) -> None:
        identity = self._identities.pop(client, None)
        if identity is not None:
            self._clients.pop(identity, None)

    def open_lane(self, session: int, pool: str) -> str:
        """Binds a lane; returns the port, or the ipc endpoint, that WELCOME names.

        It is empty when no lane is to be had (descriptors or ports have run out): the pool is not welcomed
        then, and asks again.
        """
        if self._local is not None and pool == self._local_pool:
            self._local_sessions.add(session)
            return "local"
        try:
            return self._bind_lane(session, pool)
        except SocketError as error:
            self.close_lane(session)
            self.record("lane.failed", {"pool": pool, "error": str(error)})
            return ""

    def _bind_lane(self, session: int, pool: str) -> str:
        socket = Push(self._context, wires.LANE)
        lane = self._lanes[session] = LaneLink(socket, pool)
        self._wait_for(session, lane)
        if self.endpoints.gateway.startswith("ipc://"):
            return socket.bind(f"{self.endpoints.gateway}{LANE_SUFFIX}{session}")
        host, _ = tcp_parts(self.endpoints.gateway)
        return str(tcp_parts(socket.bind(f"tcp://{host}:*"))[1])

    def close_lane(self, session: int) -> None:
        """Closes a lane and destroys its queue."""
        self._local_sessions.discard(session)
        lane = self._lanes.pop(session, None)
        if lane is not None:
            self._loop.unwatch_write(lane.socket.raw)
            lane.socket.close(linger_ms=0)

    def record(self, kind: str, fields: dict[str, object]) -> None:
        """Tells whoever watches."""
        self._record(kind, fields)

    # --- incoming -----------------------------------------------------------------------------------------

    def _from_clients(self) -> None:
        taken = 0
        while taken < PORTION:
            arrived = self.gateway.recv_parts_many(FEW)
            for identity_part, *frames in arrived:
                try:
                    message = from_client.decode(frames)
                except RemoteProtocolError as error:
                    self._refuse("client", error)
                    continue
                taken += self._from_client(bytes(identity_part), message)
            if len(arrived) < FEW:
                return

    def _from_client(self, identity: bytes, message: m.ClientMessage) -> int:
        """Passes a message on; returns roughly how much work it is."""
        if isinstance(message, m.ClientHello):
            self._forget_client(message.client)
            self._identities[message.client] = identity
            self._clients[identity] = message.client
        client = self._clients.get(identity)
        if client is None:
            self._say_hello(identity)
            return 1
        self._events.append(FromClient(client, message))
        if isinstance(message, m.ClientBye):
            self._forget_client(client)
        return sum(len(run.seqs) for run in message.runs) if isinstance(message, m.Submit) else 1

    def _say_hello(self, identity: bytes) -> None:
        """Somebody whom this hub does not know, because it is new, speaks as if it did."""
        try:
            self.gateway.try_send_parts([identity, *encode(m.ClientRefused())])
        except PeerUnreachable:
            return

    def _from_pools(self) -> None:
        for frames in self.collector.recv_parts_many(BATCH):
            try:
                self._events.append(FromPool(from_pool.decode(frames)))
            except RemoteProtocolError as error:
                self._refuse("pool", error)

    def _refuse(self, who: str, error: RemoteProtocolError) -> None:
        self.refused += 1
        if self.refused <= 10:
            self._record("message.refused", {"from": who, "error": str(error)})

    def _subscriptions(self) -> None:
        for event in self.control.recv_events_many():
            if not isinstance(event, Subscribed | Cancelled):
                continue
            pool = pool_of(event.topic)
            if isinstance(event, Subscribed):
                self._silenced.discard(pool)
            elif pool:
                self._silenced.add(pool)
                self._sweep_at = 0.0

    # --- links --------------------------------------------------------------------------------------------

    def _wait_for(self, session: int, lane: LaneLink) -> None:
        """Sends what is kept as soon as the pool has dialled."""

        def ready() -> None:
            if lane.flush():
                self._loop.unwatch_write(lane.socket.raw)

        self._loop.watch_write(lane.socket.raw, ready)

    @property
    def deadline(self) -> float:
        """When the lanes' links should be looked at."""
        return self._sweep_at if self._lanes or self._silenced else math.inf

    pending = False

    def turn(self, now: float) -> None:
        """Looks for lanes whose link is gone: a bound PUSH without a peer cannot be written."""
        self._sweep_at = now + SWEEP
        for session, lane in self._lanes.items():
            if not lane.linked or lane.lost:
                continue
            if not int(lane.socket.raw.get(zmq.EVENTS)) & zmq.POLLOUT:
                lane.lost = True
                self._loop.unwatch_write(lane.socket.raw)
                self._events.append(LaneLost(session))
        for pool in list(self._silenced):
            lanes = [lane for lane in self._lanes.values() if lane.pool == pool]
            if any(lane.lost for lane in lanes):
                self._events.append(LinksLost(pool))
            if not lanes or any(lane.lost for lane in lanes):
                self._silenced.discard(pool)

    def close(self) -> None:
        """Closes every socket."""
        for session in list(self._lanes):
            self.close_lane(session)
        for socket in (self.gateway, self.collector, self.control):
            self._loop.unwatch(socket.raw)
            socket.close()
