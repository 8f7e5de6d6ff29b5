"""Faults of clients: gone right after submit, too slow for their results."""

import os
import signal

import pytest

from taskmesh.core.credit import RESULTS_AHEAD
from tests.faults.checker import check
from tests.faults.client_program import RESULT_SIZE
from tests.faults.workload import answer, digest, product, wait_for
from tests.harness.cluster import LEASE
from tests.harness.journal import Journal
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault

TASKS = 1000
RESULTS = 280
"""Of a megabyte each: several times the hub's cap in these tests."""


def _logs(folder, name):
    return Journal(folder / f"{name}.log"), Journal(folder / f"{name}-executions.log")


def _idle(client):
    """The hub has no task left."""
    status = client.mesh.status()
    client.samples.append(status)
    return status["accepted"] == status["finished"] and not sum(status["tasks"].values())


@pytest.mark.parametrize(
    "how", [pytest.param("leave-when-accepted", marks=pytest.mark.smoke), "exit-when-accepted", "detach"]
)
def test_F18_client_exits_right_after_its_tasks_are_accepted(cluster, connect, tmp_path, how):
    """Also when it ends as programs do, without having closed its mesh: that cancelled them all."""
    cluster.start_hub()
    cluster.start_workers(2)
    observer = connect("observer")
    victim = cluster.start_client("victim", tmp_path, "victim", how, TASKS)

    assert victim.wait(20) == 0
    wait_until(lambda: _idle(observer), 20)
    told = "accepted tasks were left to the hub" in victim.text("stderr")
    assert told is (how == "exit-when-accepted")

    verdict = check(*_logs(tmp_path, "victim"), answer, samples=observer.samples, client_gone=True)
    assert verdict.violations == []
    assert verdict.acknowledged == (0 if how == "detach" else TASKS)  # it did not wait to log them
    assert set(verdict.executions.values()) == {1}
    assert len(verdict.executions) == TASKS


@pytest.mark.smoke
def test_a_hub_that_ends_says_how_many_tasks_it_leaves_behind(cluster, connect, tmp_path):
    """78 of 80 tasks of a client that had left were gone, without a word."""
    hub = cluster.start_hub()
    observer = connect("observer")
    observer.mesh.status()
    victim = cluster.start_client("victim", tmp_path, "victim", "detach", 80)
    assert victim.wait(20) == 0
    wait_until(lambda: observer.mesh.status()["orphans"] == 80, 10)
    observer.submit_ordinary(5)
    observer.mesh.flush(10)

    hub.terminate()
    assert hub.wait(10) == 0
    (told,) = [event for event in hub.events("stderr") if event.get("event") == "tasks.left"]
    assert (told["tasks"], told["orphans"]) == (85, 80)
    assert "80 are lost, for their clients have left" in str(told["text"])


def test_F18_client_exits_before_its_tasks_are_accepted(cluster, connect, gates, tmp_path):
    hub = cluster.start_hub()
    cluster.start_workers(2)
    observer, gate = connect("observer"), gates()
    observer.mesh.status()
    victim = cluster.start_client("victim", tmp_path, "victim", "leave-at-once", TASKS, gate.path)
    victim.ready()

    hub.stop()
    gate.open()
    assert victim.wait(20) == 0
    hub.go_on()
    wait_until(lambda: _idle(observer), 20)

    verdict = check(*_logs(tmp_path, "victim"), answer, samples=observer.samples, client_gone=True)
    assert verdict.violations == []
    assert verdict.acknowledged == 0
    assert set(verdict.executions.values()) <= {1}


def test_F18_client_exits_with_tasks_that_are_bound_to_it(cluster, connect, gates, tmp_path):
    cluster.start_hub()
    worker = cluster.start_worker("pool", slots=2)
    observer, gate = connect("observer"), gates()
    blockers = [observer.submit(wait_for, gate.path) for _ in range(2)]
    observer.wait_started(*blockers)
    victim = cluster.start_client("victim", tmp_path, "victim", "leave-bound", TASKS)
    assert victim.wait(20) == 0

    wait_until(
        lambda: sum(observer.mesh.status()["tasks"].values()) == 2, 5 + LEASE, "its tasks are cancelled"
    )
    gate.open()
    observer.wait_all()
    observer.submit_ordinary(50)
    observer.wait_all()

    log, executions = _logs(tmp_path, "victim")
    assert log.count("accepted") == TASKS
    assert executions.count("start") == 0
    observer.assert_clean(repeated=[])
    assert worker.alive


@pytest.mark.smoke
def test_F19_client_too_slow_for_its_results(cluster, connect, tmp_path):
    cap = 24 << 20
    hub = cluster.start_hub({"TASKMESH_CLIENT__MAX_BYTES": str(cap)})
    cluster.start_workers(2)
    other = connect("other")
    other.submit_ordinary(100)
    other.wait_all()
    before = hub.rss()
    victim = cluster.start_client("victim", tmp_path, "victim", "produce", RESULTS)
    wait_until(lambda: {"event": "submitted"} in victim.events(), 20)

    victim.stop()
    heaviest = 0

    def look():
        nonlocal heaviest
        heaviest = max(heaviest, hub.rss())

    other.watch_for(3 * LEASE, look)
    other.submit_ordinary(TASKS)
    other.wait_all(10)
    victim.go_on()

    wait_until(lambda: {"event": "done"} in victim.events(), 20)
    assert victim.wait(10) == 0
    look()
    on_its_way = (
        4 * RESULTS_AHEAD
    )  # four slots; each may be held thrice: here, in a link's queue, in a new link's
    assert heaviest - before < cap + 3 * on_its_way < RESULTS * RESULT_SIZE / 2, "the rest is not run yet"
    verdict = check(
        *_logs(tmp_path, "victim"), lambda index: digest(product(index, RESULT_SIZE)), samples=other.samples
    )
    assert verdict.violations == []
    assert verdict.ended == {"ok": RESULTS}
    assert verdict.repeated == []
    other.assert_clean(repeated=[])
    assert os.path.exists(f"/proc/{hub.pid}")
    hub.signal(signal.SIGTERM)
    assert hub.wait(10) == 0
