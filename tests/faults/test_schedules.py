"""Schedules and delays while hubs and pools are killed: rows W16 and W18; the long version is a soak."""

import time
from pathlib import Path

import pytest

from taskmesh import gather
from tests.faults.workload import stamp
from tests.harness.cluster import LEASE, OVERRIDES, SETTINGS, Cluster
from tests.harness.journal import Journal
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.fault
END_S = 60.0
PERIOD = 0.2
MODULE = """
from taskmesh import Schedule, current_task, task
from tests.harness.journal import Journal

@task(schedule=Schedule({period}, overlap="allow", catchup={catchup!r}))
def tick():
    Journal({path!r}).append(str(current_task().scheduled_for.timestamp()){more})
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


def kill_around_ticks(
    cluster: Cluster, journal: Journal, times: int, settings: dict[str, str] | None = None
) -> list[str]:
    """Kills the hub so often, each time a little later after a tick; returns what was noted."""
    catchup, more = ("all", ' + " " + current_task().id') if settings else ("latest", "")
    text = MODULE.format(period=PERIOD, path=journal.path, catchup=catchup, more=more)
    (cluster.folder / "timely.py").write_text(text)
    cluster.start_hub(settings)
    cluster.start_worker("timed", "timely")
    for turn in range(times):
        before = len(journal.lines())
        wait_until(lambda before=before: len(journal.lines()) >= before + 2, END_S)
        moment = turn % 8 * PERIOD / 8
        wait_until(lambda moment=moment: 0 <= time.time() % PERIOD - moment < PERIOD / 16, END_S, tick=0.0005)
        cluster.hub.kill()
        cluster.start_hub(settings)
    before = len(journal.lines())
    wait_until(lambda: len(journal.lines()) >= before + 2, END_S)
    return journal.lines()


def check_memory(lines: list[str]) -> None:
    assert len(set(lines)) == len(lines), "no tick fires twice"
    assert all(float(line) % PERIOD < 1e-6 or PERIOD - float(line) % PERIOD < 1e-6 for line in lines)


@pytest.mark.timeout(120)
def test_w18_no_tick_fires_twice_when_the_hub_is_killed_around_it(cluster: Cluster, tmp_path: Path):
    check_memory(kill_around_ticks(cluster, Journal(tmp_path / "journal"), 4))


def tasks_by_tick(journal: Journal) -> dict[int, set[str]]:
    tasks: dict[int, set[str]] = {}
    for tick, task_id in map(str.split, journal.lines()):
        tasks.setdefault(round(float(tick) / PERIOD), set()).add(task_id)
    return tasks


def check_durable(cluster: Cluster, journal: Journal, times: int, settings: dict[str, str]) -> None:
    """A firing may run twice, should its end not have been written; it is the same task then."""
    kill_around_ticks(cluster, journal, times, settings)
    last = max(tasks_by_tick(journal))

    def are_all_fired() -> bool:
        fired = tasks_by_tick(journal)
        return fired.keys() >= set(range(min(fired), last + 1))

    wait_until(are_all_fired, END_S, "no tick is passed over", tick=0.05)
    assert {len(ids) for ids in tasks_by_tick(journal).values()} == {1}, "no tick fires twice"


@pytest.mark.timeout(120)
def test_w18_with_a_journal_each_tick_fires_once_when_the_hub_is_killed_around_it(
    cluster: Cluster, tmp_path: Path
):
    settings = {**SETTINGS, "TASKMESH_JOURNAL": str(tmp_path / "tasks.journal")}
    check_durable(cluster, Journal(tmp_path / "journal"), 4, settings)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("durable", [False, True])
def test_w18_two_hundred_times(cluster: Cluster, tmp_path: Path, durable: bool):
    journal = Journal(tmp_path / "journal")
    if durable:
        settings = {**SETTINGS, "TASKMESH_JOURNAL": str(tmp_path / "tasks.journal")}
        check_durable(cluster, journal, 200, settings)
    else:
        check_memory(kill_around_ticks(cluster, journal, 200))
