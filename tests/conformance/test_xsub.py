# ruff: noqa: N802 (a test is named after its clause)
"""29/PUBSUB, the XSUB socket type."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskmesh.sockets import XSub
from tests.conformance.rig import LARGE, MOST_HELD, PATIENCE_S, TINY, Rig, assert_limits, numbers, receive
from tests.conformance.synchrony import SYNC, heard_by, subscribe, synchronise
from tests.conformance.wire import WirePeer
from tests.harness.waiting import wait_until

NETWORK = pytest.mark.transports("tcp", "ipc")
UP_LARGE = b"up" + LARGE
UP = [b"\x02one", b"two", b"", bytes(range(2, 256)), UP_LARGE]
"""Bodies that are no subscription: they do not begin with 0 or 1."""


def test_PS_57_xsub_sends_and_receives(rig: Rig) -> None:
    xsub, xpub = rig.ours(XSub), rig.peer("XPUB")
    rig.join(xsub, xpub)
    subscribe(xsub, b"")
    synchronise(xpub, xsub)
    assert receive(xpub, 2) == [b"\x01", b"\x01" + SYNC]

    xsub.send(b"up")
    xpub.send(b"down")

    assert xpub.recv(PATIENCE_S) == b"up"
    assert xsub.recv(PATIENCE_S) == b"down"


@NETWORK
@pytest.mark.peers("wire")
def test_PS_58_the_two_queues_of_a_publisher_are_independent(rig: Rig) -> None:
    xsub = rig.ours(XSub, **TINY)
    with WirePeer(xsub.bind(rig.address()), "XPUB") as peer:
        peer.send_parts(b"first")
        assert xsub.recv(PATIENCE_S) == b"first"
        for _ in range(2 * MOST_HELD):
            xsub.send(UP_LARGE)  # the peer does not read: the outgoing queue is full

        peer.send_parts(b"down")

        assert xsub.recv(PATIENCE_S) == b"down"


def test_PS_59_the_queues_exist_from_connect_on(rig: Rig) -> None:
    xsub, xpub = rig.ours(XSub, reconnect_interval_ms=10), rig.peer("XPUB")
    endpoint = str(xpub.bind(rig.address()))
    xpub.raw.unbind(endpoint)
    xsub.connect(endpoint)

    xsub.subscribe(b"topic")
    xsub.send(b"user message")
    rig.bind_again(xpub, endpoint)

    assert receive(xpub, 2) == [b"\x01topic", b"user message"]


@NETWORK
def test_PS_60_the_outgoing_queue_is_emptied_when_the_connection_is_lost(rig: Rig) -> None:
    """Deviates, D19: only the subscriptions are sent again."""
    xsub, xpub = rig.ours(XSub, reconnect_interval_ms=10), rig.peer("XPUB", **TINY)
    endpoint = rig.join(xpub, xsub)
    xsub.subscribe(b"topic")
    for _ in range(3 * MOST_HELD):
        xsub.send(UP_LARGE)
    rig.lose(xsub, xpub)

    successor = rig.peer("XPUB")
    rig.bind_again(successor, endpoint)
    wait_until(lambda: rig.settle(xsub) or successor.raw.poll(0), PATIENCE_S)
    xsub.send(b"after")

    assert receive(successor, 2) == [b"\x01topic", b"after"]


def read_to_the_end(rig: Rig, xsub: XSub, xpub: Any) -> list[bytes]:
    """What stands on its way to an XPUB: the end is sent until it arrives, since it may be dropped."""
    arrived: list[bytes] = []

    def ended() -> bool:
        rig.settle(xsub)
        xsub.send(b"end")
        while xpub.raw.poll(30):
            arrived.append(xpub.recv(PATIENCE_S))
        return b"end" in arrived

    wait_until(ended, PATIENCE_S)
    return [message for message in arrived if message != b"end"]


def sent_to_a_stalled_publisher(rig: Rig, limit: int) -> int:
    """How many of a hundred messages an XSUB with this limit keeps for an XPUB that does not read."""
    xsub, xpub = rig.ours(XSub, **{**TINY, "send_hwm_messages": limit}), rig.peer("XPUB", **TINY)
    rig.join(xsub, xpub)
    for number in numbers(100, start=5):
        xsub.send(number + LARGE)
    return len(read_to_the_end(rig, xsub, xpub))


def test_PS_64_the_outgoing_queues_have_a_limit_that_can_be_set(rig: Rig) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    assert_limits(rig, [sent_to_a_stalled_publisher(rig, limit) for limit in (1, 40)])


@NETWORK
@pytest.mark.peers("wire")
def test_PS_68_xsub_does_not_filter(rig: Rig) -> None:
    """Not used: the publisher filters, and what comes is delivered."""
    xsub = rig.ours(XSub)
    with WirePeer(xsub.bind(rig.address()), "PUB") as peer:
        peer.send_parts(b"never asked for")

        assert xsub.recv(PATIENCE_S) == b"never asked for"


def test_PS_70_xsub_changes_nothing_that_it_sends(rig: Rig) -> None:
    """Holds, but see D20: a part that begins with byte 0 or 1 is taken for a subscription."""
    xsub, xpub = rig.ours(XSub), rig.peer("XPUB")
    rig.join(xsub, xpub)

    for body in UP:
        xsub.send(body)
    xsub.send_parts([b"a", b"", UP_LARGE])

    assert receive(xpub, len(UP)) == UP
    assert xpub.recv_parts(PATIENCE_S) == [b"a", b"", UP_LARGE]


def test_PS_70_a_part_that_looks_like_a_subscription_is_taken_for_one(rig: Rig) -> None:
    """Holds, but see D20: a part that begins with byte 0 or 1 is taken for a subscription."""
    xsub, xpub = rig.ours(XSub), rig.peer("XPUB")
    rig.join(xsub, xpub)

    xsub.send_parts([b"\x01looks like one", b"user part"])

    assert xpub.recv_parts(PATIENCE_S) == [b"\x01looks like one"]
    assert xpub.recv_parts(PATIENCE_S) == [b"user part"]


def test_PS_71_xsub_sends_to_every_publisher(rig: Rig) -> None:
    xsub, xpubs = rig.ours(XSub), rig.peers(3, "XPUB")
    rig.join(xsub, *xpubs)

    for message in numbers(5, start=5):
        xsub.send(message)

    for xpub in xpubs:
        assert receive(xpub, 5) == numbers(5, start=5)


def test_PS_72_xsub_drops_for_a_full_publisher_alone(rig: Rig) -> None:
    xsub = rig.ours(XSub, **{**TINY, "send_hwm_messages": 10})
    stalled, live = rig.peer("XPUB", **TINY), rig.peer("XPUB", **TINY)
    rig.join(xsub, stalled, live)

    for number in numbers(60, start=5):
        rig.settle(xsub)
        xsub.send(number + LARGE)
        assert live.recv(PATIENCE_S) == number + LARGE

    held = read_to_the_end(rig, xsub, stalled)
    assert 10 <= len(held) < 60
    assert all(message.endswith(LARGE) for message in held)


def test_PS_73_xsub_never_waits(rig: Rig) -> None:
    xsub, stalled = rig.ours(XSub, **TINY), rig.peer("XPUB", **TINY)
    rig.join(xsub, stalled)
    start = time.monotonic()

    for _ in range(300):
        xsub.send(UP_LARGE[:32_768])
    for _ in range(3000):
        assert xsub.try_send(b"small")

    assert time.monotonic() - start < PATIENCE_S


def test_PS_74_xsub_takes_subscriptions_from_the_application(rig: Rig) -> None:
    xsub, pub = rig.ours(XSub), rig.peer("PUB")
    rig.join(xsub, pub)

    xsub.send(b"\x01raw")
    subscribe(xsub, b"call")
    synchronise(pub, xsub)

    assert heard_by(pub, xsub, [b"raw", b"call", b"neither"]) == [b"raw", b"call"]


def test_PS_75_xsub_sends_subscriptions_to_its_publishers(rig: Rig) -> None:
    xsub, xpubs = rig.ours(XSub), rig.peers(2, "XPUB")
    rig.join(xsub, *xpubs)

    xsub.subscribe(b"a\0")
    xsub.unsubscribe(b"a\0")

    for xpub in xpubs:
        assert receive(xpub, 2) == [b"\x01a\0", b"\x00a\0"]


def test_PS_76_xsub_cancels_all_when_it_closes(rig: Rig) -> None:
    xsub, xpub = rig.ours(XSub), rig.peer("XPUB")
    rig.join(xpub, xsub)
    xsub.subscribe(b"a")
    xsub.subscribe(b"b")
    assert receive(xpub, 2) == [b"\x01a", b"\x01b"]

    xsub.close()

    assert set(receive(xpub, 2)) == {b"\x00a", b"\x00b"}


def test_PS_76_xsub_cancels_all_when_it_disconnects(rig: Rig) -> None:
    xsub, xpub = rig.ours(XSub), rig.peer("XPUB")
    endpoint = rig.join(xpub, xsub)
    xsub.subscribe(b"a")
    assert xpub.recv(PATIENCE_S) == b"\x01a"

    xsub.disconnect(endpoint)

    wait_until(lambda: rig.settle(xsub) or xpub.raw.poll(0), PATIENCE_S)  # D14: it ends when its owner looks
    assert xpub.recv(PATIENCE_S) == b"\x00a"
