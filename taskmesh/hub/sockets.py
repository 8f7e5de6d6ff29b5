"""The hub's sockets: gateway ROUTER, collector PULL, control XPUB, and a PUSH lane for each pool session."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import zmq

from taskmesh.core.actions import Publish, PushTasks, SendClient
from taskmesh.core.events import ClientGone, FromClient, FromPool, LaneLost, LinksLost, Revoked
from taskmesh.errors import RemoteProtocolError
from taskmesh.hub.lanes import LaneLink, LanePorts, bind_path
from taskmesh.hub.listeners import Listeners
from taskmesh.hub.machine.submission import RETRY_BUSY
from taskmesh.hub.shell import OwnPeers
from taskmesh.hub.subscriptions import Subscriptions
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.endpoints import LANE_SUFFIX, Endpoints, refuse_taken
from taskmesh.link.socket_profiles import ALL, BATCH, topic
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.fragments import Assembler, Cutter, NoRoom
from taskmesh.messages.frames import encode, from_client, from_pool
from taskmesh.security.authorization import Authorization, NotAllowed, Sender
from taskmesh.security.keys import KeyFolder
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.security.peer_errors import PeerErrors
from taskmesh.security.zap import COLLECTOR, CONTROL, DOMAINS, GATEWAY, ZapHandler
from taskmesh.sockets import (
    Context,
    Part,
    PeerUnreachable,
    Pull,
    Push,
    Router,
    SocketError,
    SocketOptions,
    XPub,
)
from taskmesh.system.loop import Loop, Timed

SWEEP = 0.1
"""Seconds between two checks of the lanes' links."""
SWEEP_EACH = 0.001
"""Seconds longer for each lane. A check takes some 10 us: together they cost a hundredth of a core."""
_WRITABLE = int(zmq.POLLOUT)
PORTION = 2_000
"""Tasks taken in before pools get their turn: some 5 ms of work."""
PORTION_BYTES = 32 << 20
"""Bytes taken in before the machine gets its turn: messages that were read do not count in its limits yet."""
NOBODY = Sender("", b"")
"""The sender of a message where no keys are in use."""
FEW = 2
"""Messages taken at a time, so that their tasks can be counted: one may hold thousands."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Keys that those who dial a hub must show, and the room that they have.

    Attributes:
        keys: the hub's keys; None if none are asked for.
        ports: ports for lanes.
        assembler: assembles large messages that come in; by default without a bound.
        max_pools: number of pools that there may be.
    """

    keys: KeyFolder | None = None
    ports: LanePorts = field(default_factory=LanePorts)
    assembler: Assembler = field(default_factory=Assembler)
    max_pools: int = 1000


class HubSockets:
    """A hub's links over ZeroMQ.

    Args:
        context: makes the sockets.
        loop: watches them.
        own: the client and the pool in the same loop.
        access: by default of this user's own processes, without keys.

    Attributes:
        gateway: the socket for clients.
        collector: the socket for reports of pools.
        control: the socket for messages to pools.
        endpoints: the addresses, once they are bound.
        listeners: the bound sockets.
        peer_errors: counts and logs errors of peers.
        is_another_s: tells of a client's id, and a user, that it is not this user's.
    """

    def __init__(self, context: Context, loop: Loop, own: OwnPeers, access: HubAccess | None = None) -> None:
        access = access or HubAccess()
        self._context = context
        self._loop = loop
        self._own = own
        self._events = own.events
        self._lanes: dict[int, LaneLink] = {}
        self._identities: dict[int, bytes] = {}
        self._clients: dict[bytes, int] = {}
        self._users: dict[int, str] = {}  # of those that have a link
        self._subscriptions = Subscriptions(access.max_pools)
        self.peer_errors = PeerErrors(own.record)
        self.is_another_s: Callable[[int, str], bool] = lambda client, user: False
        self._sweep_at = 0.0
        self._zap_handler: ZapHandler | None = None
        self._rights: Authorization | None = None
        self._cutter = Cutter(secrets.randbits(63))
        self._assembler = access.assembler
        self._ports = access.ports
        if access.keys is not None:
            zap_handler = ZapHandler(context, loop, access.keys, own.record, self.peer_errors)
            zap_handler.revoked = self.revoke
            self._zap_handler, self._rights = zap_handler, Authorization(zap_handler)
        self.gateway = Router(context, self._keyed(profiles.GATEWAY, GATEWAY))
        self.collector = Pull(context, self._keyed(profiles.COLLECTOR, COLLECTOR))
        self.control = XPub(context, self._keyed(profiles.CONTROL, CONTROL))
        self.endpoints = Endpoints("", "", "")
        self.listeners = Listeners()

    @property
    def timers(self) -> list[Timed]:
        return [self] if self._zap_handler is None else [self, self._zap_handler]

    @property
    def signer(self) -> PayloadSigner | None:
        """Verifies tasks and signs results of the pool in this process, where keys are in use."""
        return None if self._zap_handler is None else self._zap_handler.signer

    def _keyed(self, options: SocketOptions, domain: str) -> SocketOptions:
        return (
            options if self._zap_handler is None else replace(options, curve=self._zap_handler.curve(domain))
        )

    def bind(self, endpoints: Endpoints) -> None:
        """Listen on all three sockets, and start to take messages in.

        Raises:
            EndpointError: an address is taken.
        """
        for endpoint in (endpoints.gateway, endpoints.collector, endpoints.control):
            refuse_taken(endpoint)
        self.listeners.bind(self.gateway, endpoints.gateway)
        self.listeners.bind(self.collector, endpoints.collector)
        self.listeners.bind(self.control, endpoints.control)
        self.endpoints = endpoints
        self._loop.use(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
        self._loop.watch(self.gateway.raw, self._from_clients)
        self._loop.watch(self.collector.raw, self._from_pools)
        self._loop.watch(self.control.raw, self._from_subscribers)

    # --- outgoing -------------------------------------------------------------------------------------------

    def push(self, action: PushTasks) -> None:
        """Send tasks on the session's lane."""
        lane = self._lanes.get(action.session)
        if lane is None:
            return
        sent = [lane.push(frames) for frames in self._cutter.cut(encode(action.message))]
        if not all(sent) and not lane.lost:
            self._wait_for(action.session, lane)

    def publish(self, action: Publish) -> None:
        """Send on the control channel."""
        self.control.try_send_parts([topic(action.pool) if action.pool else ALL, *encode(action.message)])

    def knows(self, client: int) -> bool:
        return client in self._identities

    def send_client(self, action: SendClient) -> None:
        """Send a message over a client's newest link."""
        client, message = action.client, action.message
        if (identity := self._identities.get(client)) is None:
            return
        try:
            for frames in self._cutter.cut(encode(message)):
                if not self.gateway.try_send_parts([identity, *frames]):
                    break  # its queue is full: the rest is lost, and deliveries are repeated
            if isinstance(message, m.ClientRefused) and message.reason:
                self._forget_client(client)  # it gives up, without a message
        except PeerUnreachable:
            self._forget_client(client)
            self._events.append(ClientGone(client))

    def _forget_client(self, client: int) -> None:
        self._users.pop(client, None)
        if (identity := self._identities.pop(client, None)) is not None:
            self._clients.pop(identity, None)
            self._assembler.forget(identity)

    def open_lane(self, session: int, pool: str, key: bytes) -> str:
        """Bind a lane; return the port, or the ipc endpoint, that WELCOME names.

        It is empty when no lane can be made (descriptors or ports have run out): the pool is not welcomed
        then, and asks again.
        """
        try:
            return self._bind_lane(session, pool, key)
        except SocketError as error:
            self.close_lane(session)
            self._own.record("lane.failed", {"pool": pool, "error": str(error)})
            return ""

    def _bind_lane(self, session: int, pool: str, key: bytes) -> str:
        options = profiles.LANE
        if self._zap_handler is not None and self._rights is not None:
            if not self._rights.opened(session, key):
                return ""
            options = replace(options, curve=self._zap_handler.open_lane(session, key))
        socket = Push(self._context, options)
        lane = self._lanes[session] = LaneLink(socket, pool)
        self._subscriptions.silenced.discard(pool)
        self._wait_for(session, lane)
        if self.endpoints.gateway.startswith("ipc://"):
            return bind_path(socket, f"{self.endpoints.gateway}{LANE_SUFFIX}{session}")
        return self._ports.bind(socket, session, self.endpoints.gateway)

    def close_lane(self, session: int) -> None:
        if self._zap_handler is not None and self._rights is not None:
            self._zap_handler.close_lane(session)
            self._rights.closed(session)
        self._hang_up(session)

    def _hang_up(self, session: int) -> None:
        self._ports.release(session)
        lane = self._lanes.pop(session, None)
        if lane is not None:
            self._loop.unwatch_write(lane.socket.raw)
            lane.socket.close(linger_ms=0)

    # --- incoming -------------------------------------------------------------------------------------------

    def _from_clients(self) -> None:
        taken = size = 0
        while taken < PORTION and size < PORTION_BYTES:
            arrived = self._arrived_at(self.gateway)
            taken += len(arrived)
            for user, (identity_part, *frames) in arrived:
                identity = bytes(identity_part)
                try:
                    whole = self._assembler.whole(frames, time.monotonic(), user, identity)
                    if whole is None:
                        continue
                    message = from_client.decode(whole)
                except RemoteProtocolError as error:
                    self._refuse("client", error)
                    if isinstance(error, NoRoom):
                        self._reply(identity, m.Busy(0, RETRY_BUSY))
                    continue
                if self._rights is None or self._is_allowed(user, identity, message):
                    taken += self._from_client(user, identity, message)
            if len(arrived) < FEW:
                return
            size += sum(len(part) for _, parts in arrived for part in parts)

    def _arrived_at(self, socket: Router | Pull) -> list[tuple[str, list[Part]]]:
        """Take a few messages off a socket, each with the user whose key its link shows."""
        if self._rights is not None:
            return socket.recv_parts_from(FEW)
        return [("", parts) for parts in socket.recv_parts_many(FEW)]

    def _is_allowed(self, user: str, identity: bytes, message: m.ClientMessage) -> bool:
        """Return True if the sender's key entitles it to this message; send a refusal if not."""
        try:
            if self._rights is not None:
                self._rights.check_client(user, message)
        except NotAllowed as error:
            self._refuse(user or "client", error)
            if isinstance(message, m.Command):
                self._reply(identity, m.Answer(message.number, None, f"the hub refuses it: {error}"))
            else:
                self._reply(identity, m.ClientRefused(str(error)))
            return False
        return True

    def _from_client(self, user: str, identity: bytes, message: m.ClientMessage) -> int:
        """Pass a message on; return the number of its tasks."""
        if isinstance(message, m.ClientHello):
            if self._own.is_taken(message.client, self):
                self._reply(identity, m.ClientRefused("this client session belongs to another process"))
                return 0
            linked = self._users.get(message.client, user)
            if linked != user or self.is_another_s(message.client, user):
                error = NotAllowed("this client session belongs to another key")
                self._refuse(user or "client", error)
                self._reply(identity, m.ClientRefused(str(error)))
                return 0
            former = self._clients.get(identity, message.client)
            if former != message.client:  # a link has one session, or one peer could open any number
                self._forget_client(former)
                self._events.append(ClientGone(former))
            self._forget_client(message.client)
            self._identities[message.client] = identity
            self._clients[identity] = message.client
            self._users[message.client] = user
        client = self._clients.get(identity)
        if client is None:  # it believes that this hub, which was started anew, knows it
            self._reply(identity, m.ClientRefused())
            return 0
        self._events.append(FromClient(client, message, user))
        if isinstance(message, m.ClientBye):
            self._forget_client(client)
        if isinstance(message, m.CancelTasks):
            return len(message.seqs)
        if isinstance(message, m.Submit):
            return len(message.cancels) + sum(len(run.seqs) for run in message.runs)
        return 0

    def _reply(self, identity: bytes, message: m.ToClient) -> None:
        with contextlib.suppress(PeerUnreachable):
            self.gateway.try_send_parts([identity, *encode(message)])

    def _from_pools(self) -> None:
        taken = size = 0
        while taken < BATCH and size < PORTION_BYTES:
            arrived = self._arrived_at(self.collector)
            for user, frames in arrived:
                self._from_pool(user, frames)
            if len(arrived) < FEW:
                return
            taken += len(arrived)
            size += sum(len(part) for _, parts in arrived for part in parts)

    def _from_pool(self, user: str, frames: list[Part]) -> None:
        rights = self._rights
        try:
            sender, rest = (NOBODY, frames) if rights is None else rights.read_pool(user, frames)
            whole = self._assembler.whole(rest, time.monotonic(), user, sender.token)
            if whole is None:
                return
            message = from_pool.decode(whole)
            if rights is None or self._check_pool(rights, sender, message):
                self._events.append(FromPool(message, user, sender.token))
        except RemoteProtocolError as error:
            self._refuse(user or "pool", error)
            if isinstance(error, NoRoom):
                session = error.sender if rights is None else rights.session_of(user, frames)
                self._events.append(LaneLost(session))  # it brings all that it holds to its next session

    def _check_pool(self, rights: Authorization, sender: Sender, message: m.PoolMessage) -> bool:
        passed = rights.check_pool(sender, message)
        if isinstance(message, m.Hello):
            if self._own.has_pool(message.pool):
                raise NotAllowed("the name of the pool in the hub's own process")
        elif self._own.has_session(message.session):
            raise NotAllowed("the session of the pool in the hub's own process")
        return passed

    def _refuse(self, who: str, error: RemoteProtocolError) -> None:
        self.peer_errors.add("message.refused", {"from": who, "error": str(error)})

    def _from_subscribers(self) -> None:
        arrived = self.control.recv_events_from(BATCH)
        subscriptions = self._subscriptions
        subscriptions.take(event for _, event in arrived)
        if subscriptions.silenced:
            self._sweep_at = 0.0
        if subscriptions.too_many:
            fields: dict[str, object] = {"from": arrived[-1][0] or "somebody", "error": "too many topics"}
            self.peer_errors.add("control.flooded", fields)
            subscriptions.forget()
            self.listeners.cut_off(self.control)

    # --- links ----------------------------------------------------------------------------------------------

    def _wait_for(self, session: int, lane: LaneLink) -> None:
        """Send the messages that were kept as soon as the pool has dialled."""

        def ready() -> None:
            if lane.flush():
                self._loop.unwatch_write(lane.socket.raw)

        self._loop.watch_write(lane.socket.raw, ready)

    @property
    def deadline(self) -> float:
        sweep = self._lanes or self._subscriptions.silenced or self.listeners.waiting or self._assembler.count
        return self._sweep_at if sweep else math.inf

    def turn(self, now: float) -> None:
        """Find lanes whose link is gone: a bound PUSH without a peer cannot be written."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP + SWEEP_EACH * len(self._lanes)
        self.listeners.listen_again()
        self._assembler.drop_stale(now)
        for session, lane in self._lanes.items():
            if not lane.linked or lane.lost:
                continue
            if not int(lane.socket.raw.get(zmq.EVENTS)) & _WRITABLE:
                lane.lost = True
                self._loop.unwatch_write(lane.socket.raw)
                self._events.append(LaneLost(session))
        silenced = self._subscriptions.silenced
        for pool in list(silenced):
            lanes = [(session, lane) for session, lane in self._lanes.items() if lane.pool == pool]
            lost = [session for session, lane in lanes if lane.lost]
            self._events += map(LinksLost, lost)
            if lost or not lanes:
                silenced.discard(pool)

    def cut_off(self) -> None:
        """Close every connection to gateway and collector, with the messages in it; peers dial again."""
        self.listeners.cut_off(self.gateway)
        self.listeners.cut_off(self.collector)
        self._sweep_at = 0.0

    def revoke(self, users: frozenset[str]) -> None:
        """End the sessions of these users, and close their connections.

        libzmq closes no single connection, so the sockets that are for the users' roles are bound anew: all
        peers there are cut off and dial again, and these users are not let in any more.
        """
        if self._rights is None:
            return
        clients = [client for client, user in self._users.items() if user in users]
        for client in clients:
            self._forget_client(client)
            self._events.append(ClientGone(client))
        for session in self._rights.sessions_of(users):
            if session in self._lanes:
                self._events.extend((LaneLost(session), LinksLost(session)))
            self.close_lane(session)
        if self._zap_handler is not None:  # a user with another key goes on
            ended = frozenset(user for user in users if not self._zap_handler.knows(user))
            self._events.append(Revoked(ended))
        roles = {user.partition(":")[0] for user in users}
        if clients or roles - DOMAINS[COLLECTOR]:  # few workers run tasks that submit tasks
            self.listeners.cut_off(self.gateway)
        if roles & DOMAINS[COLLECTOR]:
            self.listeners.cut_off(self.collector)
            self.listeners.cut_off(self.control)
        self._sweep_at = 0.0

    def close(self) -> None:
        for session in list(self._lanes):
            self.close_lane(session)
        for socket in (self.gateway, self.collector, self.control):
            self._loop.unwatch(socket.raw)
            socket.close()
        self.listeners.close()
        if self._zap_handler is not None:
            self._zap_handler.close()
