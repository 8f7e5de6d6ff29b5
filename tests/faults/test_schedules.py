"""Schedules and delays while hubs and pools are killed: rows W16 and W18; the long version is a soak."""

import time
from pathlib import Path

import pytest

from taskmesh import gather
from tests.faults.workload import stamp
from tests.harness.cluster import LEASE, OVERRIDES, Cluster
from tests.harness.journal import Journal
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault
END_S = 60.0
PERIOD = 0.2
MODULE = """
from taskmesh import Schedule, current_task, task
from tests.harness.journal import Journal

@task(schedule=Schedule({period}, overlap="allow"))
def tick():
    Journal({path!r}).append(str(current_task().scheduled_for.timestamp()))
"""


@pytest.mark.timeout(120)
def test_w16_delayed_tasks_start_once_and_not_before_their_time(cluster: Cluster, tmp_path: Path):
    cluster.start_hub()
    cluster.start_worker("one")
    journal = str(tmp_path / "journal")
    with cluster.mesh(**OVERRIDES) as mesh:
        began = time.time()
        futures = [mesh.with_options(delay=3 * LEASE).submit(stamp, journal, str(n)) for n in range(100)]
        mesh.flush(END_S)
        cluster.pools["one"].kill_all()
        cluster.hub.kill()
        cluster.start_hub()
        cluster.start_worker("two")
        stamps = gather(futures, timeout=END_S)

    assert sorted(Journal(journal).lines(), key=int) == [str(n) for n in range(100)]
    assert min(stamps) >= began + 3 * LEASE


def kill_around_ticks(cluster: Cluster, journal: Journal, times: int) -> None:
    """Kills the hub so often, each time a little later after a tick."""
    (cluster.folder / "timely.py").write_text(MODULE.format(period=PERIOD, path=journal.path))
    cluster.start_hub()
    cluster.start_worker("timed", "timely")
    for turn in range(times):
        before = len(journal.lines())
        wait_until(lambda before=before: len(journal.lines()) >= before + 2, END_S)
        moment = turn % 8 * PERIOD / 8
        wait_until(lambda moment=moment: 0 <= time.time() % PERIOD - moment < PERIOD / 16, END_S, tick=0.0005)
        cluster.hub.kill()
        cluster.start_hub()
    before = len(journal.lines())
    wait_until(lambda: len(journal.lines()) >= before + 2, END_S)

    lines = journal.lines()
    assert len(set(lines)) == len(lines), "no tick fires twice"
    assert all(float(line) % PERIOD < 1e-6 or PERIOD - float(line) % PERIOD < 1e-6 for line in lines)


@pytest.mark.timeout(120)
def test_w18_no_tick_fires_twice_when_the_hub_is_killed_around_it(cluster: Cluster, tmp_path: Path):
    kill_around_ticks(cluster, Journal(tmp_path / "journal"), 4)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_w18_two_hundred_times(cluster: Cluster, tmp_path: Path):
    kill_around_ticks(cluster, Journal(tmp_path / "journal"), 200)
