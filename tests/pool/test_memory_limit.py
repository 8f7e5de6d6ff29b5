"""A pool whose container runs out of memory kills its largest slot, before the kernel does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from taskmesh.pool.memory_limit import LONGEST, SHORTEST, PoolMemoryLimit, reserve_of
from taskmesh.system.cgroups import LONGEST_DEATH
from taskmesh.system.session import memory_of_groups

GONE = 1 << 30
"""No process has this id."""
LIMIT = 1000 << 20
SIZE = 400 << 20


class Rig:
    """Two slots, whose processes take what a test says, and what was killed."""

    def __init__(self) -> None:
        self.left = LIMIT
        self.running = {GONE + 1: 1, GONE + 2: 2}
        self.taken = {GONE + 1: {GONE + 1: SIZE}, GONE + 2: {GONE + 2: SIZE - 1}}
        self.killed: list[int] = []
        self.why = ""
        self.looks = 0
        self.memory = PoolMemoryLimit(self, lambda: self.running, self.kill, self.of_groups)

    def of_groups(self, slots: dict[int, int]) -> dict[int, dict[int, int]]:
        self.looks += 1
        return {pid: self.taken[pid] for pid in slots}

    def least_left(self) -> tuple[int, int]:
        return self.left, LIMIT

    def kill(self, slot: int, why: str) -> None:
        self.killed.append(slot)
        self.why = why

    def look(self, left: int, now: float = 0.0) -> float:
        self.left = left
        self.memory.turn(now)
        return self.memory.deadline - now


def test_the_largest_slot_is_killed_when_too_little_is_left():
    rig = Rig()
    rig.look(reserve_of(LIMIT))
    assert rig.killed == []

    rig.look(reserve_of(LIMIT) - 1)

    assert rig.killed == [1]
    assert "49 MiB of 1,000 MiB were left" in rig.why
    assert "400 MiB. Raise the memory limit" in rig.why


def test_children_of_a_task_count_for_its_slot():
    rig = Rig()
    rig.taken[GONE + 2][GONE + 3] = SIZE

    rig.look(0)

    assert rig.killed == [2]


def test_only_slots_that_run_tasks_are_killed():
    rig = Rig()
    del rig.running[GONE + 1]
    rig.look(0)
    assert rig.killed == [2]

    rig.running.clear()
    rig.look(0)
    assert rig.killed == [2]


def test_slots_that_take_less_than_is_left_are_not_to_blame():
    rig = Rig()
    rig.taken = {pid: {pid: 30 << 20} for pid in rig.running}

    rig.look(31 << 20)
    assert rig.killed == []

    rig.look(27 << 20)
    assert rig.killed == [1]


def test_slots_that_were_spared_are_judged_again_when_less_is_left():
    rig = Rig()
    rig.taken = {pid: {pid: 30 << 20} for pid in rig.running}
    for _ in range(5):
        rig.look(31 << 20)
    assert rig.looks == 1

    rig.look(40 << 20)
    rig.look(reserve_of(LIMIT))
    rig.look(31 << 20)
    assert rig.looks == 2
    assert rig.killed == []


def test_the_next_is_judged_when_the_memory_of_the_last_is_gone():
    rig = Rig()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        rig.running[child.pid] = 3
        rig.taken[child.pid] = {child.pid: 2 * SIZE}
        rig.look(0)
        rig.look(0, LONGEST_DEATH - 0.01)
        assert rig.killed == [3]
        child.kill()
        child.wait()
        del rig.running[child.pid]

    rig.look(0, LONGEST_DEATH - 0.01)

    assert rig.killed == [3, 1]


def test_a_process_that_does_not_end_is_not_waited_for_for_ever():
    rig = Rig()
    rig.running[os.getpid()] = 3
    rig.taken[os.getpid()] = {os.getpid(): 2 * SIZE}
    rig.look(0)
    del rig.running[os.getpid()]

    rig.look(0, LONGEST_DEATH)

    assert rig.killed == [3, 1]


def test_it_looks_the_sooner_the_less_is_left():
    rig = Rig()

    assert rig.look(reserve_of(LIMIT)) == SHORTEST
    assert SHORTEST < rig.look(reserve_of(LIMIT) + (200 << 20)) < LONGEST
    other = PoolMemoryLimit(rig, dict, rig.kill)
    other.turn(0.0)
    assert other.deadline < LONGEST
    rig.left = 10 << 30
    rig.memory.turn(0.0)
    assert rig.memory.deadline == LONGEST


@pytest.mark.parametrize(
    ("limit", "reserve"),
    [(64 << 20, 8 << 20), (256 << 20, 32 << 20), (LIMIT, LIMIT // 20), (64 << 30, 512 << 20)],
)
def test_what_is_to_stay_free(limit, reserve):
    assert reserve_of(limit) == reserve


def test_memory_of_a_real_group_is_what_it_has_written_to():
    code = "kept = b'x' * (50 << 20); print(flush=True); input()"
    line = [sys.executable, "-c", code]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()

        taken = memory_of_groups([child.pid, GONE])

        child.communicate(b"\n")
    assert taken[GONE] == {}
    assert 50 << 20 <= taken[child.pid][child.pid] < 100 << 20
