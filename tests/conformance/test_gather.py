# ruff: noqa: N802 (a test is named after its clause)
"""49/SCATTERGATHER, the GATHER socket type, on the emulation; a raw peer is a PUSH."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from taskmesh.sockets import Gather, NoMessageWithinTimeout
from tests.conformance.rig import PATIENCE_S, Rig, numbers, receive, send_all
from tests.conformance.wire import WirePeer

NETWORK = pytest.mark.transports("tcp", "ipc")
THREADS, EACH = 4, 500
MIXED = [[b"1"], [b"a", b"b"], [b"2"], [b"", b"", b""], [b"c", b"d"], [b"3"]]
SINGLES = [b"1", b"2", b"3"]


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


def test_SG_36_gather_discards_messages_of_several_parts(rig: Rig) -> None:
    gather, push = rig.ours(Gather), rig.peer("PUSH")
    rig.join(gather, push)

    for message in MIXED:
        push.send_parts(message)

    assert receive(gather, 3) == SINGLES
    assert gather.recv_many() == []


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
