"""Balance: nothing waits behind a task that turned out long, and every task runs once."""

import time

import pytest

from tests.faults.client import Client
from tests.faults.workload import perhaps_wait
from tests.harness.gate import Gate

pytestmark = pytest.mark.fault

SHORT, AFTER = 5000, 2000
LIMIT = 3.0
"""Seconds: on an idle machine it is one tenth of one; the issue says one, this has to hold on a busy one."""


def test_no_ops_do_not_wait_behind_a_long_task_of_the_same_function(embedded, gates):
    _measure(embedded(workers=2), gates())


def test_no_ops_do_not_wait_behind_a_long_task_in_the_other_pool(cluster, connect, gates):
    cluster.start_hub()
    cluster.start_workers(2, slots=1)
    _measure(connect(), gates())


def _measure(client: Client, gate: Gate) -> None:
    for _ in range(SHORT):
        client.submit(perhaps_wait, "")
    client.wait_all(30)

    slow = client.submit(perhaps_wait, gate.path)
    after = [client.submit(perhaps_wait, "") for _ in range(AFTER)]
    began = time.monotonic()
    client.wait_for_each(after, 30)
    took = time.monotonic() - began

    print(f"{AFTER} no-ops behind a long task: {took:.2f} s")  # noqa: T201  the measurement
    assert not client.futures[slow].done()
    assert took < LIMIT
    gate.open()
    client.wait_all()
    client.assert_clean(repeated=[])
