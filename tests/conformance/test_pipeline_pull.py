# ruff: noqa: N802 (a test is named after its clause)
"""30/PIPELINE, the PULL socket type."""

from __future__ import annotations

import pytest
import zmq

from taskmesh.sockets import Pull, WrongDirection
from tests.conformance import oneway
from tests.conformance.rig import PATIENCE_S, Rig

NETWORK = pytest.mark.transports("tcp", "ipc")


@pytest.mark.parametrize("count", [1, 5])
def test_PIPE_17_any_number_of_pushes(rig: Rig, count: int) -> None:
    oneway.receives_from_any_number(rig, Pull, "PUSH", count)


@pytest.mark.transports("tcp")
@pytest.mark.peers("raw")
def test_PIPE_17_hundreds_of_pushes(rig: Rig) -> None:
    oneway.receives_from_any_number(rig, Pull, "PUSH", 200)


def test_PIPE_18_pull_only_receives(rig: Rig) -> None:
    pull = rig.ours(Pull)
    rig.join(pull, rig.peer("PUSH"))

    with pytest.raises(WrongDirection):
        pull.send(b"x")
    with pytest.raises(zmq.ZMQError) as refusal:
        pull.raw.send(b"x", zmq.NOBLOCK)
    assert refusal.value.errno == zmq.ENOTSUP


def test_PIPE_19_pull_changes_nothing(rig: Rig) -> None:
    oneway.receives_bodies_unchanged(rig, Pull, "PUSH")


def test_PIPE_19_pull_changes_no_part_of_a_message(rig: Rig) -> None:
    pull, push = rig.ours(Pull), rig.peer("PUSH")
    rig.join(pull, push)

    push.send_parts([b"", oneway.LARGE, b"\0\1", b""])

    assert pull.recv_parts(PATIENCE_S) == [b"", oneway.LARGE, b"\0\1", b""]


def test_PIPE_20_a_queue_for_each_push(rig: Rig) -> None:
    oneway.has_a_queue_for_each_sender(rig, Pull, "PUSH")


def test_PIPE_21_the_queue_exists_from_connect_on(rig: Rig) -> None:
    oneway.has_the_incoming_queue_from_connect_on(rig, Pull, "PUSH")


@NETWORK
def test_PIPE_22_the_queue_outlives_a_lost_connection(rig: Rig) -> None:
    oneway.keeps_the_incoming_queue_over_a_lost_connection(rig, Pull, "PUSH")


def test_PIPE_23_bound_pull_makes_the_queue_when_a_push_arrives(rig: Rig) -> None:
    oneway.makes_the_incoming_queue_when_a_sender_arrives(rig, Pull, "PUSH")


def test_PIPE_24_bound_pull_keeps_the_queue_of_a_push_that_left_until_it_is_read(rig: Rig) -> None:
    """Deviates, D4: the queue is destroyed only when it is empty."""
    oneway.delivers_what_it_read_before_the_sender_left(rig, Pull, "PUSH")


def test_PIPE_25_bound_pull_delivers_what_a_push_sent_before_it_left(rig: Rig) -> None:
    """Deviates, D4: all messages are delivered."""
    oneway.delivers_what_it_read_before_the_sender_left(rig, Pull, "PUSH")


def test_PIPE_26_the_queues_have_a_limit_that_can_be_set(rig: Rig) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    oneway.has_an_incoming_limit_that_can_be_set(rig, Pull, "PUSH")


def test_PIPE_27_fair_queueing(rig: Rig) -> None:
    oneway.takes_from_its_senders_in_turn(rig, Pull, "PUSH")


def test_PIPE_28_pull_delivers_to_the_application(rig: Rig) -> None:
    pull, push = rig.ours(Pull), rig.peer("PUSH")
    rig.join(pull, push)

    push.send(b"one")
    push.send(b"two")

    assert pull.recv(PATIENCE_S) == b"one"
    assert next(iter(pull)) == b"two"
