"""When a slot stays awake between two tasks, and when it goes to sleep."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from taskmesh.pool.slots.spin_wait import COST, LONGEST, MAX_CREDIT, MIN_SHORT_WAITS, PENALTY, SHORT, SpinWait


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """What is waited for, and the other end of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def accustomed(fd: int, waits: int = MIN_SHORT_WAITS) -> SpinWait:
    """One that has seen so many short waits after lone tasks."""
    polling = SpinWait(fd, cpus=2)
    for _ in range(waits):
        polling.waited(SHORT)
    return polling


def test_polls_once_lone_tasks_follow_each_other_quickly(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    polling = accustomed(ours.fileno(), MIN_SHORT_WAITS - 1)
    assert not polling.pays
    polling.waited(SHORT)
    assert polling.pays
    theirs.send(b"a task")
    assert polling.wait()


def test_slow_waits_make_no_habit(ends: tuple[socket.socket, socket.socket]) -> None:
    polling = SpinWait(ends[0].fileno(), cpus=2)
    for _ in range(10):
        polling.waited(SHORT)
        polling.waited(2 * SHORT)
        assert not polling.pays


def test_a_single_cpu_is_left_to_those_who_answer(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    polling = SpinWait(ours.fileno(), cpus=1)
    for _ in range(2 * MAX_CREDIT):
        polling.waited(0.0)
    theirs.send(b"a task")
    assert not polling.pays
    assert not polling.wait()


def test_less_than_two_cpus_worth_of_time_is_left_to_the_tasks(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    polling = SpinWait(ends[0].fileno(), cpus=1.5)
    for _ in range(2 * MAX_CREDIT):
        polling.waited(0.0)
    assert not polling.pays


def test_polling_in_vain_uses_trust_up(ends: tuple[socket.socket, socket.socket]) -> None:
    polling = accustomed(ends[0].fileno(), 2 * MAX_CREDIT)
    vain = 0
    while polling.pays:
        assert not polling.wait()
        vain += 1
    assert vain == MAX_CREDIT // COST + 1
    for _ in range(PENALTY - 1):
        polling.waited(SHORT)
        assert not polling.pays
    polling.waited(SHORT)
    assert polling.pays


def test_a_miss_now_and_then_is_forgiven(ends: tuple[socket.socket, socket.socket]) -> None:
    polling = accustomed(ends[0].fileno(), 2 * MAX_CREDIT)
    for _ in range(10):
        assert not polling.wait()
        for _ in range(COST):
            polling.waited(LONGEST)
            assert polling.pays
