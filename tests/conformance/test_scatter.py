# ruff: noqa: N802 (a test is named after its clause)
"""49/SCATTERGATHER, the SCATTER socket type and what holds for the family.

Run on the emulation over PUSH and PULL, since the wheel's libzmq has no drafts; a raw peer is a PULL.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskmesh.sockets import Gather, MultipartRefused, Scatter
from tests.conformance.rig import PATIENCE_S, Rig, numbers, receive
from tests.harness.waiting import wait_until

THREADS, EACH = 4, 500


def sent_by_threads(rig: Rig) -> tuple[list[bytes], list[bytes]]:
    """What four threads sent through one socket, and what arrived, in order of arrival."""
    scatter, gather = rig.ours(Scatter), rig.peer("GATHER")
    rig.join(scatter, gather)

    def send(thread: int) -> None:
        for number in range(EACH):
            scatter.send(b"%d %d %s" % (thread, number, b"x" * (number % 200)), PATIENCE_S)

    with ThreadPoolExecutor(THREADS) as threads:
        sending = [threads.submit(send, thread) for thread in range(THREADS)]
        arrived = receive(gather, THREADS * EACH)
        for future in sending:
            future.result(PATIENCE_S)
    sent = [b"%d %d %s" % (t, n, b"x" * (n % 200)) for t in range(THREADS) for n in range(EACH)]
    return sent, arrived


def test_SG_02_one_call_sends_a_whole_message(rig: Rig) -> None:
    sent, arrived = sent_by_threads(rig)

    assert sorted(arrived) == sorted(sent)


def test_SG_03_no_message_of_several_parts(rig: Rig) -> None:
    scatter, gather = rig.ours(Scatter), rig.ours(Gather)
    rig.join(scatter, gather)

    for refused in (lambda: scatter.send_parts([b"a", b"b"]), gather.recv_parts, gather.recv_parts_many):
        with pytest.raises(MultipartRefused):
            refused()
    with pytest.raises(TypeError):
        scatter.send("text")  # type: ignore[arg-type]
    scatter.send(b"one part", PATIENCE_S)
    assert gather.recv(PATIENCE_S) == b"one part"


def test_SG_14_scatter_is_thread_safe(rig: Rig) -> None:
    scatter, gather = rig.ours(Scatter), rig.peer("GATHER")
    stop = threading.Event()
    bound = [scatter.bind(rig.address())]

    def disturb() -> None:
        while not stop.is_set():
            extra = scatter.bind(rig.address())
            assert scatter.fileno() >= 0
            scatter.unbind(extra)

    with ThreadPoolExecutor(THREADS) as threads:
        disturbing = threads.submit(disturb)
        sending = [
            threads.submit(lambda: [scatter.send(message, PATIENCE_S) for message in numbers(EACH)])
            for _ in range(THREADS - 1)
        ]
        gather.connect(bound[0])
        arrived = receive(gather, EACH * (THREADS - 1))
        stop.set()
        disturbing.result(PATIENCE_S)
        for future in sending:
            future.result(PATIENCE_S)

    assert sorted(arrived) == sorted(numbers(EACH) * (THREADS - 1))


def test_SG_15_several_threads_send_and_each_keeps_its_order(rig: Rig) -> None:
    _, arrived = sent_by_threads(rig)

    for thread in range(THREADS):
        mine = [int(message.split()[1]) for message in arrived if message.startswith(b"%d " % thread)]
        assert mine == list(range(EACH))


def test_SG_18_a_thread_that_waits_keeps_nobody_from_the_socket(rig: Rig) -> None:
    scatter, gather = rig.ours(Scatter), rig.peer("GATHER")
    waiting = threading.Thread(target=scatter.send, args=(b"patient", PATIENCE_S))
    waiting.start()
    wait_until(lambda: scatter._line, PATIENCE_S)

    assert not scatter.try_send(b"impatient")
    rig.join(scatter, gather)

    assert gather.recv(PATIENCE_S) == b"patient"
    waiting.join(PATIENCE_S)


def test_SG_21_scatter_sends_no_message_of_several_parts(rig: Rig) -> None:
    scatter, gather = rig.ours(Scatter), rig.peer("GATHER")
    rig.join(scatter, gather)

    for refused in (
        lambda: scatter.send_parts([b"a", b"b"]),
        lambda: scatter.try_send_parts([b"a", b"b"]),
        lambda: scatter.send([b"a", b"b"]),
        lambda: scatter.try_send([b"a", b"b"]),
    ):
        with pytest.raises(MultipartRefused):
            refused()
    scatter.send(b"still works", PATIENCE_S)

    assert gather.recv(PATIENCE_S) == b"still works"
