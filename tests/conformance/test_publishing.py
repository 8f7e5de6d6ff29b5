"""What PUB and XPUB must do towards subscribers; `kind` is the typed socket under test."""

from __future__ import annotations

import time

import pytest
import zmq

from taskmesh.sockets import Pub, WrongDirection, XPub
from tests.conformance.coverage import each
from tests.conformance.rig import (
    LARGE,
    PATIENCE_S,
    TINY,
    Rig,
    assert_limits,
    numbers,
)
from tests.conformance.synchrony import SYNC, assert_sends_unchanged, heard_by, held, subscribe, synchronise
from tests.conformance.wire import WirePeer
from tests.harness.waiting import wait_until

Publisher = type[Pub] | type[XPub]
TOPICS = [b"", b"a", b"ab", b"b", b"\0", b"\0\xff", b"\xff"]
FIRST_PARTS = [
    b"",
    b"a",
    b"aa",
    b"ab",
    b"abc",
    b"b",
    b"\0",
    b"\0a",
    b"\0\xff",
    b"\0\xff\0",
    b"\xff",
    b"\xfe",
    b"ba",
]


@each(Pub="PS-02", XPub="PS-20")
@pytest.mark.parametrize("count", [1, 10])
def test_reaches_any_number(rig: Rig, kind: Publisher, count: int) -> None:
    publisher = rig.ours(kind)
    subscribers = [*rig.peers(count - count // 2, "SUB"), *rig.peers(count // 2, "XSUB")]
    for subscriber in subscribers:
        subscribe(subscriber, b"")
    rig.join(publisher, *subscribers)
    synchronise(publisher, *subscribers)

    publisher.send(b"to all")

    assert [subscriber.recv(PATIENCE_S) for subscriber in subscribers] == [b"to all"] * count


@pytest.mark.transports("tcp")
@pytest.mark.peers("raw")
@each(Pub="PS-02")
def test_reaches_hundreds(rig: Rig, kind: Publisher) -> None:
    test_reaches_any_number(rig, kind, 200)


@each(Pub="PS-04 PS-16 TBL-PUB", XPub="PS-33")
def test_has_a_queue_for_each_subscriber(rig: Rig, kind: Publisher) -> None:
    """Holds, but see D15: a small limit drops for subscribers that have read everything."""
    publisher = rig.ours(kind, **{**TINY, "send_hwm_messages": 10})
    stalled, live = rig.peer("SUB", **TINY), rig.peer("SUB", **TINY)
    for subscriber in (stalled, live):
        subscribe(subscriber, b"")
    rig.join(publisher, stalled, live)
    synchronise(publisher, stalled, live)
    total = 60

    for number in numbers(total):
        rig.settle(publisher)  # D15: only now does it learn that the live one has read
        publisher.send(number + LARGE)
        assert live.recv(PATIENCE_S) == number + LARGE

    held = synchronise(publisher, stalled)[0]
    assert held[0] == b"0" + LARGE
    assert len(held) < total


@each(Pub="PS-05", XPub="PS-23")
def test_queues_nothing_before_the_first_subscription(rig: Rig, kind: Publisher) -> None:
    """Deviates, D5: what is published before is dropped."""
    publisher, subscriber = rig.ours(kind, reconnect_interval_ms=10), rig.peer("SUB")
    endpoint = str(subscriber.bind(rig.address()))
    subscriber.raw.unbind(endpoint)
    subscribe(subscriber, b"")
    publisher.connect(endpoint)

    for message in numbers(10):
        publisher.send(message)
    rig.bind_again(subscriber, endpoint)

    assert synchronise(publisher, subscriber) == [[]]
    assert heard_by(publisher, subscriber, [b"now"]) == [b"now"]


@each(Pub="PS-06", XPub="PS-24")
@pytest.mark.transports("tcp", "ipc")
def test_keeps_the_queue_of_a_known_subscriber_over_a_lost_connection(rig: Rig, kind: Publisher) -> None:
    """Holds, but see D5: only from the first subscription on."""
    publisher, subscriber = rig.ours(kind, reconnect_interval_ms=10), rig.peer("SUB")
    subscribe(subscriber, b"")
    endpoint = rig.join(subscriber, publisher)
    synchronise(publisher, subscriber)
    rig.lose(publisher, subscriber)

    for message in numbers(10):
        publisher.send(message)
    successor = rig.peer("SUB")
    subscribe(successor, b"")
    rig.bind_again(successor, endpoint)

    assert synchronise(publisher, successor)[0] == numbers(10)


@each(Pub="PS-07 TBL-PUB", XPub="PS-25")
def test_makes_the_queue_when_a_subscriber_arrives(rig: Rig, kind: Publisher) -> None:
    publisher, subscriber = rig.ours(kind), rig.peer("SUB")
    publisher.bind(rig.address())
    publisher.send(b"before")
    subscribe(subscriber, b"")
    rig.join(publisher, subscriber)

    assert synchronise(publisher, subscriber) == [[]]
    assert heard_by(publisher, subscriber, [b"after"]) == [b"after"]


@each(Pub="PS-08 PS-09", XPub="PS-26 PS-27")
def test_destroys_the_queue_of_a_subscriber_that_left(rig: Rig, kind: Publisher) -> None:
    """With libzmq's option XPUB_NODROP a full queue refuses the send, so that its end can be seen."""
    publisher, first = rig.ours(kind, **TINY), rig.peer("SUB", identity=b"same", **TINY)
    publisher.raw.set(zmq.XPUB_NODROP, 1)
    subscribe(first, b"")
    rig.join(publisher, first)
    synchronise(publisher, first)
    wait_until(lambda: not publisher.try_send(LARGE), PATIENCE_S)
    rig.lose(publisher, first)
    wait_until(lambda: publisher.try_send(LARGE) and publisher.try_send(LARGE), PATIENCE_S)
    publisher.raw.set(zmq.XPUB_NODROP, 0)
    second = rig.peer("SUB", identity=b"same")
    subscribe(second, b"")
    rig.join(publisher, second)

    assert synchronise(publisher, second) == [[]]
    wait_until(lambda: heard_by(publisher, second, [b"new"]) == [b"new"], PATIENCE_S)


@each(Pub="PS-10", XPub="PS-28")
def test_has_an_outgoing_limit_that_can_be_set(rig: Rig, kind: Publisher) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    accepted = []
    for limit in (1, 40):
        publisher = rig.ours(kind, **{**TINY, "send_hwm_messages": limit})
        accepted.append(held(rig, limit, publisher, rig.peer("SUB", **TINY), binder=publisher))

    assert_limits(rig, accepted)


@each(Pub="PS-12", XPub="PS-29")
def test_sends_bodies_unchanged(rig: Rig, kind: Publisher) -> None:
    publisher, subscriber = rig.ours(kind), rig.peer("SUB")
    subscribe(subscriber, b"")
    rig.join(publisher, subscriber)
    synchronise(publisher, subscriber)

    assert_sends_unchanged(publisher, subscriber)


@each(Pub="PS-14 PS-15", XPub="PS-31 PS-32")
def test_sends_what_begins_with_a_subscription(rig: Rig, kind: Publisher) -> None:
    """The subscriber is an XSUB, which does not filter: what it does not receive was not sent."""
    publisher = rig.ours(kind)
    publisher.bind(rig.address())
    for topic in TOPICS:
        subscriber = rig.peer("XSUB")
        rig.join(publisher, subscriber)
        subscribe(subscriber, topic)
        synchronise(publisher, subscriber)
        for first in FIRST_PARTS:
            publisher.send_parts([first, b"ab\0\xff" + topic])
        publisher.send(SYNC)

        arrived = []
        while (message := subscriber.recv_parts(PATIENCE_S)) != [SYNC]:
            arrived.append(message[0])
        assert arrived == [first for first in FIRST_PARTS if first.startswith(topic)]


@each(Pub="PS-17", XPub="PS-34")
def test_never_waits(rig: Rig, kind: Publisher) -> None:
    publisher, stalled = rig.ours(kind, **TINY), rig.peer("SUB", **TINY)
    subscribe(stalled, b"")
    rig.join(publisher, stalled)
    synchronise(publisher, stalled)
    start = time.monotonic()

    for _ in range(300):
        publisher.send(LARGE[:32_768])
    for _ in range(3000):
        assert publisher.try_send(b"small")

    assert time.monotonic() - start < PATIENCE_S
    assert len(synchronise(publisher, stalled)[0]) < 3300


@each(Pub="PS-18", XPub="PS-37")
def test_takes_subscriptions_and_cancellations(rig: Rig, kind: Publisher) -> None:
    publisher, subscriber = rig.ours(kind), rig.peer("XSUB")
    rig.join(publisher, subscriber)
    subscribe(subscriber)
    synchronise(publisher, subscriber)
    assert heard_by(publisher, subscriber, [b"a"]) == []
    subscriber.subscribe(b"a")
    subscriber.subscribe(SYNC)
    wait_until(lambda: heard_by(publisher, subscriber, [b"a"]) == [b"a"], PATIENCE_S)
    subscriber.unsubscribe(b"a")

    wait_until(lambda: heard_by(publisher, subscriber, [b"a"]) == [], PATIENCE_S)


@each(Pub="PS-11 PS-19")
def test_shows_nothing_that_subscribers_send(rig: Rig, kind: type[Pub]) -> None:
    pub, xsub = rig.ours(kind), rig.peer("XSUB")
    rig.join(pub, xsub)
    subscribe(xsub, b"")

    xsub.send(b"to the publisher")
    xsub.send_parts([b"in", b"parts"])

    synchronise(pub, xsub)
    assert heard_by(pub, xsub, [b"still works"]) == [b"still works"]
    assert not pub.raw.get(zmq.EVENTS) & zmq.POLLIN
    with pytest.raises(WrongDirection):
        pub.recv(0)


@pytest.mark.transports("tcp", "ipc")
@pytest.mark.peers("wire")
@each(Pub="PS-13", XPub="PS-30")
def test_nothing_without_a_subscription_goes_over_the_wire(rig: Rig, kind: Publisher) -> None:
    """Not used: each transport has subscriptions."""
    publisher = rig.ours(kind)
    with WirePeer(publisher.bind(rig.address()), "SUB") as peer:
        peer.send_parts(b"\x01" + SYNC)
        peer.send_parts(b"\x01a")
        synchronise_wire(publisher, peer)

        for message in (b"b", b"a1", b"c", b"a2"):
            publisher.send(message)

        assert [peer.recv_parts(), peer.recv_parts()] == [[b"a1"], [b"a2"]]


def synchronise_wire(pub: Pub | XPub, peer: WirePeer) -> None:
    """Waits until the publisher knows what the peer subscribed to: sends one topic, then reads the other."""

    def sent() -> bool:
        pub.send(b"a?")
        return peer.has_data()

    wait_until(sent, PATIENCE_S)
    pub.send(SYNC)
    while peer.recv_parts() != [SYNC]:
        pass
