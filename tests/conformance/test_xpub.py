# ruff: noqa: N802 (a test is named after its clause)
"""29/PUBSUB, the XPUB socket type."""

from __future__ import annotations

from itertools import pairwise

import pytest

from taskmesh.sockets import Cancelled, Subscribed, UserMessage, XPub
from tests.conformance.rig import LARGE, PATIENCE_S, TINY, Rig, assert_limits, numbers
from tests.conformance.synchrony import sent_upstream, subscribe, synchronise
from tests.conformance.wire import WirePeer

NETWORK = pytest.mark.transports("tcp", "ipc")


@pytest.mark.clauses("PS-36")
def test_PS_21_xpub_sends_and_receives(rig: Rig) -> None:
    xpub, xsub = rig.ours(XPub), rig.peer("XSUB")
    rig.join(xpub, xsub)
    xsub.subscribe(b"")
    assert xpub.recv_event(PATIENCE_S) == Subscribed(b"")

    xpub.send(b"down")
    xsub.send(b"up")
    xsub.send_parts([b"a", b"", b"c"])

    assert xsub.recv(PATIENCE_S) == b"down"
    assert xpub.recv_event(PATIENCE_S) == UserMessage((b"up",))
    assert xpub.recv_event(PATIENCE_S) == UserMessage((b"a", b"", b"c"))


def test_PS_22_the_two_queues_of_a_subscriber_are_independent(rig: Rig) -> None:
    xpub, xsub = rig.ours(XPub, **TINY), rig.peer("XSUB", **TINY)
    rig.join(xpub, xsub)
    subscribe(xsub, b"")
    synchronise(xpub, xsub)
    xpub.recv_events_many()
    for _ in range(30):
        xpub.send(LARGE)  # the outgoing queue is full, and stays so

    xsub.send(b"up")

    assert xpub.recv_event(PATIENCE_S) == UserMessage((b"up",))


@NETWORK
@pytest.mark.peers("wire")
def test_PS_28_the_incoming_queues_have_a_limit_that_can_be_set(rig: Rig) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    accepted = []
    for limit in (1, 40):
        xpub = rig.ours(XPub, **{**TINY, "recv_hwm_messages": limit})
        with WirePeer(xpub.bind(rig.address()), "XSUB") as peer:
            accepted.append(peer.fill(LARGE, at_least=limit // 2))

    assert_limits(rig, accepted)


@pytest.mark.transports("inproc")
def test_PS_28_the_incoming_queues_have_a_limit_that_can_be_set_over_inproc(rig: Rig) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    accepted = []
    for limit in (1, 40):
        xpub, xsub = rig.ours(XPub, **{**TINY, "recv_hwm_messages": limit}), rig.peer("XSUB", **TINY)
        rig.join(xpub, xsub)
        for number in numbers(100):
            xsub.send(number)
        accepted.append(len(sent_upstream(xsub, xpub)))

    assert_limits(rig, accepted)


def test_PS_35_xpub_takes_all_of_a_subscriber_at_once(rig: Rig) -> None:
    """Deviates, D17: not turn by turn."""
    xpub, xsubs = rig.ours(XPub), rig.peers(3, "XSUB")
    rig.join(xpub, *xsubs)
    for name, xsub in enumerate(xsubs):
        for _ in range(20):
            xsub.send(b"%d" % (name + 5))
    rig.leave(xpub, *xsubs)

    names = [event.parts[0] for event in xpub.recv_events_many() if isinstance(event, UserMessage)]

    assert sorted(names) == sorted(numbers(3, start=5) * 20)
    changes = sum(earlier != later for earlier, later in pairwise(names))
    assert changes == 2  # turn by turn it would be 59


def test_PS_38_xpub_shows_subscriptions_and_cancellations(rig: Rig) -> None:
    xpub, sub = rig.ours(XPub), rig.peer("SUB")
    rig.join(xpub, sub)

    sub.subscribe(b"a\0\xff")
    assert xpub.recv_event(PATIENCE_S) == Subscribed(b"a\0\xff")
    sub.unsubscribe(b"a\0\xff")
    assert xpub.recv_event(PATIENCE_S) == Cancelled(b"a\0\xff")
    sub.subscribe(b"")
    assert xpub.recv_parts(PATIENCE_S) == [b"\x01"]


@pytest.mark.parametrize(("verbose", "told"), [(False, 1), (True, 3)])
def test_PS_39_equal_subscriptions_are_shown_as_one_or_each(rig: Rig, verbose: bool, told: int) -> None:
    xpub, subs = rig.ours(XPub, xpub_verbose=verbose), rig.peers(3, "SUB")
    for sub in subs:
        subscribe(sub, b"same")
    rig.join(xpub, *subs)
    synchronise(xpub, *subs)

    assert xpub.recv_events_many().count(Subscribed(b"same")) == told
    for sub in subs[:2]:
        sub.unsubscribe(b"same")
    synchronise(xpub, *subs)
    assert xpub.recv_events_many() == []
    subs[2].unsubscribe(b"same")
    assert xpub.recv_event(PATIENCE_S) == Cancelled(b"same")


def test_PS_40_bound_xpub_shows_the_cancellation_of_a_subscriber_that_closed(rig: Rig) -> None:
    """Holds, but see D18: not for a connecting XPUB."""
    xpub, sub = rig.ours(XPub), rig.peer("SUB")
    sub.subscribe(b"mine")
    rig.join(xpub, sub)
    assert xpub.recv_event(PATIENCE_S) == Subscribed(b"mine")

    sub.close()

    assert xpub.recv_event(PATIENCE_S) == Cancelled(b"mine")


@NETWORK
def test_PS_40_connecting_xpub_shows_no_cancellation(rig: Rig) -> None:
    """Holds, but see D18: not for a connecting XPUB."""
    xpub, sub = rig.ours(XPub, reconnect_interval_ms=10), rig.peer("SUB")
    sub.subscribe(b"mine")
    rig.join(sub, xpub)
    assert xpub.recv_event(PATIENCE_S) == Subscribed(b"mine")

    rig.lose(xpub, sub)

    assert xpub.recv_events_many() == []
