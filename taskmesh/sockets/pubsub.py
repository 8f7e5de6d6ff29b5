"""Pub, Sub, XPub and XSub: 29/PUBSUB, one to many, with losses.

Nothing here is reliable by design: a Pub drops for subscribers that are full, and a subscriber misses what
was published before its subscription arrived. So send state again to a new subscriber, and number events.
"""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from taskmesh.sockets.roles import Role
from taskmesh.sockets.socket import translated
from taskmesh.sockets.traffic import (
    Part,
    ReceiveOnly,
    ReceivingParts,
    SendingParts,
    SendOnly,
)

SUBSCRIBE = b"\x01"
CANCEL = b"\x00"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscriber asked for all messages whose first part begins with `topic`."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The last subscriber (with `xpub_verbose` too) to `topic` took it back or vanished."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message that a subscriber's XSub sent upstream."""

    parts: tuple[Part, ...]


XPubEvent = Subscribed | Cancelled | UserMessage


class Pub(SendOnly, SendingParts):
    """Sends each message to every subscriber whose topic its first part begins with.

    It never waits: for a subscriber whose queue is full the message is dropped without a sign (PS-16, PS-17).
    libzmq learns of free room late, so keep `send_hwm_messages` at 1000 or more.
    """

    __slots__ = ()
    role = Role.PUB


class Sub(ReceiveOnly, ReceivingParts):
    """Receives, by fair queueing over its publishers, what it has subscribed to; at first that is nothing."""

    __slots__ = ()
    role = Role.SUB

    def subscribe(self, topic: bytes) -> None:
        """Ask for messages whose first part begins with `topic`, b"" for all; asking twice counts twice."""
        self._set(zmq.SUBSCRIBE, topic)

    def unsubscribe(self, topic: bytes) -> None:
        """Take one subscribe() back; nothing happens when there was none."""
        self._set(zmq.UNSUBSCRIBE, topic)

    def _set(self, option: int, topic: bytes) -> None:
        try:
            self._raw.set(option, topic)
        except zmq.ZMQError as error:
            raise translated(error, self) from None


class XPub(SendingParts, ReceivingParts):
    """A Pub that hears its subscribers: recv_event() tells subscriptions and what they send upstream."""

    __slots__ = ()
    role = Role.XPUB

    def recv_event(self, timeout: float | None = None) -> XPubEvent:
        """The next subscription, cancellation or message from a subscriber.

        Equal subscriptions of several subscribers are reported once, and the cancellation when the last has
        gone, unless `xpub_verbose` is set: then each subscription is reported. No part of a user message may
        begin with byte 0 or 1: libzmq takes it for a subscription.

        Args:
            timeout: seconds to wait; None waits for ever, 0 not at all.

        Raises:
            NoMessageWithinTimeout: nothing arrived.
        """
        return xpub_event(self.recv_parts(timeout))

    def recv_events_many(self) -> list[XPubEvent]:
        """The events that are there, without waiting."""
        return [xpub_event(parts) for parts in self.recv_parts_many()]

    def recv_events_from(self, limit: int) -> list[tuple[str, XPubEvent]]:
        """At most `limit` events that are there, each with its sender as ZAP has named it, or ""."""
        return [(user, xpub_event(parts)) for user, parts in self.recv_parts_from(limit)]


def xpub_event(parts: list[Part]) -> XPubEvent:
    """The typed value of what an XPUB received."""
    if len(parts) == 1:
        first = bytes(parts[0])
        if first[:1] == SUBSCRIBE:
            return Subscribed(first[1:])
        if first[:1] == CANCEL:
            return Cancelled(first[1:])
    return UserMessage(tuple(parts))


class XSub(SendingParts, ReceivingParts):
    """A Sub whose subscriptions are messages, so that they can be passed on; it can also send upstream.

    What it sends goes to every publisher, and is dropped without a sign for one whose queue is full (PS-71,
    PS-72).
    """

    __slots__ = ()
    role = Role.XSUB

    def subscribe(self, topic: bytes) -> None:
        """Ask all publishers for messages whose first part begins with `topic`."""
        self.send(SUBSCRIBE + topic)

    def unsubscribe(self, topic: bytes) -> None:
        """Take one subscribe() back."""
        self.send(CANCEL + topic)
