"""The options of a socket: one frozen dataclass, units in the names, checked when it is made.

CONFLATE and PROBE_ROUTER are not offered: the first breaks 30/PIPELINE (it drops what it cannot keep), the
second sends messages that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import zmq

from taskmesh.sockets.errors import InvalidOption
from taskmesh.sockets.roles import Role

KEEPALIVES = 4
"""Times that the kernel asks before it ends a connection."""
KEY_LENGTHS = (32, 40)
"""A CURVE key is 32 bytes, or 40 bytes of Z85 text."""


@dataclass(frozen=True, slots=True)
class CurveServer:
    """Makes a socket the CURVE server: peers must know its public key.

    Attributes:
        secret_key: the server's secret key.
        zap_domain: the domain under which the ZAP handler is asked; empty means that no handler is asked.
    """

    secret_key: bytes = field(repr=False)
    zap_domain: str = ""

    def __post_init__(self) -> None:
        _check_key("secret_key", self.secret_key)

    def settings(self) -> Iterator[tuple[int, int | bytes]]:
        """Give libzmq's options and their values."""
        yield zmq.CURVE_SERVER, 1
        yield zmq.CURVE_SECRETKEY, self.secret_key
        if self.zap_domain:
            yield zmq.ZAP_DOMAIN, self.zap_domain.encode()


@dataclass(frozen=True, slots=True)
class CurveClient:
    """Makes a socket a CURVE client.

    Attributes:
        public_key: the client's own public key.
        secret_key: the client's own secret key.
        server_key: the public key of the server that may be talked to.
    """

    public_key: bytes
    secret_key: bytes = field(repr=False)
    server_key: bytes

    def __post_init__(self) -> None:
        _check_key("public_key", self.public_key)
        _check_key("secret_key", self.secret_key)
        _check_key("server_key", self.server_key)

    def settings(self) -> Iterator[tuple[int, int | bytes]]:
        """Give libzmq's options and their values."""
        yield zmq.CURVE_PUBLICKEY, self.public_key
        yield zmq.CURVE_SECRETKEY, self.secret_key
        yield zmq.CURVE_SERVERKEY, self.server_key


def _check_key(name: str, key: bytes) -> None:
    if not isinstance(key, bytes) or len(key) not in KEY_LENGTHS:
        raise InvalidOption(f"{name} must be 32 bytes, or 40 bytes of Z85 text as zmq.curve_keypair() makes")


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketOptions:
    """Options of a socket; those that are not named here keep libzmq's default.

    Attributes:
        send_hwm_messages: limit of each outgoing queue, 0 for none (30/PIPELINE, PIPE-11). Kernel buffers
            come on top over tcp and ipc, so it does not bound what is in flight.
        recv_hwm_messages: limit of each incoming queue, 0 for none.
        linger_ms: how long unsent messages live on after close(); -1 for ever. Default 0, unlike libzmq's -1,
            which can block the end of the program for ever.
        heartbeat_interval_ms: how often ZMTP pings the peer; 0 for never.
        heartbeat_timeout_ms: silence after a ping that ends the connection; -1 means the interval.
        heartbeat_ttl_ms: after how much silence the *peer* shall end the connection; 0 leaves it to the peer.
        keepalive_s: silence after which the kernel asks whether the peer is there, tcp only; 0 for never. The
            connection ends if there is no answer for as long again.
        max_message_bytes: largest frame accepted; a peer that sends more is disconnected; -1 for no limit.
        handshake_interval_ms: time a new connection has to finish its handshake.
        immediate: queue only for connections that are complete. Over tcp and ipc this gives up the queue
            before the connection (PIPE-06), so nothing waits for an endpoint that never answers; inproc
            ignores it.
        reconnect_interval_ms: wait before connecting again; -1 never connects again.
        reconnect_max_ms: the wait doubles up to this; 0 keeps it constant.
        backlog_connections: connections that the kernel keeps waiting for accept.
        send_buffer_bytes: kernel buffer (tcp only); -1 keeps the system's.
        recv_buffer_bytes: kernel buffer (tcp only); -1 keeps the system's.
        identity: what a Router calls this socket; empty lets the Router invent one.
        router_mandatory: Router only: an unknown identity raises PeerUnreachable and a full peer makes send
            wait. Default False: such messages are dropped, as the table of socket types says.
        xpub_verbose: XPub only: report every subscription, not only the first of several equal ones.
        curve: keys, server or client side.
    """

    send_hwm_messages: int = 1000
    recv_hwm_messages: int = 1000
    linger_ms: int = 0
    heartbeat_interval_ms: int = 0
    heartbeat_timeout_ms: int = -1
    heartbeat_ttl_ms: int = 0
    keepalive_s: int = 0
    max_message_bytes: int = -1
    handshake_interval_ms: int = 30_000
    immediate: bool = False
    reconnect_interval_ms: int = 100
    reconnect_max_ms: int = 0
    backlog_connections: int = 100
    send_buffer_bytes: int = -1
    recv_buffer_bytes: int = -1
    identity: bytes = b""
    router_mandatory: bool = False
    xpub_verbose: bool = False
    curve: CurveServer | CurveClient | None = None

    def __post_init__(self) -> None:
        for name, smallest, _ in INTEGERS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
                raise InvalidOption(f"{name} must be an int of at least {smallest}, not {value!r}")
        if len(self.identity) > 255 or self.identity[:1] == b"\0":
            raise InvalidOption("identity must be at most 255 bytes and must not begin with a zero byte")

    def settings(self, role: Role) -> Iterator[tuple[int, int | bytes]]:
        """Give libzmq's options and values for a socket of this role, where they differ from its defaults.

        Raises:
            InvalidOption: an option was set that the role does not have.
        """
        for name, _, option in INTEGERS:
            value = getattr(self, name)
            if value != LIBZMQ_DEFAULTS[name]:
                yield option, value
        if self.keepalive_s:
            yield zmq.TCP_KEEPALIVE, 1
            yield zmq.TCP_KEEPALIVE_IDLE, self.keepalive_s
            yield zmq.TCP_KEEPALIVE_INTVL, max(1, self.keepalive_s // KEEPALIVES)
            yield zmq.TCP_KEEPALIVE_CNT, KEEPALIVES
        if self.immediate:
            yield zmq.IMMEDIATE, 1
        if self.identity:
            yield zmq.ROUTING_ID, self.identity
        if self.router_mandatory:
            _check_role("router_mandatory", role, Role.ROUTER)
            yield zmq.ROUTER_MANDATORY, 1
        if self.xpub_verbose:
            _check_role("xpub_verbose", role, Role.XPUB)
            yield zmq.XPUB_VERBOSE, 1
        if self.curve is not None:
            yield from self.curve.settings()


def _check_role(name: str, role: Role, owner: Role) -> None:
    if role is not owner:
        raise InvalidOption(f"{name} belongs to {owner.value}, not to {role.value}")


INTEGERS: tuple[tuple[str, int, int], ...] = (
    ("send_hwm_messages", 0, zmq.SNDHWM),
    ("recv_hwm_messages", 0, zmq.RCVHWM),
    ("linger_ms", -1, zmq.LINGER),
    ("heartbeat_interval_ms", 0, zmq.HEARTBEAT_IVL),
    ("heartbeat_timeout_ms", -1, zmq.HEARTBEAT_TIMEOUT),
    ("heartbeat_ttl_ms", 0, zmq.HEARTBEAT_TTL),
    ("max_message_bytes", -1, zmq.MAXMSGSIZE),
    ("handshake_interval_ms", 0, zmq.HANDSHAKE_IVL),
    ("reconnect_interval_ms", -1, zmq.RECONNECT_IVL),
    ("reconnect_max_ms", 0, zmq.RECONNECT_IVL_MAX),
    ("backlog_connections", 1, zmq.BACKLOG),
    ("send_buffer_bytes", -1, zmq.SNDBUF),
    ("recv_buffer_bytes", -1, zmq.RCVBUF),
)
"""The whole-number options: field, smallest value, libzmq's option."""

LIBZMQ_DEFAULTS: dict[str, object] = {
    **{option.name: option.default for option in fields(SocketOptions)},
    "linger_ms": -1,
}
"""Only what differs is set: a socket costs one system of defaults, not thirteen calls."""
