"""Faults of slots: killed, frozen, holding the interpreter's lock, poisoned, out of memory."""

import os
import resource
import signal
import time

import pytest

from tests.faults.workload import (
    hold_gil_with_children,
    misbehave,
    misbehave_once,
    wait_for,
    wait_for_once,
)
from tests.harness.cluster import LEASE, pools_of
from tests.harness.program import exists
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault


@pytest.mark.smoke
def test_F01_slot_killed_mid_task(embedded, gates):
    client, gate = embedded(workers=2), gates()
    client.submit_ordinary(700)
    victim = client.submit(wait_for_once, gate.path)
    client.submit_ordinary(700)
    client.wait_started(victim)

    killed = time.monotonic()
    os.kill(client.pid_of(victim), signal.SIGKILL)
    client.wait_all()

    verdict = client.assert_clean(repeated=[victim])
    assert verdict.executions[victim] == 2
    assert client.futures[victim].attempt == 2
    assert client.restarted(victim) - killed < 1.0


@pytest.mark.smoke
def test_F09_slot_frozen(embedded, gates):
    client, gate = embedded(workers=2), gates()
    client.submit_ordinary(100)  # its slots have imported the workload: the limit is for the tasks alone
    client.wait_all()
    once = client.submit(wait_for, gate.path, hard_timeout=1.0)
    again = client.submit(wait_for_once, gate.path, hard_timeout=1.0, retries=1)
    client.wait_started(once, again)
    frozen = [client.pid_of(index) for index in (once, again)]
    client.submit_ordinary(500)

    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    client.wait_all()

    assert time.monotonic() - began < 1.0 + 2.0 + 1.5
    verdict = client.assert_clean(repeated=[again])
    assert verdict.ended == {"ok": 601, "TaskTimeout": 1}
    assert "hard_timeout of 1 s" in str(client.futures[once].exception())
    assert client.futures[again].attempt == 2
    wait_until(lambda: not any(map(exists, frozen)), 2)


@pytest.mark.smoke
def test_F10_task_holds_the_gil(cluster, connect):
    cluster.start_hub()
    worker = cluster.start_worker("pool", slots=3)
    client = connect()
    session = pools_of(client.mesh.status())["pool"]["session"]
    holder = client.submit(misbehave, "hold_gil", 3 * LEASE)
    limited = client.submit(misbehave, "hold_gil", 20.0, hard_timeout=LEASE)
    client.wait_started(holder, limited)
    slots = set(worker.slots())

    began = time.monotonic()
    client.submit_ordinary(400)
    client.wait_ended(400)
    assert client.longest_gap(began, time.monotonic()) < LEASE / 2, "the other slot went on working"
    client.wait_ended(401)
    assert time.monotonic() - began < LEASE + 2, "hard_timeout does not need the interpreter's lock"
    client.wait_all()

    verdict = client.assert_clean(repeated=[])
    assert verdict.ended == {"ok": 401, "TaskTimeout": 1}
    pools = [pools_of(sample)["pool"] for sample in client.samples]
    assert {pool["session"] for pool in pools} == {session}
    assert max(pool["heard"] for pool in pools) < LEASE / 2, "beats went on"
    assert len(slots & set(worker.slots())) == 2, "only the limited task's slot was replaced"


@pytest.mark.slow
def test_F10_task_holds_the_gil_while_its_children_wait(cluster, connect, gates):
    """Its slot is the children's client, and silent for longer than one that has died is waited for."""
    cluster.start_hub()
    cluster.start_worker("pool", slots=2)
    client, gate = connect(), gates()
    parent = client.submit(hold_gil_with_children, gate.path, 6.5)
    client.wait_started(parent)

    client.watch_for(6.0)
    gate.open()
    client.wait_all(10)

    verdict = client.assert_clean(repeated=[])
    assert verdict.ended == {"ok": 1}


@pytest.mark.smoke
def test_F38_address_space_limit(cluster, connect):
    cluster.start_hub()
    worker = cluster.start_worker("pool", slots=2, prepare=lambda: _limit_address_space(2 << 30))
    client = connect()
    client.submit_ordinary(100)
    client.wait_all()
    slots = set(worker.slots())

    greedy = [client.submit(misbehave, "take_memory") for _ in range(4)]
    client.submit_ordinary(100)
    client.wait_all()

    verdict = client.assert_clean(repeated=[])
    assert verdict.ended == {"ok": 200, "MemoryError": 4}
    assert all(client.futures[index].attempt == 1 for index in greedy)
    assert set(worker.slots()) == slots, "no slot had to be replaced"


@pytest.mark.timeout(180)
def test_F42_poison_set(cluster, connect):
    cluster.start_hub()
    for number in range(2):
        cluster.start_worker(f"pool-{number}", prepare=lambda: _limit_address_space(2 << 30))
    client = connect()
    crash = ["segfault", "abort", "exit_at_once", "kill_self"]
    error = ["exit_politely", "recurse", "take_memory"]
    poison: dict[str, list[int]] = {deed: [] for deed in crash + error}
    for _ in range(6):
        for deed, indexes in poison.items():
            indexes.append(client.submit(misbehave, deed))
            client.submit_ordinary(30)

    client.wait_all(120)

    verdict = client.assert_clean(repeated=[index for deed in crash for index in poison[deed]])
    crashes = 6 * len(crash)
    assert verdict.ended == {
        "ok": 6 * 7 * 30,
        "WorkerCrashed": crashes,
        "RemoteError": 6,
        "RecursionError": 6,
        "MemoryError": 6,
    }
    for deed in crash:
        for index in poison[deed]:
            assert verdict.executions[index] == 3, f"crash limit of {deed}"
            assert client.futures[index].state == "dead"
            notes = client.futures[index].exception().__notes__
            assert [note[:9] for note in notes if " on " in note] == ["attempt 1", "attempt 2", "attempt 3"]
    polite = client.futures[poison["exit_politely"][0]].exception()
    assert polite.type_name == "SystemExit"
    died = client.futures[poison["segfault"][0]].exception()
    assert "signal 11 (Segmentation fault)" in str(died)
    assert "exit code 0" in str(client.futures[poison["exit_at_once"][0]].exception())


def _limit_address_space(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


@pytest.mark.smoke
@pytest.mark.parametrize(
    "deed",
    [
        "ignore_signals",
        "move_away",
        "close_descriptors",
        "close_every_descriptor",
        "leave_threads",
        "leave_child",
        "leave_forked_child",
    ],
)
def test_F45_bad_manners_of_user_code(embedded, deed):
    client = embedded(workers=2)
    client.submit_ordinary(100)
    client.wait_all()

    began = time.monotonic()
    rude = client.submit(misbehave_once, deed)
    client.submit_ordinary(200)
    client.wait_all()

    assert client.longest_gap(began) < 2, "the slot survives it or is replaced"
    client.assert_clean(repeated=[rude])
    assert client.futures[rude].exception() is None
    client.submit_ordinary(50)
    client.wait_all()
    client.assert_clean(repeated=[rude])
