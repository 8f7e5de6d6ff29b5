"""Faults of the hub: killed and restarted while its clients live, frozen, starved of processor time."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

from taskmesh.hub.machine.settings import HubSettings
from tests.faults.client import Client
from tests.faults.workload import wait_for
from tests.harness.cluster import LEASE, SETTINGS, Cluster, pools_of
from tests.harness.gate import Gate
from tests.harness.journal import Journal
from tests.harness.program import Program
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault

TASKS = 2000
HELD, SLOTS = 12, 4
GRACE = HubSettings(1).client_grace


@pytest.fixture
def halfway(cluster: Cluster, connect, gates) -> tuple[Program, Client, Gate, list[int]]:
    """A hub, a client that has a fifth of its tasks behind it, and two tasks that run until a gate opens."""
    hub = cluster.start_hub()
    cluster.start_workers(2, slots=3)
    client, gate = connect(), gates()
    held = [client.submit(wait_for, gate.path) for _ in range(2)]
    client.wait_started(*held)
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 5)
    return hub, client, gate, held


@pytest.mark.smoke
def test_F11_hub_killed_and_restarted(cluster, halfway):
    hub, client, gate, held = halfway
    hub.kill()
    client.watch_for(LEASE / 2)
    cluster.start_hub()
    restarted = time.monotonic()

    client.wait_until_lane("pool-0", "ready", LEASE + 5)
    gate.open()
    client.wait_all(LEASE + 8)
    assert time.monotonic() - restarted < LEASE + 8
    verdict = client.assert_clean(repeated=[])
    assert verdict.ended == {"ok": TASKS + 2}
    assert all(client.futures[index].attempt == 1 for index in held), "what ran went on running"


@pytest.mark.smoke
def test_F11_hub_and_client_killed_together(cluster, connect, gates, tmp_path):
    """The pools tell the hub that comes back which tasks were bound to the client."""
    hub = cluster.start_hub()
    cluster.start_workers(2, slots=2)
    observer, gate = connect("observer"), gates()
    observer.mesh.status()
    victim = cluster.start_client("victim", tmp_path, "victim", "hold-bound", HELD, gate.path)
    log = Journal(tmp_path / "victim-executions.log")
    wait_until(lambda: log.count("start") == SLOTS, 20, "every slot has a task of the victim")

    hub.kill()
    victim.kill()
    cluster.start_hub()
    observer.wait_until_lane("pool-0", "ready", LEASE + 5)
    observer.wait_until_lane("pool-1", "ready", LEASE + 5)
    assert observer.mesh.status()["unclaimed"] >= SLOTS
    wait_until(lambda: observer.mesh.status()["unclaimed"] == 0, GRACE + LEASE, "they are dropped")
    observer.submit_ordinary(100)
    observer.wait_all()
    gate.open()
    observer.submit_ordinary(100)
    observer.wait_all()

    observer.assert_clean()
    assert [entry.kind for entry in log.entries()] == ["start"] * SLOTS, "none ended, and no other started"


@pytest.mark.smoke
def test_F15_hub_frozen_for_two_leases(halfway):
    hub, client, gate, _ = halfway
    hub.stop()
    client.watch_for(2 * LEASE)
    hub.go_on()
    resumed = time.monotonic()

    client.wait_ended(TASKS, 5 + 3)
    gate.open()
    client.wait_all(5)
    assert time.monotonic() - resumed < 5 + 5
    client.assert_clean(repeated=[])
    left = [event for event in hub.events("stderr") if event["event"] == "pool.left"]
    assert left == [], "nobody's lease ran out while the hub could hear nobody"


def test_F46_starved_of_processor_time(cluster, connect, gates):
    """TTL 10 s, as in the matrix; everything of the mesh at nice 19, against two endless loops."""
    patient = {**SETTINGS, "TASKMESH_HUB__LEASE": "10", "TASKMESH_HUB__BEAT": "1"}
    hub = cluster.start_hub(patient)
    workers = [cluster.start_worker(f"pool-{i}", env=patient) for i in range(2)]
    client = connect(hub__lease=10, hub__beat=1)
    client.submit_ordinary(100)
    client.wait_all()
    session = {name: pool["session"] for name, pool in pools_of(client.mesh.status()).items()}
    for program in (hub, *workers):
        for pid in (program.pid, *program.family()):
            _be_nice(pid)

    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        client.watch_for(11)
        client.submit_ordinary(100)
        client.wait_all(30)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()

    client.assert_clean(repeated=[])
    assert {name: pool["session"] for name, pool in pools_of(client.mesh.status()).items()} == session


def _be_nice(pid: int) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread), 19)
