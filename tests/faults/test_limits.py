"""Limits while pools and hubs are killed and stopped; the long versions are soaks."""

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from taskmesh import Limit, Mesh, gather
from tests.faults.workload import span, span_after
from tests.harness.cluster import LEASE, OVERRIDES, Cluster
from tests.harness.gate import Gate
from tests.harness.spans import longest_gap, most_at_a_time, most_in
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault
END_S = 60.0
RATE = 50


def pause(seconds: float) -> None:
    """Let tasks go on for so long."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 5)


def permits(mesh: Mesh) -> Mapping[str, Any]:
    """The hub's row of the limit `gpu`."""
    rows = cast("list[dict[str, Any]]", mesh._client.open().query("limits", timeout=END_S))
    return next(row for row in rows if row["limit"] == "gpu")


def warm_up(mesh: Mesh, slots: int) -> None:
    """Has all slots import what they run: a task that imports for long begins later than it is counted."""
    gather([mesh.submit(span, 0.2) for _ in range(2 * slots)], timeout=END_S)


def held(mesh: Mesh) -> int:
    """The tasks that a pool has, by their records."""
    tasks = mesh.status(timeout=END_S)["tasks"]
    return int(tasks["SENT"]) + int(tasks["RUNNING"])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fate", ["thaws soon", "thaws late", "dies"])
def test_limits_hold_while_one_of_four_pools_is_frozen(cluster: Cluster, fate: str):
    cluster.start_hub()
    victim, *_ = cluster.start_workers(4)
    limits = ["api:40/s", "gpu:3", Limit("user", concurrency=1, by=lambda seconds, user: user)]
    with cluster.mesh(**OVERRIDES) as mesh:
        warm_up(mesh, 8)
        calls = mesh.with_options(limit=limits)
        futures = [calls.submit(span, 0.02, f"user-{n % 4}") for n in range(300)]
        futures[20].result(END_S)
        frozen = time.time()
        victim.stop()
        pause({"thaws soon": LEASE / 2, "thaws late": 1.5 * LEASE, "dies": 0.1}[fate])
        if fate == "dies":
            victim.kill_all()
        else:
            victim.go_on()
        spans = gather(futures, timeout=END_S)

    assert most_at_a_time(spans) <= 3
    begun_late = 2 if fate == "thaws soon" else 0  # the frozen pool had been sent one for each slot
    assert most_in([begin for begin, _ in spans], 1.0) <= 41 + begun_late
    for user in range(4):
        own = spans[user::4]
        assert most_at_a_time(own) == 1
        assert longest_gap([begin for begin, _ in own if begin > frozen - 1.0]) <= LEASE + 1.0


def kill_pools(cluster: Cluster, gate: Gate, times: int) -> None:
    """Kills a pool so often while its tasks hold permits; these are back within a lease and a second."""
    cluster.start_hub(env={"TASKMESH_HUB__POOL_LOSS_LIMIT": "1000"})
    with cluster.mesh(**OVERRIDES) as mesh:
        limited = mesh.with_options(limit="gpu:2")
        futures = [limited.submit(span_after, gate.path) for _ in range(4)]
        for turn in range(times):
            pool = cluster.start_worker(f"pool-{turn}", slots=4)
            least = 2 if turn < 2 else 1  # with which two pools have died is alone in a pool
            wait_until(lambda least=least: held(mesh) >= least, END_S)
            assert held(mesh) == permits(mesh)["running"] <= 2
            pool.kill_all()
            wait_until(lambda: permits(mesh)["running"] == 0, LEASE + 1.0, "all permits are free")
            assert held(mesh) == 0
        gate.open()
        cluster.start_worker("last", slots=4)
        spans = gather(futures, timeout=END_S)
        assert permits(mesh)["running"] == 0

    assert most_at_a_time(spans) <= 2


@pytest.mark.timeout(120)
def test_permits_of_killed_pools_are_free_after_a_lease(cluster: Cluster, gates: Callable[[], Gate]):
    kill_pools(cluster, gates(), 3)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_permits_of_twenty_killed_pools_are_free_after_a_lease(cluster: Cluster, gates: Callable[[], Gate]):
    kill_pools(cluster, gates(), 20)


def restart_hubs(cluster: Cluster, times: int) -> None:
    """Kills the hub each five seconds while a rate is used up, and starts another one."""
    ready: list[float] = []
    cluster.start_hub()
    cluster.start_worker("first", slots=4)
    with cluster.mesh(**OVERRIDES) as mesh:
        warm_up(mesh, 4)
        limited = mesh.with_options(limit=f"api:{RATE}/s")
        futures = [limited.submit(span, 0.0) for _ in range((times + 2) * 5 * RATE)]
        for _ in range(times):
            pause(5.0)
            cluster.hub.kill()
            cluster.start_hub()
            ready.append(time.time())
        pause(5.0)
        times_of = sorted(future.result(0)[0] for future in futures if future.done())
        mesh.close(cancel=True)

    assert most_in(times_of, 1.0) <= RATE + 1
    for begin in ready:
        lost = min(when for when in times_of if when > begin) - begin
        assert lost <= 1.0 + LEASE, "a window, and the time in which pool and client come back"


@pytest.mark.timeout(120)
def test_a_rate_is_kept_when_the_hub_is_restarted(cluster: Cluster):
    restart_hubs(cluster, 2)


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_a_rate_is_kept_for_a_minute_of_restarts(cluster: Cluster):
    restart_hubs(cluster, 12)
