"""Pipes over pools of their own, at the pace of the slowest, and whoever dies on the way."""

import time
from collections.abc import Iterator
from itertools import count, islice

import pytest

from taskmesh import Mesh
from taskmesh.function import Task, task
from tests.harness.cluster import SETTINGS, Cluster
from tests.harness.programs import Programs
from tests.hosting import workload

SLOW_S = 0.02
ITEMS = 100
ROOM = 20
MANY = 1500
QUICK: Task = task(queue="quick")(workload.stage)
SLOW: Task = task(queue="slow")(workload.stage)


@pytest.fixture
def cluster(programs: Programs) -> Cluster:
    cluster = Cluster(programs)
    cluster.start_hub(env=SETTINGS)
    cluster.start_worker("quick", "--queues", "quick", slots=1)
    cluster.start_worker("slow", "--queues", "slow", slots=1)
    return cluster


class Source:
    """An endless source of items, with the times that the stages take for each."""

    def __init__(self, *seconds: float) -> None:
        self.drawn = 0
        self._seconds = seconds

    def __iter__(self) -> Iterator[tuple[int, list[float]]]:
        for item in count():
            self.drawn += 1
            yield item, list(self._seconds)


@pytest.mark.parametrize("ordered", [True, False])
def test_the_slowest_stage_sets_the_pace_and_holds_the_source_back(cluster: Cluster, ordered: bool):
    source, taken = Source(0.0, SLOW_S / 10, SLOW_S), []
    with cluster.mesh() as mesh:
        pipe = mesh.pipe(source, QUICK, QUICK, SLOW, buffersize=ROOM, ordered=ordered)
        taken.append(next(pipe)[0])
        began = time.monotonic()
        for item, _ in islice(pipe, ITEMS):
            taken.append(item)
            assert source.drawn - len(taken) <= ROOM
            assert len(mesh._client.table._upstream._futures) <= 2 * ROOM
        rate = ITEMS / (time.monotonic() - began)
        pipe.close()

    assert set(range(ITEMS - 2 * ROOM)) <= set(taken)  # none is overtaken for ever
    assert len(set(taken)) == ITEMS + 1
    assert not ordered or taken == sorted(taken)
    assert rate >= 0.8 / SLOW_S  # 0.95 on a machine that nothing else uses


def results_of(mesh: Mesh, *, ordered: bool) -> Iterator[int]:
    items = ((item, [0.0, 0.0, 0.001]) for item in range(MANY))
    return (item for item, _ in mesh.pipe(items, QUICK, QUICK, SLOW, buffersize=200, ordered=ordered))


@pytest.mark.parametrize("ordered", [pytest.param(True, marks=pytest.mark.smoke), False])
def test_the_hub_is_killed_and_each_result_comes_once(cluster: Cluster, ordered: bool):
    with cluster.mesh() as mesh:
        results = results_of(mesh, ordered=ordered)
        taken = list(islice(results, MANY // 3))
        cluster.hub.kill()
        cluster.start_hub(env=SETTINGS)
        taken += results

    assert sorted(taken) == list(range(MANY))
    assert not ordered or taken == sorted(taken)


@pytest.mark.parametrize("name", ["quick", "slow"])
def test_a_pool_is_killed_and_each_result_comes_once(cluster: Cluster, name: str):
    with cluster.mesh() as mesh:
        results = results_of(mesh, ordered=False)
        taken = list(islice(results, MANY // 3))
        cluster.pools[name].kill()
        cluster.start_worker(f"{name}-again", "--queues", name, slots=1)
        taken += results

    assert sorted(taken) == list(range(MANY))
