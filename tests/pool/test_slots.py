"""How a pool's loop waits for a slot's answer: it polls for a moment where that has paid before."""

import os

import pytest

from taskmesh.pool.machine.slots import SlotState
from taskmesh.pool.slots import spin_wait as module
from taskmesh.pool.slots.spin_wait import MIN_SHORT_WAITS, SHORT_ANSWER, SlotWait
from taskmesh.system.loop import Loop
from tests.core.rig import PoolRig


@pytest.fixture
def pool():
    return PoolRig().pool


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def clock(monkeypatch):
    """The module's clock, to be set."""

    class Clock:
        now = 1.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock.monotonic)
    return clock


@pytest.fixture
def answers(pool, pipe, clock):
    """With a slot at a task, and as many short waits as make a habit."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("with one CPU nobody polls")
    answers = SlotWait(pool, pipe[0])
    pool.slots[0].state, pool.slots[0].count = SlotState.UP, 1
    for _ in range(MIN_SHORT_WAITS):
        assert not answers.came()
        clock.now += SHORT_ANSWER / 2
        answers.awake()
    return answers


def test_an_answer_that_comes_while_it_is_polled_for_is_not_slept_for(answers, pipe):
    os.write(pipe[1], b"x")

    assert answers.came()


def test_one_that_does_not_come_is(answers):
    assert not answers.came()


def test_with_nothing_in_the_slots_it_is_not_looked_for(answers, pool, pipe):
    os.write(pipe[1], b"x")
    pool.slots[0].count = 0

    assert not answers.came()


def test_nor_where_several_tasks_are_under_way(answers, pool, pipe):
    os.write(pipe[1], b"x")
    pool.slots[1].count = 1
    assert not answers.came()

    pool.slots[1].count, pool.slots[0].count = 0, 2
    assert not answers.came()


def test_where_answers_are_long_in_coming_it_is_not_polled_for(pool, pipe, clock):
    answers = SlotWait(pool, pipe[0])
    pool.slots[0].count = 1
    os.write(pipe[1], b"x")
    for _ in range(3 * MIN_SHORT_WAITS):
        assert not answers.came()
        clock.now += 2 * SHORT_ANSWER
        answers.awake()


def test_a_wait_for_something_else_counts_for_nothing(answers, pool, pipe, clock):
    pool.slots[0].count = 0
    assert not answers.came()
    clock.now += 10 * SHORT_ANSWER
    answers.awake()
    pool.slots[0].count = 1
    os.write(pipe[1], b"x")

    assert answers.came()


def test_a_loop_asks_before_it_sleeps_and_tells_when_it_has():
    class Told:
        def __init__(self, *, there):
            self.there = there
            self.calls = []

        def came(self):
            self.calls.append("came")
            return self.there

        def awake(self):
            self.calls.append("awake")

    waits = []

    class Poller:
        def poll(self, timeout=None, /):
            waits.append(timeout)
            return []

    class Part:
        events = ()
        deadline = float("inf")
        pending = False

    loop = Loop(Poller())
    loop.parts = [Part()]
    for loop.busy_wait in (Told(there=True), Told(there=False)):
        loop.turn()
        assert loop.busy_wait.calls == ["came", "awake"]

    assert waits[0] == 0
    assert waits[1] > 0
