"""Req, Rep, Dealer, Router and Pair, as in the table of socket types."""

from __future__ import annotations

from taskmesh.sockets.roles import Role
from taskmesh.sockets.traffic import ReceivingParts, SendingParts


class Req(SendingParts, ReceivingParts):
    """Asks: send, recv, send, ... Requests go round its peers; WrongTurn when the rhythm is broken."""

    __slots__ = ()
    role = Role.REQ


class Rep(SendingParts, ReceivingParts):
    """Answers: recv, send, recv, ... A reply to a requester that is gone is dropped."""

    __slots__ = ()
    role = Role.REP


class Dealer(SendingParts, ReceivingParts):
    """Sends to its peers in turn and receives by fair queueing, without a rhythm."""

    __slots__ = ()
    role = Role.DEALER


class Router(SendingParts, ReceivingParts):
    """Puts the sender's identity before each message, and sends to the identity in the first part.

    An unknown identity or a full peer drops the message, unless `router_mandatory` is set: then an unknown
    identity raises PeerUnreachable, and for a full peer send_parts waits and try_send_parts returns False.
    """

    __slots__ = ()
    role = Role.ROUTER


class Pair(SendingParts, ReceivingParts):
    """Talks to exactly one other Pair."""

    __slots__ = ()
    role = Role.PAIR
