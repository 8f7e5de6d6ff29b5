"""Faults of pools: killed, restarted, drained, frozen. Real hub, real workers, tcp on loopback."""

import os
import signal
import time

import pytest

from tests.faults.workload import wait_for, wait_for_once
from tests.harness.cluster import LEASE, pools_of
from tests.harness.program import exists
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault

TASKS = 2000


@pytest.mark.smoke
def test_F02_supervisor_killed(cluster, connect, gates):
    cluster.start_hub()
    victim, _ = cluster.start_workers(2, slots=4)
    client, gate = connect(), gates()
    once = [client.submit(wait_for, gate.path, acks="early") for _ in range(3)]
    client.wait_started(*once)
    gone = client.started_in(victim.slots()) & set(once)
    client.submit_ordinary(TASKS)
    once += client.submit_ordinary(200, acks="early")
    given_up = client.submit_ordinary(200)
    client.wait_ended(TASKS // 5)

    slots = victim.slots()
    orphans = victim.kill()
    killed = time.monotonic()
    for index in given_up:
        client.cancel(index)

    wait_until(lambda: not any(map(exists, orphans)), 2, "the killed supervisor's processes are gone")
    client.wait_ended(TASKS, LEASE + 5)
    gate.open()
    client.wait_all(5)
    verdict = client.assert_clean(repeated=client.started_in(slots), once=once)
    assert len(verdict.repeated) <= 4 * 64, "what had been reported is not run again"
    lost = {index for index in once if client.futures[index].state == "lost"}
    assert gone <= lost, "nobody knows whether they ran to their end"
    assert verdict.ended["ok"] + verdict.ended["TaskLost"] + verdict.ended["CancelledError"] == TASKS + 403
    assert time.monotonic() - killed < LEASE + 5


def test_F03_whole_pool_killed_and_restarted(cluster, connect, gates):
    cluster.start_hub()
    victim, other = cluster.start_workers(2)
    client, gate = connect(), gates()
    held = [client.submit(wait_for_once, gate.path) for _ in range(4)]
    client.wait_started(*held)
    lost = client.started_in(victim.slots())
    client.submit_ordinary(TASKS // 2)
    before = pools_of(client.mesh.status())["pool-0"]["session"]

    slots = victim.slots()
    victim.kill_all()
    client.watch_for(LEASE / 2)
    cluster.start_worker("pool-0")

    client.wait_ended(TASKS // 2 + 2, 5)
    assert pools_of(client.mesh.status())["pool-0"]["session"] != before
    gate.open()
    client.wait_all(5)
    verdict = client.assert_clean(repeated=client.started_in(slots))
    assert lost <= set(verdict.repeated)
    assert len(lost) == 2
    assert not set(held) - lost & set(verdict.repeated), "the other pool's running tasks went on"
    assert other.alive


def test_F04_all_pools_killed_and_none_for_two_leases(cluster, connect):
    cluster.start_hub()
    workers = cluster.start_workers(3)
    client = connect()
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 10)

    slots = [pid for worker in workers for pid in worker.slots()]
    for worker in workers:
        worker.kill_all()
    client.watch_for(2 * LEASE)
    assert len(client.ended) < TASKS
    cluster.start_workers(3)

    client.wait_all(5 + 3)
    verdict = client.assert_clean(repeated=client.started_in(slots))
    assert verdict.ended == {"ok": TASKS}, "nothing is DEAD: a killed pool is not its tasks' fault"


@pytest.mark.smoke
def test_F05_rolling_restart_by_sigterm(cluster, connect):
    cluster.start_hub()
    workers = cluster.start_workers(3)
    client = connect()
    client.submit_ordinary(2 * TASKS)

    for number, worker in enumerate(workers):
        client.wait_ended((number + 1) * TASKS // 5)
        worker.terminate()
        assert worker.wait(10) == 0
        assert not any(map(exists, worker.family()))
        cluster.start_worker(f"pool-{number}")

    client.wait_all()
    client.assert_clean(repeated=[])


def test_F06_drain_cut_short_by_sigkill(cluster, connect, gates):
    cluster.start_hub()
    victim, _ = cluster.start_workers(2)
    client, gate = connect(), gates()
    held = client.submit(wait_for_once, gate.path)
    client.submit_ordinary(TASKS)
    client.wait_started(held)
    if held not in client.started_in(victim.slots()):
        victim = cluster.programs.started[-1]
    client.wait_ended(TASKS // 10)

    slots = victim.slots()
    victim.terminate()
    client.wait_ended(TASKS)
    assert victim.alive, "it waits for the task that runs"
    assert client.verdict().repeated == [], "what had not started went to the other pool when the drain began"
    victim.kill_all()
    killed = time.monotonic()

    client.wait_all(3)
    verdict = client.assert_clean(repeated=[held])
    assert verdict.executions[held] == 2
    assert client.restarted(held) - killed < 3
    assert held in client.started_in(slots)


@pytest.mark.smoke
def test_F07_supervisor_frozen_for_half_a_lease(cluster, connect):
    cluster.start_hub()
    victim, _ = cluster.start_workers(2)
    client = connect()
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 10)

    victim.stop()
    client.watch_for(LEASE / 2)
    victim.go_on()
    resumed = time.monotonic()

    client.wait_until_lane("pool-0", "ready", 1.0)
    assert time.monotonic() - resumed < 1.0
    client.submit_ordinary(200)
    client.wait_all()
    client.assert_clean(repeated=[])


@pytest.mark.smoke
def test_F08_pool_frozen_for_two_leases(cluster, connect, gates):
    cluster.start_hub()
    victim = cluster.start_worker("pool-0", slots=2)
    client, gate = connect(), gates()
    zombies = [client.submit(wait_for, gate.path)]
    client.wait_started(*zombies)
    cluster.start_worker("pool-1", slots=3)
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 10)

    slots = victim.slots()
    frozen = victim.stop_all()
    stopped = time.monotonic()
    client.wait_ended(TASKS, LEASE + 5)
    client.wait_restarted(*zombies, timeout=LEASE + 5)
    assert time.monotonic() - stopped < LEASE + 5
    client.watch_for(max(0.0, stopped + 2 * LEASE - time.monotonic()))
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)

    client.wait_until_lane("pool-0", "ready", LEASE + 5)
    gate.open()
    client.submit_ordinary(200)
    client.wait_all(LEASE + 5)
    verdict = client.assert_clean(repeated=client.started_in(slots))
    assert set(zombies) <= set(verdict.repeated)
    assert all(client.futures[index].attempt == 2 for index in zombies), "the zombies' attempts were dropped"
