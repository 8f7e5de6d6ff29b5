# ruff: noqa: N802 (a test is named after its clause)
"""29/PUBSUB, the PUB socket type."""

from __future__ import annotations

import pytest
import zmq

from taskmesh.sockets import Pub, WrongDirection
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


def test_PS_11_pub_ignores_what_subscribers_send(rig: Rig) -> None:
    pub, xsub = rig.ours(Pub), rig.peer("XSUB")
    rig.join(pub, xsub)
    subscribe(xsub, b"")

    xsub.send(b"to the publisher")
    xsub.send_parts([b"in", b"parts"])

    synchronise(pub, xsub)
    assert heard_by(pub, xsub, [b"still works"]) == [b"still works"]
    assert not pub.raw.get(zmq.EVENTS) & zmq.POLLIN


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


def test_PS_19_pub_shows_no_subscription(rig: Rig) -> None:
    pub, sub = rig.ours(Pub), rig.peer("SUB")
    subscribe(sub, b"a")
    rig.join(pub, sub)
    synchronise(pub, sub)

    assert not pub.raw.get(zmq.EVENTS) & zmq.POLLIN
    with pytest.raises(WrongDirection):
        pub.recv(0)
