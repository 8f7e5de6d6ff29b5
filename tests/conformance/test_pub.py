# ruff: noqa: N802 (a test is named after its clause)
"""29/PUBSUB, the PUB socket type."""

from __future__ import annotations

import pytest
import zmq

from taskmesh.sockets import Pub, WrongDirection
from tests.conformance import publishing
from tests.conformance.clauses import CLAUSES
from tests.conformance.coverage import clauses_without_a_test
from tests.conformance.rig import PATIENCE_S, Rig
from tests.conformance.synchrony import SYNC, heard_by, subscribe, synchronise
from tests.conformance.wire import WirePeer
from tests.harness.waiting import wait_until

NETWORK = pytest.mark.transports("tcp", "ipc")


def test_PS_01_every_clause_of_the_document_has_a_test() -> None:
    assert clauses_without_a_test("PS") == []
    assert sum(clause.family == "PS" for clause in CLAUSES) == 76


@pytest.mark.parametrize("count", [1, 10])
def test_PS_02_any_number_of_subscribers(rig: Rig, count: int) -> None:
    publishing.reaches_any_number(rig, Pub, count)


@pytest.mark.transports("tcp")
@pytest.mark.peers("raw")
def test_PS_02_hundreds_of_subscribers(rig: Rig) -> None:
    publishing.reaches_any_number(rig, Pub, 200)


def test_PS_03_pub_only_sends(rig: Rig) -> None:
    pub = rig.ours(Pub)
    rig.join(pub, rig.peer("SUB"))

    with pytest.raises(WrongDirection):
        pub.recv()
    with pytest.raises(zmq.ZMQError) as refusal:
        pub.raw.recv(zmq.NOBLOCK)
    assert refusal.value.errno == zmq.ENOTSUP


def test_PS_04_a_queue_for_each_subscriber(rig: Rig) -> None:
    """Holds, but see D15: a small limit drops for subscribers that have read everything."""
    publishing.has_a_queue_for_each_subscriber(rig, Pub)


def test_PS_05_connecting_pub_queues_nothing_before_the_first_subscription(rig: Rig) -> None:
    """Deviates, D5: what is published before is dropped."""
    publishing.queues_nothing_before_the_first_subscription(rig, Pub)


@NETWORK
def test_PS_06_the_queue_outlives_a_lost_connection(rig: Rig) -> None:
    """Holds, but see D5: only from the first subscription on."""
    publishing.keeps_the_queue_of_a_known_subscriber_over_a_lost_connection(rig, Pub)


def test_PS_07_bound_pub_makes_the_queue_when_a_subscriber_arrives(rig: Rig) -> None:
    publishing.makes_the_queue_when_a_subscriber_arrives(rig, Pub)


def test_PS_08_bound_pub_destroys_the_queue_when_the_subscriber_leaves(rig: Rig) -> None:
    publishing.destroys_the_queue_when_the_subscriber_leaves(rig, Pub)


def test_PS_09_bound_pub_discards_what_was_queued_for_a_subscriber_that_left(rig: Rig) -> None:
    publishing.discards_what_was_queued_for_a_subscriber_that_left(rig, Pub)


def test_PS_10_the_queues_have_a_limit_that_can_be_set(rig: Rig) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    publishing.has_an_outgoing_limit_that_can_be_set(rig, Pub)


def test_PS_11_pub_ignores_what_subscribers_send(rig: Rig) -> None:
    pub, xsub = rig.ours(Pub), rig.peer("XSUB")
    rig.join(pub, xsub)
    subscribe(xsub, b"")

    xsub.send(b"to the publisher")
    xsub.send_parts([b"in", b"parts"])

    synchronise(pub, xsub)
    assert heard_by(pub, xsub, [b"still works"]) == [b"still works"]
    assert not pub.raw.get(zmq.EVENTS) & zmq.POLLIN


def test_PS_12_pub_changes_nothing(rig: Rig) -> None:
    publishing.sends_bodies_unchanged(rig, Pub)


@NETWORK
@pytest.mark.peers("wire")
def test_PS_13_nothing_without_a_subscription_goes_over_the_wire(rig: Rig) -> None:
    """Not used: each transport has subscriptions."""
    pub = rig.ours(Pub)
    with WirePeer(pub.bind(rig.address()), "SUB") as peer:
        peer.send_parts(b"\x01" + SYNC)
        peer.send_parts(b"\x01a")
        synchronise_wire(pub, peer)

        for message in (b"b", b"a1", b"c", b"a2"):
            pub.send(message)

        assert [peer.recv_parts(), peer.recv_parts()] == [[b"a1"], [b"a2"]]


def synchronise_wire(pub: Pub, peer: WirePeer) -> None:
    """Waits until the publisher knows what the peer subscribed to: sends one topic, then reads the other."""

    def sent() -> bool:
        pub.send(b"a?")
        return peer.has_data()

    wait_until(sent, PATIENCE_S)
    pub.send(SYNC)
    while peer.recv_parts() != [SYNC]:
        pass


def test_PS_14_pub_sends_only_what_was_subscribed(rig: Rig) -> None:
    publishing.sends_only_what_was_subscribed(rig, Pub)


def test_PS_15_a_subscription_is_the_start_of_the_first_part(rig: Rig) -> None:
    publishing.compares_the_start_of_the_first_part(rig, Pub)


def test_PS_16_pub_drops_for_a_full_subscriber(rig: Rig) -> None:
    """Holds, but see D15: a small limit drops for subscribers that have read everything."""
    publishing.has_a_queue_for_each_subscriber(rig, Pub)


def test_PS_17_pub_never_waits(rig: Rig) -> None:
    publishing.never_waits(rig, Pub)


def test_PS_18_pub_takes_subscriptions_and_cancellations(rig: Rig) -> None:
    publishing.takes_subscriptions_and_cancellations(rig, Pub)


def test_PS_19_pub_shows_no_subscription(rig: Rig) -> None:
    pub, sub = rig.ours(Pub), rig.peer("SUB")
    subscribe(sub, b"a")
    rig.join(pub, sub)
    synchronise(pub, sub)

    assert not pub.raw.get(zmq.EVENTS) & zmq.POLLIN
    with pytest.raises(WrongDirection):
        pub.recv(0)
