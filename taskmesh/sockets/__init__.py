"""The ZeroMQ socket roles as typed objects; usable without the rest of taskmesh.

    with Context() as context, Push(context) as push:
        push.bind("tcp://127.0.0.1:*")
        push.send(b"work", timeout=1.0)

Roles: Push Pull, Scatter Gather, Pub Sub XPub XSub, Req Rep Dealer Router, Pair. They follow 30/PIPELINE,
49/SCATTERGATHER, 29/PUBSUB and the table of socket types; docs/explanation/conformance.md lists which clause
holds.
"""

from __future__ import annotations

from zmq import Frame

from taskmesh.sockets.context import Context
from taskmesh.sockets.errors import (
    ContextClosed,
    ContextNotClosed,
    EndpointError,
    ForkedContext,
    HandshakeFailed,
    InvalidCombination,
    InvalidOption,
    MultipartRefused,
    NoMessageWithinTimeout,
    NoPeerWithinTimeout,
    PeerUnreachable,
    SocketClosed,
    SocketError,
    UnsupportedLibrary,
    WrongDirection,
    WrongTurn,
)
from taskmesh.sockets.keys import KeyPair, key_text, new_key_pair, pair_of, raw_key
from taskmesh.sockets.libzmq import check_library
from taskmesh.sockets.monitor import EventKind, Monitor, MonitorEvent
from taskmesh.sockets.options import CurveClient, CurveServer, SocketOptions
from taskmesh.sockets.pubsub import Cancelled, Pub, Sub, Subscribed, UserMessage, XPub, XPubEvent, XSub
from taskmesh.sockets.roles import Role
from taskmesh.sockets.scatter_gather import Gather, Scatter
from taskmesh.sockets.socket import Socket
from taskmesh.sockets.traffic import (
    ZERO_COPY_BYTES,
    Dealer,
    Pair,
    Part,
    Pull,
    Push,
    Rep,
    Req,
    Router,
    Sendable,
)

__all__ = [
    "ZERO_COPY_BYTES",
    "Cancelled",
    "Context",
    "ContextClosed",
    "ContextNotClosed",
    "CurveClient",
    "CurveServer",
    "Dealer",
    "EndpointError",
    "EventKind",
    "ForkedContext",
    "Frame",
    "Gather",
    "HandshakeFailed",
    "InvalidCombination",
    "InvalidOption",
    "KeyPair",
    "Monitor",
    "MonitorEvent",
    "MultipartRefused",
    "NoMessageWithinTimeout",
    "NoPeerWithinTimeout",
    "Pair",
    "Part",
    "PeerUnreachable",
    "Pub",
    "Pull",
    "Push",
    "Rep",
    "Req",
    "Role",
    "Router",
    "Scatter",
    "Sendable",
    "Socket",
    "SocketClosed",
    "SocketError",
    "SocketOptions",
    "Sub",
    "Subscribed",
    "UnsupportedLibrary",
    "UserMessage",
    "WrongDirection",
    "WrongTurn",
    "XPub",
    "XPubEvent",
    "XSub",
    "key_text",
    "new_key_pair",
    "pair_of",
    "raw_key",
]

check_library()
