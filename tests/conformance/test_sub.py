# ruff: noqa: N802 (a test is named after its clause)
"""29/PUBSUB, the SUB socket type."""

from __future__ import annotations

import pytest
import zmq

from taskmesh.sockets import Sub, WrongDirection
from tests.conformance import subscribing
from tests.conformance.rig import PATIENCE_S, Rig
from tests.conformance.synchrony import SYNC, subscribe, synchronise
from tests.conformance.wire import WirePeer

NETWORK = pytest.mark.transports("tcp", "ipc")


@pytest.mark.parametrize("count", [1, 10])
def test_PS_41_any_number_of_publishers(rig: Rig, count: int) -> None:
    subscribing.hears_any_number(rig, Sub, count)


def test_PS_42_sub_only_receives(rig: Rig) -> None:
    sub = rig.ours(Sub)
    rig.join(sub, rig.peer("PUB"))

    with pytest.raises(WrongDirection):
        sub.send(b"x")
    with pytest.raises(zmq.ZMQError) as refusal:
        sub.raw.send(b"x", zmq.NOBLOCK)
    assert refusal.value.errno == zmq.ENOTSUP


def test_PS_43_a_queue_for_each_publisher(rig: Rig) -> None:
    subscribing.has_a_queue_for_each_publisher(rig, Sub)


def test_PS_44_the_queue_exists_from_connect_on(rig: Rig) -> None:
    subscribing.hears_a_publisher_that_binds_later(rig, Sub)


@NETWORK
def test_PS_45_queue_and_subscriptions_outlive_a_lost_connection(rig: Rig) -> None:
    subscribing.keeps_queue_and_subscriptions_over_a_lost_connection(rig, Sub)


def test_PS_46_bound_sub_makes_the_queue_when_a_publisher_arrives(rig: Rig) -> None:
    subscribing.hears_a_publisher_that_connects(rig, Sub)


def test_PS_47_bound_sub_keeps_the_queue_of_a_publisher_that_left_until_it_is_read(rig: Rig) -> None:
    """Deviates, D4: the queue is destroyed only when it is empty."""
    subscribing.delivers_what_it_read_before_the_publisher_left(rig, Sub)


def test_PS_48_bound_sub_delivers_what_a_publisher_sent_before_it_left(rig: Rig) -> None:
    """Deviates, D4: all messages are delivered."""
    subscribing.delivers_what_it_read_before_the_publisher_left(rig, Sub)


def test_PS_49_the_queues_have_a_limit_that_can_be_set(rig: Rig) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    subscribing.has_an_incoming_limit_that_can_be_set(rig, Sub)


def test_PS_50_a_full_sub_stops_reading_and_the_publisher_drops(rig: Rig) -> None:
    """Deviates, D7: the SUB itself drops nothing."""
    subscribing.stops_reading_when_full(rig, Sub)


def test_PS_51_fair_queueing(rig: Rig) -> None:
    subscribing.takes_from_its_publishers_in_turn(rig, Sub)


def test_PS_52_sub_changes_nothing(rig: Rig) -> None:
    subscribing.receives_bodies_unchanged(rig, Sub)


def test_PS_53_sub_filters_what_is_queued_by_the_subscriptions_it_has_when_reading(rig: Rig) -> None:
    sub, pub = rig.ours(Sub), rig.peer("PUB")
    rig.join(sub, pub)
    subscribe(sub, b"a", b"b")
    synchronise(pub, sub)
    for message in (b"b0", b"a1", b"b1", b"a2"):
        pub.send(message)
    rig.leave(sub, pub)  # the first is already taken out of the queue when its arrival is noticed

    sub.unsubscribe(b"a")

    assert sub.recv_many() == [b"b0", b"b1"]


@NETWORK
@pytest.mark.peers("wire")
def test_PS_53_sub_filters_what_a_publisher_sends_without_being_asked(rig: Rig) -> None:
    sub = rig.ours(Sub)
    sub.subscribe(b"a")
    with WirePeer(sub.bind(rig.address()), "PUB") as peer:
        for message in (b"b", b"a1", b"", b"a2"):
            peer.send_parts(message)

        assert [sub.recv(PATIENCE_S), sub.recv(PATIENCE_S)] == [b"a1", b"a2"]


def test_PS_54_sub_delivers_to_the_application(rig: Rig) -> None:
    sub, pub = rig.ours(Sub), rig.peer("PUB")
    rig.join(sub, pub)
    subscribe(sub, b"n")
    synchronise(pub, sub)

    pub.send(b"news 1")
    pub.send(b"news 2")

    assert sub.recv(PATIENCE_S) == b"news 1"
    assert next(iter(sub)) == b"news 2"


def test_PS_55_sub_sends_subscriptions_and_cancellations(rig: Rig) -> None:
    sub, xpub = rig.ours(Sub), rig.peer("XPUB")
    rig.join(xpub, sub)

    sub.subscribe(b"a\0")
    assert xpub.recv_parts(PATIENCE_S) == [b"\x01a\0"]
    sub.unsubscribe(b"a\0")
    assert xpub.recv_parts(PATIENCE_S) == [b"\x00a\0"]


@NETWORK
@pytest.mark.peers("wire")
def test_PS_55_sub_sends_them_over_the_wire(rig: Rig) -> None:
    sub = rig.ours(Sub)
    sub.subscribe(b"early")
    with WirePeer(sub.bind(rig.address()), "PUB") as peer:
        peer.send_parts(b"early news")
        assert sub.recv(PATIENCE_S) == b"early news"
        sub.subscribe(SYNC)

        assert [peer.recv_parts(), peer.recv_parts()] == [[b"\x01early"], [b"\x01" + SYNC]]
