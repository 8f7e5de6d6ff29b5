"""The loop that drives machines: nobody's turn is lost, however busy another part is."""

import math
import time
from collections import deque

import pytest

from taskmesh.system.loop import FRESH, MAX_ROUNDS, Loop

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
    loop = Loop(idle=lambda: 0.0 if any(part.pending for part in loop.parts) else math.inf)
    return loop


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


def test_a_timer_has_its_turns_beside_a_part_that_is_always_busy(loop):
    class Timer:
        deadline = time.monotonic() + 5 * FRESH
        turns = 0

        def turn(self, now: float) -> None:
            self.turns += 1
            self.deadline = math.inf

    busy, timer = Part(busy=True), Timer()
    loop.parts, loop.timers = [busy], [timer]
    turn_until(loop, lambda: timer.turns)

    assert busy.turns
    assert timer.turns == 1


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


def test_a_loop_that_never_waits_asks_for_deadlines_once_a_millisecond_at_most(loop):
    asked = 0

    class Asked(Part):
        @property
        def deadline(self):
            nonlocal asked
            asked += 1
            return math.inf

        @deadline.setter
        def deadline(self, value):
            pass

    loop.parts = [Asked(busy=True)]
    began = time.monotonic()
    for _ in range(1000):
        loop.turn()

    assert 0 < asked <= 1 + (time.monotonic() - began) / FRESH


def test_a_deadline_is_kept_beside_events_that_never_end(loop):
    class Restless(Part):
        def turn(self, now):
            super().turn(now)
            self.events.append(None)

    other = Part(deadline=time.monotonic() + 2 * FRESH)
    loop.parts = [Restless(deadline=0.0), other]
    turn_until(loop, lambda: other.turns)


def test_events_that_are_left_over_are_not_waited_beside():
    waits = []

    class Poller:
        def poll(self, timeout=None, /):
            waits.append(timeout)
            return []

    class Restless(Part):
        def turn(self, now):
            super().turn(now)
            self.events.append(None)

    loop = Loop(Poller())
    part = Restless(deadline=0.0)
    loop.parts = [part]
    loop.turn()
    part.deadline = math.inf
    loop.turn()

    assert waits == [0, 0]
    assert len(part.turns) > 2 * MAX_ROUNDS
