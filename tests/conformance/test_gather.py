# ruff: noqa: N802 (a test is named after its clause)
"""49/SCATTERGATHER, the GATHER socket type, on the emulation; a raw peer is a PUSH."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zmq

from taskmesh.sockets import Gather, NoMessageWithinTimeout, WrongDirection
from tests.conformance import oneway
from tests.conformance.rig import PATIENCE_S, Rig, numbers, receive, send_all
from tests.conformance.wire import WirePeer

NETWORK = pytest.mark.transports("tcp", "ipc")
THREADS, EACH = 4, 500
MIXED = [[b"1"], [b"a", b"b"], [b"2"], [b"", b"", b""], [b"c", b"d"], [b"3"]]
SINGLES = [b"1", b"2", b"3"]


@pytest.mark.parametrize("count", [1, 5])
def test_SG_22_any_number_of_scatters(rig: Rig, count: int) -> None:
    oneway.receives_from_any_number(rig, Gather, "SCATTER", count)


def test_SG_23_gather_only_receives(rig: Rig) -> None:
    gather = rig.ours(Gather)
    rig.join(gather, rig.peer("SCATTER"))

    with pytest.raises(WrongDirection):
        gather.send(b"x")
    with pytest.raises(zmq.ZMQError) as refusal:
        gather.raw.send(b"x", zmq.NOBLOCK)
    assert refusal.value.errno == zmq.ENOTSUP


def test_SG_24_gather_changes_nothing(rig: Rig) -> None:
    oneway.receives_bodies_unchanged(rig, Gather, "SCATTER")


def test_SG_25_a_queue_for_each_scatter(rig: Rig) -> None:
    oneway.has_a_queue_for_each_sender(rig, Gather, "SCATTER")


def test_SG_26_the_queue_exists_from_connect_on(rig: Rig) -> None:
    oneway.has_the_incoming_queue_from_connect_on(rig, Gather, "SCATTER")


@NETWORK
def test_SG_27_the_queue_outlives_a_lost_connection(rig: Rig) -> None:
    oneway.keeps_the_incoming_queue_over_a_lost_connection(rig, Gather, "SCATTER")


def test_SG_28_bound_gather_makes_the_queue_when_a_scatter_arrives(rig: Rig) -> None:
    oneway.makes_the_incoming_queue_when_a_sender_arrives(rig, Gather, "SCATTER")


def test_SG_29_bound_gather_keeps_the_queue_of_a_scatter_that_left_until_it_is_read(rig: Rig) -> None:
    """Deviates, D4: the queue is destroyed only when it is empty."""
    oneway.delivers_what_it_read_before_the_sender_left(rig, Gather, "SCATTER")


def test_SG_30_bound_gather_delivers_what_a_scatter_sent_before_it_left(rig: Rig) -> None:
    """Deviates, D4: all messages are delivered."""
    oneway.delivers_what_it_read_before_the_sender_left(rig, Gather, "SCATTER")


def test_SG_31_the_queues_have_a_limit_that_can_be_set(rig: Rig) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    oneway.has_an_incoming_limit_that_can_be_set(rig, Gather, "SCATTER")


def received_by_threads(rig: Rig, receiving: Any) -> list[list[bytes]]:
    """What each of four threads got out of one socket."""
    gather, scatter = rig.ours(Gather), rig.peer("SCATTER")
    rig.join(gather, scatter)
    with ThreadPoolExecutor(THREADS) as threads:
        futures = [threads.submit(receiving, gather) for _ in range(THREADS)]
        send_all(scatter, numbers(THREADS * EACH))
        return [future.result(PATIENCE_S) for future in futures]


def test_SG_32_gather_is_thread_safe(rig: Rig) -> None:
    gather, scatter = rig.ours(Gather), rig.peer("SCATTER")
    rig.join(gather, scatter)
    arrived: list[bytes] = []
    complete = threading.Event()

    def use_all_calls() -> None:
        while not complete.is_set():
            arrived.extend(gather.recv_many(limit=7))
            with contextlib.suppress(NoMessageWithinTimeout):
                arrived.append(gather.recv(0.02))
            assert gather.endpoint
            if len(arrived) >= THREADS * EACH:
                complete.set()

    with ThreadPoolExecutor(THREADS) as threads:
        futures = [threads.submit(use_all_calls) for _ in range(THREADS)]
        send_all(scatter, numbers(THREADS * EACH))
        for future in futures:
            future.result(PATIENCE_S)

    assert sorted(arrived) == sorted(numbers(THREADS * EACH))


def test_SG_33_several_threads_receive_and_nothing_comes_twice(rig: Rig) -> None:
    parts = received_by_threads(rig, lambda gather: receive(gather, EACH))

    assert sorted(message for mine in parts for message in mine) == sorted(numbers(THREADS * EACH))
    for mine in parts:
        assert mine == sorted(mine, key=int)


def test_SG_34_fair_queueing(rig: Rig) -> None:
    oneway.takes_from_its_senders_in_turn(rig, Gather, "SCATTER")


def test_SG_35_gather_delivers_to_the_application(rig: Rig) -> None:
    gather, scatter = rig.ours(Gather), rig.peer("SCATTER")
    rig.join(gather, scatter)

    scatter.send(b"one")
    scatter.send(b"two")

    assert gather.recv(PATIENCE_S) == b"one"
    assert next(iter(gather)) == b"two"


def test_SG_36_gather_discards_messages_of_several_parts(rig: Rig) -> None:
    gather, push = rig.ours(Gather), rig.peer("PUSH")
    rig.join(gather, push)

    for message in MIXED:
        push.send_parts(message)

    assert receive(gather, 3) == SINGLES
    assert gather.recv_many() == []


@NETWORK
@pytest.mark.peers("wire")
def test_SG_36_gather_discards_what_a_bare_connection_sends_in_parts(rig: Rig) -> None:
    gather = rig.ours(Gather)
    with WirePeer(gather.bind(rig.address()), "PUSH") as peer:
        for message in MIXED:
            peer.send_parts(*message)

        assert receive(gather, 3) == SINGLES


@NETWORK
@pytest.mark.peers("wire")
def test_SG_37_gather_keeps_a_peer_that_sends_messages_of_several_parts(rig: Rig) -> None:
    """Not used: such a peer is not cut off, its other messages count."""
    gather = rig.ours(Gather)
    with WirePeer(gather.bind(rig.address()), "PUSH") as peer:
        peer.send_parts(b"a", b"b")
        peer.send_parts(b"good")

        assert gather.recv(PATIENCE_S) == b"good"
        assert not peer.is_cut_off()
