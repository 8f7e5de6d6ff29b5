"""One-way patterns, 30/PIPELINE and 49/SCATTERGATHER: the clauses that both have.

`kind` is the typed socket under test, `other` the name of the role at the other end.
"""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import Any

import pytest
import zmq

from taskmesh.sockets import Gather, NoPeerWithinTimeout, Pull, Push, Scatter, Socket, WrongDirection
from tests.conformance.coverage import each
from tests.conformance.rig import (
    BODIES,
    LARGE,
    MOST_HELD,
    PATIENCE_S,
    TINY,
    Rig,
    assert_limits,
    assert_taken_in_turn,
    fill,
    numbers,
    receive,
    send_all,
)
from tests.harness.waiting import wait_until

Sender = type[Push] | type[Scatter]
Receiver = type[Pull] | type[Gather]
ENDS = {"Push": "PULL", "Scatter": "GATHER", "Pub": "SUB", "Pull": "PUSH", "Gather": "SCATTER", "Sub": "PUB"}


@pytest.fixture
def other(kind: type[Socket]) -> str:
    """The role at the other end."""
    return ENDS[kind.__name__]


# --- both halves ---


@each(Push="PIPE-04", Scatter="SG-06", Pull="PIPE-19 PIPE-28", Gather="SG-24 SG-35")
def test_messages_arrive_unchanged(rig: Rig, kind: Sender | Receiver, other: str) -> None:
    ours, peer = rig.ours(kind), rig.peer(other)
    rig.join(ours, peer)
    sender, receiver = (ours, peer) if kind in (Push, Scatter) else (peer, ours)

    send_all(sender, BODIES)
    assert receive(receiver, len(BODIES)) == BODIES

    if kind in (Push, Pull):
        parts = [b"", LARGE, b"\0\1", b""]
        sender.send_parts(parts)
        assert receiver.recv_parts(PATIENCE_S) == parts


# --- the sending half ---


@each(Push="PIPE-03", Scatter="SG-05", Pub="PS-03")
def test_only_sends(rig: Rig, kind: Sender, other: str) -> None:
    sender = rig.ours(kind)
    rig.join(sender, rig.peer(other))

    with pytest.raises(WrongDirection):
        sender.recv()
    with pytest.raises(zmq.ZMQError) as refusal:
        sender.raw.recv(zmq.NOBLOCK)
    assert refusal.value.errno == zmq.ENOTSUP


@each(Push="PIPE-06", Scatter="SG-08")
def test_has_the_queue_from_connect_on(rig: Rig, kind: Sender, other: str) -> None:
    """Holds, but see D3: not with the option `immediate`."""
    limit = 10
    sender = rig.ours(kind, send_hwm_messages=limit)
    receiver = rig.peer(other, recv_hwm_messages=limit)
    endpoint = _endpoint_before_bind(rig, receiver)
    sender.connect(endpoint)

    for message in numbers(limit):
        assert sender.try_send(message)
    if rig.is_network:
        assert not sender.try_send(b"too many")
    rig.bind_again(receiver, endpoint)

    assert receive(receiver, limit) == numbers(limit)


def _endpoint_before_bind(rig: Rig, receiver: Any) -> str:
    """An endpoint that nobody is bound to, but that can be bound: for tcp a port that was just free."""
    if not rig.is_network:
        return rig.address()
    endpoint = str(receiver.bind(rig.address()))
    receiver.raw.unbind(endpoint)
    return endpoint


@each(Push="PIPE-07", Scatter="SG-09")
@pytest.mark.transports("tcp", "ipc")
def test_keeps_the_queue_over_a_lost_connection(rig: Rig, kind: Sender, other: str) -> None:
    """Holds, but see D1: what was already given to the kernel is lost."""
    sender, receiver = rig.ours(kind, reconnect_interval_ms=10), rig.peer(other)
    endpoint = rig.join(receiver, sender)
    sender.send(b"first", PATIENCE_S)
    assert receiver.recv(PATIENCE_S) == b"first"
    lost = rig.watch(sender, zmq.EVENT_DISCONNECTED)
    receiver.close()
    lost.wait(1)

    for message in numbers(50):
        assert sender.try_send(message)
    successor = rig.peer(other)
    rig.bind_again(successor, endpoint)

    assert receive(successor, 50) == numbers(50)


@each(Push="PIPE-09 PIPE-10", Scatter="SG-11 SG-12")
def test_destroys_the_queue_of_a_receiver_that_left(rig: Rig, kind: Sender, other: str) -> None:
    sender, first = rig.ours(kind, **TINY), rig.peer(other, **TINY)
    rig.join(sender, first)
    fill(sender.send, LARGE)
    first.close()
    wait_until(lambda: not sender.try_send(b"probe"), PATIENCE_S)
    second = rig.peer(other)
    rig.join(sender, second)

    sender.send(b"new", PATIENCE_S)

    assert second.recv(PATIENCE_S) == b"new"
    assert second.recv_many() == []


@each(Push="PIPE-11", Scatter="SG-13")
def test_has_a_limit_that_can_be_set(rig: Rig, kind: Sender, other: str) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    accepted = []
    for limit in (1, 40):
        options = {**TINY, "send_hwm_messages": limit}
        sender, receiver = rig.ours(kind, **options), rig.peer(other, **TINY)
        rig.join(sender, receiver)
        accepted.append(fill(sender.send, LARGE, at_least=limit))

    assert_limits(rig, accepted, least=40)


@each(Push="PIPE-05 PIPE-12", Scatter="SG-07 SG-16")
def test_counts_a_receiver_as_available_only_while_it_has_room(rig: Rig, kind: Sender, other: str) -> None:
    sender = rig.ours(kind, **TINY)
    stalled, *live = rig.peers(3, other, **TINY)
    rig.join(sender, stalled, *live)
    total, arrived = 60, [0, 0]

    def take() -> None:
        for index, receiver in enumerate(live):
            arrived[index] += len(receiver.recv_many())

    for _ in range(total):
        sender.send(LARGE, PATIENCE_S)  # would time out here if all had one queue, and it were full
        take()
    held = 0

    def all_there() -> bool:
        nonlocal held
        take()
        held += len(stalled.recv_many())
        return sum(arrived) + held == total

    wait_until(all_there, PATIENCE_S)
    assert 1 <= held <= MOST_HELD
    assert min(arrived) >= (total - MOST_HELD) // 3


@each(Push="PIPE-02 PIPE-13 TBL-PUSH", Scatter="SG-04 SG-17")
@pytest.mark.parametrize("count", [5])
def test_goes_round_the_receivers_in_turn(rig: Rig, kind: Sender, other: str, count: int) -> None:
    sender, receivers = rig.ours(kind), rig.peers(count, other)
    rig.join(sender, *receivers)

    send_all(sender, numbers(4 * count))

    for receiver in receivers:
        mine = [int(message) for message in receive(receiver, 4)]
        assert [later - earlier for earlier, later in pairwise(mine)] == [count] * 3


@pytest.mark.transports("tcp")
@pytest.mark.peers("raw")
@each(Push="PIPE-02")
def test_goes_round_hundreds(rig: Rig, kind: Sender, other: str) -> None:
    test_goes_round_the_receivers_in_turn(rig, kind, other, 200)


@each(Push="PIPE-08 PIPE-14 PIPE-15", Scatter="SG-10 SG-18 SG-19")
def test_waits_or_fails_until_a_receiver_arrives(rig: Rig, kind: Sender, other: str) -> None:
    sender, receiver = rig.ours(kind), rig.peer(other)
    sender.bind(rig.address())

    assert not any(sender.try_send(message) for message in numbers(10))
    for timeout in (0.1, 0):
        start = time.monotonic()
        with pytest.raises(NoPeerWithinTimeout, match="nothing was queued"):
            sender.send(b"x", timeout)
        assert timeout <= time.monotonic() - start < timeout + 2
    waiting = threading.Thread(target=sender.send, args=(b"waited",))
    endpoint = sender.endpoint
    waiting.start()
    receiver.connect(endpoint)
    assert receiver.recv(PATIENCE_S) == b"waited"
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert sender.try_send(b"now")
    assert receiver.recv(PATIENCE_S) == b"now"
    assert receiver.recv_many() == []


@each(Push="PIPE-16", Scatter="SG-20")
def test_discards_nothing_that_it_cannot_queue(rig: Rig, kind: Sender, other: str) -> None:
    sender, receiver = rig.ours(kind, **TINY), rig.peer(other, **TINY)
    rig.join(sender, receiver)
    accepted, received = [], []
    body = LARGE[:65_000]

    for message in numbers(100):
        if sender.try_send(message + body):
            accepted.append(message)
        elif len(received) < len(accepted):  # a slow reader
            received.append(receiver.recv(PATIENCE_S))
    while len(received) < len(accepted):
        received.append(receiver.recv(PATIENCE_S))

    assert [message.removesuffix(body) for message in received] == accepted
    assert 0 < len(accepted) < 100
    assert receiver.recv_many() == []


# --- the receiving half ---


@each(Pull="PIPE-18", Gather="SG-23", Sub="PS-42")
def test_only_receives(rig: Rig, kind: Receiver, other: str) -> None:
    receiver = rig.ours(kind)
    rig.join(receiver, rig.peer(other))

    with pytest.raises(WrongDirection):
        receiver.send(b"x")
    with pytest.raises(zmq.ZMQError) as refusal:
        receiver.raw.send(b"x", zmq.NOBLOCK)
    assert refusal.value.errno == zmq.ENOTSUP


@each(Pull="PIPE-20", Gather="SG-25")
def test_has_a_queue_for_each_sender(rig: Rig, kind: Receiver, other: str) -> None:
    receiver = rig.ours(kind, recv_hwm_messages=5)
    greedy, modest = rig.peer(other, send_hwm_messages=1), rig.peer(other, send_hwm_messages=1)
    rig.join(receiver, greedy, modest)
    fill(greedy.send, LARGE, at_least=5)  # its queue here is full

    modest.send(b"modest")
    rig.leave(receiver, modest)  # so that it has surely arrived

    assert b"modest" in receive(receiver, 2)


@each(Pull="PIPE-21", Gather="SG-26")
def test_has_the_incoming_queue_from_connect_on(rig: Rig, kind: Receiver, other: str) -> None:
    receiver, sender = rig.ours(kind, reconnect_interval_ms=10), rig.peer(other)
    endpoint = _endpoint_before_bind(rig, sender)
    receiver.connect(endpoint)

    rig.bind_again(sender, endpoint)
    send_all(sender, numbers(20))

    assert receive(receiver, 20) == numbers(20)


@each(Pull="PIPE-22", Gather="SG-27")
@pytest.mark.transports("tcp", "ipc")
def test_keeps_the_incoming_queue_over_a_lost_connection(rig: Rig, kind: Receiver, other: str) -> None:
    receiver, sender = rig.ours(kind, reconnect_interval_ms=10), rig.peer(other)
    endpoint = rig.join(sender, receiver)
    send_all(sender, numbers(20))
    rig.leave(receiver, sender)
    successor = rig.peer(other)
    rig.bind_again(successor, endpoint)
    successor.send(b"after", PATIENCE_S)

    assert receive(receiver, 21) == [*numbers(20), b"after"]


@each(Pull="PIPE-23", Gather="SG-28")
def test_makes_the_incoming_queue_when_a_sender_arrives(rig: Rig, kind: Receiver, other: str) -> None:
    receiver, early, late = rig.ours(kind), rig.peer(other), rig.peer(other)
    rig.join(receiver, early)
    early.send(b"early")
    assert receiver.recv(PATIENCE_S) == b"early"

    rig.join(receiver, late)
    late.send(b"late")

    assert receiver.recv(PATIENCE_S) == b"late"


@each(Pull="PIPE-24 PIPE-25", Gather="SG-29 SG-30")
def test_delivers_what_it_read_before_the_sender_left(rig: Rig, kind: Receiver, other: str) -> None:
    """Deviates, D4: the queue is destroyed only when it is empty."""
    receiver, sender = rig.ours(kind), rig.peer(other)
    rig.join(receiver, sender)
    send_all(sender, numbers(100))

    rig.leave(receiver, sender)

    assert receive(receiver, 100) == numbers(100)
    assert receiver.recv_many() == []


@each(Pull="PIPE-26", Gather="SG-31")
def test_has_an_incoming_limit_that_can_be_set(rig: Rig, kind: Receiver, other: str) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    accepted = []
    for limit in (1, 40):
        receiver = rig.ours(kind, **{**TINY, "recv_hwm_messages": limit})
        sender = rig.peer(other, **TINY)
        rig.join(receiver, sender)
        accepted.append(fill(sender.send, LARGE, at_least=limit))

    assert_limits(rig, accepted, least=40)


@each(Pull="PIPE-17 PIPE-27 TBL-PULL", Gather="SG-22 SG-34")
@pytest.mark.parametrize("count", [5])
def test_takes_from_its_senders_in_turn(rig: Rig, kind: Receiver, other: str, count: int) -> None:
    receiver, senders = rig.ours(kind), rig.peers(count, other)
    rig.join(receiver, *senders)
    for name, sender in enumerate(senders):
        send_all(sender, [b"%d" % name] * (104 if name == 0 else 4))
    rig.leave(receiver, *senders)

    assert_taken_in_turn(receive(receiver, 100 + 4 * count), count)


@pytest.mark.transports("tcp")
@pytest.mark.peers("raw")
@each(Pull="PIPE-17")
def test_takes_from_hundreds(rig: Rig, kind: Receiver, other: str) -> None:
    test_takes_from_its_senders_in_turn(rig, kind, other, 200)
