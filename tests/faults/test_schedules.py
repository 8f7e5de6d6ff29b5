"""Schedules and delays while hubs and pools are killed; the long version is a soak."""

import time
from pathlib import Path

import pytest

from taskmesh import Schedule, current_task, gather
from tests.faults.workload import stamp
from tests.harness.cluster import LEASE, OVERRIDES, SETTINGS, Cluster
from tests.harness.journal import Journal
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault
END_S = 60.0
PERIOD = 0.2


def note(path: str) -> None:
    me = current_task()
    assert me.scheduled_for is not None
    Journal(path).append(f"{me.scheduled_for.timestamp()} {me.id}")


@pytest.mark.timeout(120)
def test_delayed_tasks_start_once_and_not_before_their_time(cluster: Cluster, tmp_path: Path):
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


def tasks_by_tick(journal: Journal) -> dict[int, set[str]]:
    tasks: dict[int, set[str]] = {}
    for tick, task_id in map(str.split, journal.lines()):
        place = round(float(tick) / PERIOD)
        assert abs(float(tick) - place * PERIOD) < 1e-6
        tasks.setdefault(place, set()).add(task_id)
    return tasks


def kill_around_ticks(cluster: Cluster, folder: Path, times: int) -> None:
    """Kill the hub so often, each time a little later after a tick: no tick becomes two tasks.

    A firing may run twice, should its end not have been written; it is the same task then.
    """
    journal = Journal(folder / "journal")
    settings = {**SETTINGS, "TASKMESH_JOURNAL": str(folder / "tasks.journal")}
    cluster.start_hub(settings)
    cluster.start_worker("timed")
    with cluster.mesh(**OVERRIDES) as mesh:
        mesh.schedule("timed", note, str(journal.path), when=Schedule(PERIOD, overlap="allow"))

    def go_on() -> None:
        before = len(tasks_by_tick(journal))
        wait_until(lambda: len(tasks_by_tick(journal)) >= before + 2, END_S)

    for turn in range(times):
        go_on()
        moment = turn % 8 * PERIOD / 8
        wait_until(lambda moment=moment: 0 <= time.time() % PERIOD - moment < PERIOD / 16, END_S, tick=0.0005)
        cluster.hub.kill()
        cluster.start_hub(settings)
    go_on()
    assert {len(ids) for ids in tasks_by_tick(journal).values()} == {1}


@pytest.mark.timeout(120)
def test_no_tick_fires_twice_when_the_hub_is_killed_around_it(cluster: Cluster, tmp_path: Path):
    kill_around_ticks(cluster, tmp_path, 4)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_two_hundred_times(cluster: Cluster, tmp_path: Path):
    kill_around_ticks(cluster, tmp_path, 200)
