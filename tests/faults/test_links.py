"""Faults of links: TCP connections that are reset while everybody lives."""

import pytest

from tests.faults.workload import wait_for
from tests.harness.program import can_reset
from tests.harness.requirement import require

pytestmark = pytest.mark.fault

TASKS = 4000
RESETS = 20


@pytest.mark.smoke
def test_F20_connections_reset_twenty_times(cluster, connect, gates):
    require(can_reset(), "the right to take a child's descriptors (pidfd_getfd): run as root or with ptrace")
    hub = cluster.start_hub()
    workers = cluster.start_workers(2, slots=3)
    client, gate = connect(), gates()
    held = [client.submit(wait_for, gate.path) for _ in range(2)]
    client.wait_started(*held)
    client.submit_ordinary(TASKS)

    cut = 0
    for turn in range(RESETS):
        client.wait_ended((turn + 1) * TASKS // (RESETS + 5))
        victim = (hub, *workers)[turn % 3]
        cut += victim.reset_connections()
    client.wait_ended(TASKS, 20)
    gate.open()
    client.wait_all(5)

    assert cut >= RESETS
    client.assert_clean(repeated=[])
    left = [event for event in hub.events("stderr") if event["event"] == "pool.left"]
    assert left == [], "a pool that was only cut off keeps its tasks"
