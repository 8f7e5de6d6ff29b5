"""Several hubs share the partitions of a job, and stand in for each other."""

import os

import pytest

from taskmesh.client.submitter import client_of
from taskmesh.spark import MeshSpark
from taskmesh.spark.jobs import connection
from taskmesh.spark.jobs.connection import mesh_of
from tests.harness.gate import wait_at
from tests.harness.waiting import wait_until
from tests.spark.jobs import Job, Journal, left

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROWS, CHUNK = 400, 5
PAUSE_S = 0.05
IDS = [(number,) for number in range(ROWS)]


@pytest.fixture
def hubs(programs):
    """Two hubs, and two pools that serve both."""
    found = [programs.hub() for _ in range(2)]
    for name in ("one", "two"):
        programs.worker(found[0][1], "--address", found[1][1], "--name", name)
    return found


@pytest.fixture
def bridge(hubs):
    return MeshSpark(tuple(address for _, address in hubs))


@pytest.fixture
def job(spark, bridge, tmp_path):
    """A job of four partitions, two at a time."""
    df = spark.range(0, ROWS, numPartitions=4)
    mapped = bridge.map_arrow(df, Journal(tmp_path).task(PAUSE_S), "id long", chunksize=CHUNK)
    return Job(spark, lambda: [tuple(row) for row in mapped.collect()])


def test_every_partition_has_a_hub_of_its_own_and_keeps_it(bridge):
    first, second = bridge.address
    meshes = [mesh_of(bridge, partition=partition) for partition in range(5)]
    try:
        assert [client_of(mesh).config.mesh.address for mesh in meshes[:2]] == [
            (first, second),
            (second, first),
        ]
        assert meshes[0] is meshes[2] is meshes[4], "a process has a client for each hub"
        assert meshes[1] is meshes[3] is not meshes[0]
    finally:
        for mesh in meshes[:2]:
            mesh.close()


def test_both_get_tasks_of_a_job(hubs, job):
    wait_until(lambda: all(left(address) for _, address in hubs), 30)

    assert job.result() == IDS
    assert job.failed_tasks == 0


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_is_killed_costs_no_row_and_no_spark_task(hubs, job, place):
    wait_until(lambda: all(left(address) for _, address in hubs), 30)

    hubs[place][0].kill()

    assert job.result() == IDS
    assert job.failed_tasks == 0


def test_one_that_is_back_gets_its_partitions_again(hubs, bridge, programs, gates, monkeypatch):
    """Else all partitions of a long job would stay at one hub once each had been updated."""
    monkeypatch.setattr(connection, "FIRST_RETURN_S", 0.0)
    (killed, address), gate = hubs[0], gates()
    away = mesh_of(bridge)
    killed.kill()
    assert away.submit(os.getpid).result(30) > 0
    assert client_of(away).is_at_stand_in
    programs.hub(address)
    under_way = away.submit(wait_at, gate.path)

    assert mesh_of(bridge) is mesh_of(bridge) is away, "nothing is given up that is under way"
    gate.open()
    assert under_way.result(30) == "passed"

    try:
        wait_until(lambda: not client_of(mesh_of(bridge)).is_at_stand_in, 20)
        assert mesh_of(bridge).submit(os.getpid).result(30) > 0
    finally:
        mesh_of(bridge).close(cancel=True)
