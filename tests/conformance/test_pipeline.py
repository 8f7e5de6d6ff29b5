# ruff: noqa: N802 (a test is named after its clause)
"""30/PIPELINE: the clauses that SCATTER and GATHER do not have, or not so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from taskmesh.sockets import NoPeerWithinTimeout, Push
from tests.conformance.rig import PATIENCE_S, Rig


def test_PIPE_06_immediate_takes_the_queue_away_until_the_handshake(rig: Rig) -> None:
    """Holds, but see D3: not with the option `immediate`."""
    push = rig.ours(Push, immediate=True)
    pull = rig.peer("PULL")
    endpoint = pull.bind(rig.address())
    pull.raw.unbind(endpoint)
    push.connect(endpoint)

    assert push.try_send(b"x") is not rig.is_network


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
