"""Several meshes share the partitions of a job: number i is for the mesh at i modulo their number."""

import pytest

from taskmesh import Mesh
from taskmesh.client.submitter import client_of
from taskmesh.spark import MeshSpark
from taskmesh.spark.jobs.connection import mesh_of
from tests.spark import tasks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ROWS, CHUNK = 400, 5


@pytest.fixture
def addresses(programs):
    """Two hubs, each with a pool of its own."""
    found = [programs.hub()[1] for _ in range(2)]
    for address in found:
        programs.worker(address)
    return found


@pytest.fixture
def bridge(addresses):
    return MeshSpark(tuple(addresses))


def test_every_partition_has_a_mesh_of_its_own_and_keeps_it(bridge):
    meshes = [mesh_of(bridge, partition=partition) for partition in range(5)]
    try:
        assert [client_of(mesh).config.mesh.address for mesh in meshes[:2]] == list(bridge.address)
        assert meshes[0] is meshes[2] is meshes[4], "a process has a client for each mesh"
        assert meshes[1] is meshes[3] is not meshes[0]
    finally:
        for mesh in meshes[:2]:
            mesh.close()


def test_each_runs_half_of_the_partitions_of_a_job(spark, addresses, bridge):
    df = spark.range(0, ROWS, numPartitions=4)

    found = bridge.map_arrow(df, tasks.same, "id long", chunksize=CHUNK).collect()

    assert [row.id for row in found] == list(range(ROWS))
    for address in addresses:
        with Mesh(address) as mesh:
            assert mesh.status()["ended"]["succeeded"] == ROWS / CHUNK / 2
