"""Marks that tell when a publisher and its subscribers are in step, since a PUB gives no sign of it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import zmq

from taskmesh.sockets import NoMessageWithinTimeout, UserMessage, XPub
from tests.conformance.rig import BODIES, LARGE, PATIENCE_S, Rig, fill, receive
from tests.harness.waiting import wait_until

SYNC = b"\0sync"
SYNC_NUMBERS = itertools.count()


def subscribe(subscriber: Any, *topics: bytes) -> None:
    """Subscribes to topics, and last of all to what `synchronise` sends."""
    for topic in (*topics, SYNC):
        subscriber.subscribe(topic)


def synchronise(publisher: Any, *subscribers: Any) -> list[list[bytes]]:
    """Publishes marks until each subscriber has heard the same one.

    So their earlier subscriptions are known, nothing is under way to them, and their queues are read.

    Returns:
        For each subscriber what else it received, in order.
    """
    others: list[list[bytes]] = [[] for _ in subscribers]

    def all_heard() -> bool:
        publisher.raw.get(zmq.EVENTS)  # lets it learn of subscriptions and of room
        mark = b"%s %d" % (SYNC, next(SYNC_NUMBERS))
        publisher.send(mark)
        return all(
            heard_mark(subscriber, mark, other) for subscriber, other in zip(subscribers, others, strict=True)
        )

    wait_until(all_heard, PATIENCE_S)
    return others


def heard_mark(subscriber: Any, mark: bytes, others: list[bytes]) -> bool:
    """Receives until the mark comes; False when nothing comes for a moment: a mark may be dropped."""
    while True:
        try:
            message = subscriber.recv(0.03)
        except (NoMessageWithinTimeout, zmq.Again):
            return False
        if message == mark:
            return True
        if not message.startswith(SYNC):
            others.append(message)


def sent_upstream(xsub: Any, xpub: XPub) -> list[bytes]:
    """Sends marks from an XSUB to our XPUB until one arrives; gives what came before it."""
    arrived: list[bytes] = []

    def marked() -> bool:
        mark = b"%s %d" % (SYNC, next(SYNC_NUMBERS))
        xsub.raw.get(zmq.EVENTS)
        xsub.send(b"up" + mark)
        with contextlib.suppress(NoMessageWithinTimeout):
            while True:
                event = xpub.recv_event(0.03)
                if isinstance(event, UserMessage):
                    message = bytes(event.parts[0])
                    if message == b"up" + mark:
                        return True
                    if not message.startswith(b"up" + SYNC):
                        arrived.append(message)
        return False

    wait_until(marked, PATIENCE_S)
    return arrived


def heard_by(publisher: Any, subscriber: Any, messages: Sequence[bytes]) -> list[bytes]:
    """Publishes messages; gives those that arrived."""
    for message in messages:
        publisher.send(message)
    return synchronise(publisher, subscriber)[0]


def assert_sends_unchanged(publisher: Any, subscriber: Any) -> None:
    """Check that bodies of all sorts, and a message of several parts, arrive as they were published."""
    for body in BODIES:
        publisher.send(body)
    publisher.send_parts([b"topic", LARGE, b"", b"\0"])

    assert receive(subscriber, len(BODIES)) == BODIES
    assert subscriber.recv_parts(PATIENCE_S) == [b"topic", LARGE, b"", b"\0"]


def held(rig: Rig, limit: int, publisher: Any, subscriber: Any, *, binder: Any) -> int:
    """Return how many messages the queues between two sockets take, the limit of one being `limit`.

    With libzmq's option XPUB_NODROP a full queue refuses the send, so that the limit can be seen.
    """
    publisher.raw.set(zmq.XPUB_NODROP, 1)
    subscribe(subscriber, b"")
    rig.join(binder, subscriber if binder is publisher else publisher)
    if rig.is_network:
        synchronise(publisher, subscriber)
    return fill(publisher.send, LARGE, at_least=limit // 2)
