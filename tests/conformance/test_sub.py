# ruff: noqa: N802 (a test is named after its clause)
"""29/PUBSUB, the SUB socket type."""

from __future__ import annotations

import pytest

from taskmesh.sockets import Sub
from tests.conformance.rig import PATIENCE_S, Rig
from tests.conformance.synchrony import subscribe, synchronise
from tests.conformance.wire import WirePeer

NETWORK = pytest.mark.transports("tcp", "ipc")


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


def test_PS_55_sub_sends_subscriptions_and_cancellations(rig: Rig) -> None:
    sub, xpub = rig.ours(Sub), rig.peer("XPUB")
    rig.join(xpub, sub)

    sub.subscribe(b"a\0")
    assert xpub.recv_parts(PATIENCE_S) == [b"\x01a\0"]
    sub.unsubscribe(b"a\0")
    assert xpub.recv_parts(PATIENCE_S) == [b"\x00a\0"]
