"""Slots are replaced after so many tasks, at an age, or when they have grown: nothing is lost or charged."""

import contextlib
import os
import random
import signal
from collections import Counter
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import psutil
import pytest

from taskmesh import Mesh, MeshExecutor
from taskmesh.config import load
from taskmesh.core.events import SlotDue, SlotReady
from taskmesh.errors import ConfigError
from taskmesh.pool import process_limits
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.settings import PoolSettings
from taskmesh.pool.process_limits import LOOK, ProcessLimits
from taskmesh.pool.settings import pool_settings
from taskmesh.pool.slots.fork_server_client import SlotOptions
from taskmesh.system.session import private_memory
from tests.harness.waiting import wait_until
from tests.pool.child_tasks import leak, parent, place, process

MiB = 1 << 20
TASKS = 120
WAIT_S = 60


def slots() -> list[int]:
    """Return the processes of this program's slots."""
    found = []
    for server in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child.pid for child in server.children()]
    return found


def kill_one(chance: random.Random) -> bool:
    """Kill a slot of this program, if there is one."""
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(chance.choice(slots()), signal.SIGKILL)
        return True
    return False


def test_each_task_has_a_process_of_its_own_and_a_slot_that_is_killed_costs_its_task_alone(mesh_of):
    chance, kills = random.Random(1), 0
    with mesh_of(4, max_tasks=1) as mesh:
        futures = [mesh.submit(place, number) for number in range(TASKS)]
        for future in futures[::8]:
            future.result(WAIT_S)
            kills += kill_one(chance)
        found = [future.result(WAIT_S) for future in futures]

    assert [number for number, _, _ in found] == list(range(TASKS))
    assert max(Counter(pid for _, pid, _ in found).values()) == 1
    assert sum(attempt - 1 for _, _, attempt in found) <= kills


def test_a_process_runs_no_more_tasks_than_it_may(mesh_of):
    with mesh_of(2, max_tasks=50) as mesh:
        found = [future.result(WAIT_S) for future in [mesh.submit(place, n) for n in range(1000)]]

    assert [number for number, _, _ in found] == list(range(1000))
    assert max(Counter(pid for _, pid, _ in found).values()) <= 50
    assert {attempt for _, _, attempt in found} == {1}


def test_tasks_that_wait_for_tasks_of_their_own_end_while_slots_are_replaced(mesh_of):
    with mesh_of(2, max_tasks=3) as mesh:
        assert [mesh.submit(parent, n).result(WAIT_S) for n in range(20)] == [n + 1 for n in range(20)]


def test_a_slot_that_grows_is_replaced_between_tasks(mesh_of):
    with mesh_of(1, max_memory=256 * MiB) as mesh:
        found = [mesh.submit(leak).result(WAIT_S)]
        wait_until(lambda: found.append(mesh.submit(leak).result(WAIT_S)) or len(set(found)) > 1, WAIT_S)

    assert len(set(found)) == 2


def test_a_slot_of_some_age_is_replaced_between_tasks(mesh_of):
    with mesh_of(1, max_age=0.1) as mesh:
        first = mesh.submit(place, 0).result(WAIT_S)[1]
        wait_until(lambda: mesh.submit(place, 1).result(WAIT_S)[1] != first, WAIT_S)


def test_an_executor_takes_the_number_of_tasks_of_a_child():
    with MeshExecutor(2, max_tasks_per_child=5) as executor:
        found = Counter(executor.map(process, range(60)))

    assert sum(found.values()) == 60
    assert max(found.values()) <= 5


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "3"])
def test_an_executor_refuses_what_is_no_number_of_tasks(number):
    with pytest.raises(ConfigError, match=r"max_tasks_per_child has to be a whole number greater than 0"):
        MeshExecutor(2, max_tasks_per_child=number)


def test_an_executor_of_a_given_mesh_has_its_processes():
    with Mesh(workers=1) as mesh, pytest.raises(ConfigError, match="for a mesh of the executor's own"):
        mesh.executor(max_tasks_per_child=3)


class Rig:
    """Two slots whose processes take what a test says, and which of them are due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
        self.machine = PoolMachine(PoolSettings("p", 1, 2), 0.0)
        self.due: list[tuple[int, str]] = []
        self.told: list[str] = []
        self.taken = {100: 50 * MiB, 101: 50 * MiB}
        monkeypatch.setattr(process_limits, "private_memory", self.taken.__getitem__)
        self.limits = ProcessLimits(SlotOptions(**options), self.machine, self._fall_due, self.told.append)
        self.machine.act(0.0)
        for slot in range(2):
            ready = SlotReady(slot, 100 + slot)
            self.limits.ready(ready)
            self.machine.take(ready, 0.0)

    def _fall_due(self, event: SlotDue) -> None:
        self.due.append((event.slot, event.reason))
        self.machine.take(event, 0.0)


def test_what_is_due_is_told_once(monkeypatch):
    rig = Rig(monkeypatch, max_memory=100 * MiB, max_age=20.0)
    rig.limits.turn(5.0)
    assert rig.due == []
    assert rig.limits.deadline == 5.0 + LOOK

    rig.taken[101] = 101 * MiB
    rig.limits.turn(6.0)
    rig.limits.turn(7.0)
    assert rig.due == [(1, "memory")]

    rig.limits.turn(25.0)
    assert rig.due == [(1, "memory"), (0, "age")]


def test_a_limit_below_what_a_slot_takes_before_its_first_task_is_told_and_replaces_none(monkeypatch):
    rig = Rig(monkeypatch, max_memory=40 * MiB)
    for second in range(5):
        rig.limits.turn(float(second))

    assert rig.due == []
    (text,) = rig.told
    assert "takes 50 MiB before its first task, more than --max-memory-per-child (40 MiB)" in text


def test_memory_is_what_a_process_shares_with_no_other():
    before = private_memory(os.getpid())
    # Not the heap: it may have as much free memory that an earlier test has used.
    with mmap(-1, 32 * MiB, MAP_PRIVATE | MAP_ANONYMOUS) as block:
        for _ in range(32):
            block.write(b"x" * MiB)

        assert before + 24 * MiB < private_memory(os.getpid()) < before + 64 * MiB
    assert private_memory(1 << 30) == 0


@pytest.mark.parametrize("option", [{"max_tasks": 3}, {"gpus": ("GPU-1",)}])
def test_slots_that_share_processes_refuse_what_is_for_one_of_them(option):
    config = load({"pool": {"mode": "async"}}, environ={})
    with pytest.raises(ConfigError, match="--mode process"):
        pool_settings(config, options=SlotOptions(**option))
