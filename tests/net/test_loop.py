"""The loop that drives machines: nobody's turn is lost, however busy another part is."""

import math
import time
from collections import deque

import pytest

from taskmesh.net.loop import FRESH, Loop

LONG_S = 10


class Part:
    """A part with a deadline, or one that always has something to do."""

    def __init__(self, *, deadline: float = math.inf, busy: bool = False) -> None:
        self.events: deque[object] = deque()
        self.deadline = deadline
        self.pending = busy
        self.turns: list[float] = []

    def turn(self, now: float) -> None:
        self.turns.append(now)


@pytest.fixture
def loop():
    return Loop()


def turn_until(loop, condition):
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end
        loop.turn()


def test_a_deadline_is_kept_beside_a_part_that_is_always_busy(loop):
    busy, other = Part(busy=True), Part(deadline=time.monotonic() + 5 * FRESH)
    loop.parts = [busy, other]
    turn_until(loop, lambda: other.turns)

    assert other.turns[0] >= other.deadline
    assert len(busy.turns) > 1


def test_so_is_one_that_comes_up_meanwhile(loop):
    busy, other = Part(busy=True), Part()
    loop.parts = [busy, other]
    loop.turn()
    other.deadline = time.monotonic()
    turn_until(loop, lambda: other.turns)


def test_a_part_that_joins_has_its_turns(loop):
    busy, other = Part(busy=True), Part(deadline=0.0)
    loop.parts = [busy]
    loop.turn()
    loop.parts.append(other)
    loop.turn()

    assert other.turns


def test_with_nothing_to_do_it_waits_for_the_deadline(loop):
    part = Part(deadline=time.monotonic() + 0.02)
    loop.parts = [part]
    turn_until(loop, lambda: part.turns)

    assert part.turns[0] >= part.deadline
