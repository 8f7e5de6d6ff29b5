"""The socket options of each link between the programs of a mesh, and the topics of the control channel."""

from __future__ import annotations

from dataclasses import replace

from taskmesh.messages.fragments import FRAGMENT
from taskmesh.sockets import SocketOptions

BATCH = 256
"""Messages taken off a socket before the others get their turn."""
BACKLOG = 1024
"""Connections that wait to be accepted at a listener, at most."""
BATCHES = 64 << 20
"""Bytes of a message beside the one payload that may be as large as max_payload: batches close at 8 MiB."""
FRAME = FRAGMENT + 4096
"""Bytes of a frame, encrypted or not. A peer that announces a larger one is cut off."""
NOTHING = 4096
"""Bytes of a frame where peers have nothing to say but subscriptions."""

DATA_S = 120
"""Seconds that one message may take on a link that carries payloads.

No heartbeat of ZMTP overtakes a message: a message that takes longer than the heartbeat's timeout ends its
link each time, and never arrives. Beats, on links of their own, tell who lives; these heartbeats only reap
links that were forgotten.

Who dials pings. A listener answers, believes each ping for this long, and pings nobody itself: libzmq 4.3.5
aborts if a ping is due on a connection that is gone while what came from it waits at the high-water mark
(`!_io_error`, zeromq/libzmq#4841). For peers that do not ping it has the kernel's keepalive.
"""
QUEUED = 10_000
"""Messages to one client that wait at most. Deliveries are repeated."""
WAITING = 16
"""Messages of one peer that wait to be taken in, FRAME bytes each; further ones wait in its own process."""
SUBSCRIPTIONS = 256
"""Subscriptions of one peer that wait to be taken in; a pool has two."""


def _bound(options: SocketOptions) -> SocketOptions:
    return replace(
        options,
        handshake_interval_ms=2000,
        backlog_connections=BACKLOG,
        heartbeat_interval_ms=0,
        keepalive_s=DATA_S // 2,
    )


_ANY = SocketOptions(
    send_hwm_messages=0,
    recv_hwm_messages=0,
    heartbeat_interval_ms=1000,
    heartbeat_timeout_ms=3000,
    heartbeat_ttl_ms=3000,
)
"""No high-water mark: credit and the ledger are the limit, and a full queue would hide where a message is."""

_DATA = replace(
    _ANY,
    heartbeat_interval_ms=10_000,  # a thousand pools have three thousand links
    heartbeat_timeout_ms=DATA_S * 1000,
    heartbeat_ttl_ms=DATA_S * 1000,
)

GATEWAY = replace(
    _bound(_DATA),
    router_mandatory=True,
    linger_ms=500,
    send_hwm_messages=QUEUED,
    recv_hwm_messages=WAITING,
    max_message_bytes=FRAME,
)
COLLECTOR = replace(_bound(_DATA), recv_hwm_messages=WAITING, max_message_bytes=FRAME)
CONTROL = replace(
    _bound(_DATA),
    xpub_verbose=True,
    linger_ms=500,
    max_message_bytes=NOTHING,
    recv_hwm_messages=SUBSCRIPTIONS,
    recv_buffer_bytes=64 << 10,
)
"""libzmq enters all subscriptions that have arrived, 50 bytes for each byte of a topic, before the hub sees
the first of them and can cut off a peer that floods it. So little may have arrived: the kernel's own buffer
would take a hundred thousand.
"""
LANE = replace(_bound(_DATA), immediate=True, max_message_bytes=NOTHING)

TO_GATEWAY = replace(_DATA, linger_ms=1000, reconnect_max_ms=1000)
TO_COLLECTOR = replace(_DATA, linger_ms=1000, immediate=True, reconnect_max_ms=1000)
BEATS = replace(_ANY, linger_ms=1000, immediate=True, reconnect_max_ms=1000)
TO_CONTROL = replace(_ANY, reconnect_max_ms=1000)
TO_LANE = replace(_DATA, reconnect_interval_ms=-1)
"""RECONNECT_IVL -1: a lost lane means a new Hello, a new session and a new lane."""

ALL = b"all."
"""The control topic of every pool."""


def topic(pool: str) -> bytes:
    """Return the control topic of one pool; dots in its name are escaped, so that no topic begins another."""
    return b"pool.%s." % pool.replace("%", "%25").replace(".", "%2E").encode()


def pool_of(topic: bytes) -> str:
    """Return the pool that a topic is for; "" for any other topic."""
    if not topic.startswith(b"pool."):
        return ""
    return topic[5:-1].decode(errors="replace").replace("%2E", ".").replace("%25", "%")
