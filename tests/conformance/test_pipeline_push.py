# ruff: noqa: N802 (a test is named after its clause)
"""30/PIPELINE, the PUSH socket type."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import zmq

from taskmesh.sockets import NoPeerWithinTimeout, Push, WrongDirection
from tests.conformance import oneway
from tests.conformance.clauses import CLAUSES
from tests.conformance.coverage import clauses_without_a_test
from tests.conformance.rig import PATIENCE_S, Rig

NETWORK = pytest.mark.transports("tcp", "ipc")


def test_PIPE_01_every_clause_of_the_document_has_a_test() -> None:
    assert clauses_without_a_test("PIPE") == []
    assert sum(clause.family == "PIPE" for clause in CLAUSES) == 28


@pytest.mark.parametrize("count", [1, 5])
def test_PIPE_02_any_number_of_pulls(rig: Rig, count: int) -> None:
    oneway.sends_to_any_number(rig, Push, "PULL", count)


@pytest.mark.transports("tcp")
@pytest.mark.peers("raw")
def test_PIPE_02_hundreds_of_pulls(rig: Rig) -> None:
    oneway.sends_to_any_number(rig, Push, "PULL", 200)


def test_PIPE_03_push_only_sends(rig: Rig) -> None:
    push = rig.ours(Push)
    rig.join(push, rig.peer("PULL"))

    with pytest.raises(WrongDirection):
        push.recv()
    with pytest.raises(zmq.ZMQError) as refusal:
        push.raw.recv(zmq.NOBLOCK)
    assert refusal.value.errno == zmq.ENOTSUP


def test_PIPE_04_push_changes_nothing(rig: Rig) -> None:
    oneway.sends_bodies_unchanged(rig, Push, "PULL")


def test_PIPE_04_push_changes_no_part_of_a_message(rig: Rig) -> None:
    push, pull = rig.ours(Push), rig.peer("PULL")
    rig.join(push, pull)

    push.send_parts([b"", oneway.LARGE, b"\0\1", b""])

    assert pull.recv_parts(PATIENCE_S) == [b"", oneway.LARGE, b"\0\1", b""]


def test_PIPE_05_a_queue_for_each_pull(rig: Rig) -> None:
    oneway.has_a_queue_for_each_receiver(rig, Push, "PULL")


def test_PIPE_06_the_queue_exists_from_connect_on(rig: Rig) -> None:
    """Holds, but see D3: not with the option `immediate`."""
    oneway.has_the_queue_from_connect_on(rig, Push, "PULL")


def test_PIPE_06_immediate_takes_the_queue_away_until_the_handshake(rig: Rig) -> None:
    """Holds, but see D3: not with the option `immediate`."""
    push = rig.ours(Push, immediate=True)
    pull = rig.peer("PULL")
    endpoint = pull.bind(rig.address())
    pull.raw.unbind(endpoint)
    push.connect(endpoint)

    assert push.try_send(b"x") is not rig.is_network


@NETWORK
def test_PIPE_07_the_queue_outlives_a_lost_connection(rig: Rig) -> None:
    """Holds, but see D1: what was already given to the kernel is lost."""
    oneway.keeps_the_queue_over_a_lost_connection(rig, Push, "PULL")


def test_PIPE_08_bound_push_makes_the_queue_when_a_pull_arrives(rig: Rig) -> None:
    oneway.makes_the_queue_when_a_receiver_arrives(rig, Push, "PULL")


def test_PIPE_09_bound_push_destroys_the_queue_when_the_pull_leaves(rig: Rig) -> None:
    oneway.destroys_the_queue_when_the_receiver_leaves(rig, Push, "PULL")


def test_PIPE_10_bound_push_discards_what_was_queued_for_a_pull_that_left(rig: Rig) -> None:
    oneway.discards_what_was_queued_for_a_receiver_that_left(rig, Push, "PULL")


def test_PIPE_11_the_queues_have_a_limit_that_can_be_set(rig: Rig) -> None:
    """Holds, but see D2: kernel buffers come on top."""
    oneway.has_a_limit_that_can_be_set(rig, Push, "PULL")


def test_PIPE_12_a_pull_is_available_only_while_its_queue_has_room(rig: Rig) -> None:
    oneway.takes_a_receiver_as_available_only_while_its_queue_has_room(rig, Push, "PULL")


def test_PIPE_13_round_robin_over_available_peers(rig: Rig) -> None:
    oneway.goes_round_the_receivers_in_turn(rig, Push, "PULL")


def test_PIPE_14_waits_or_fails_without_an_available_pull(rig: Rig) -> None:
    oneway.waits_or_fails_without_a_receiver(rig, Push, "PULL")


def test_PIPE_15_accepts_nothing_without_an_available_pull(rig: Rig) -> None:
    oneway.accepts_nothing_without_a_receiver(rig, Push, "PULL")


def test_PIPE_16_discards_nothing_that_it_cannot_queue(rig: Rig) -> None:
    """Holds, but see D6: a message is lost when its peer leaves between two of its parts."""
    oneway.discards_nothing_that_it_cannot_queue(rig, Push, "PULL")


class Interrupted(list[bytes]):
    """The parts of a message; something happens between the first two, the first time they are read."""

    def __init__(self, parts: list[bytes], happening: Callable[[], None]) -> None:
        super().__init__(parts)
        self._happenings = [happening]

    def __iter__(self) -> Iterator[bytes]:
        for index, part in enumerate(super().__iter__()):
            if index == 1 and self._happenings:
                self._happenings.pop()()
            yield part


@pytest.mark.parametrize("others", [0, 1])
def test_PIPE_16_a_message_whose_pull_leaves_between_its_parts_never_arrives_in_part(
    rig: Rig, others: int
) -> None:
    """Holds, but see D6: such a message may be lost with the queue that its first parts were in."""
    push, first, survivors = rig.ours(Push), rig.peer("PULL"), rig.peers(others, "PULL")
    rig.join(push, first, *survivors)
    message = [b"a", b"b", b"c"]

    with contextlib.suppress(NoPeerWithinTimeout):
        push.send_parts(Interrupted(message, lambda: rig.lose(push, first)), timeout=0.05)
    successor = rig.peer("PULL")
    rig.join(push, successor)
    arrived = []
    for _ in range(others + 1):
        push.send(b"next", timeout=PATIENCE_S)
    for pull in (*survivors, successor):
        arrived.append(pull.recv_parts(PATIENCE_S))
        if arrived[-1] == message:
            arrived.append(pull.recv_parts(PATIENCE_S))

    assert [parts for parts in arrived if parts != message] == [[b"next"]] * (others + 1)
    assert arrived.count(message) <= 1
