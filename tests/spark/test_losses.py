"""Pools, hubs and Spark's own workers that go away in the middle of a job. Numbers are acceptance rows."""

import importlib
import os
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow as pa
import pytest

from taskmesh import Mesh
from taskmesh.serialize.code import dump_function
from taskmesh.spark import MeshSpark
from taskmesh.spark.jobs.connection import mesh_of
from taskmesh.spark.jobs.partitions import ArrowPartition
from taskmesh.spark.jobs.remote_task import RemoteTask
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.step import Step
from tests.harness.gate import wait_at
from tests.harness.waiting import wait_until
from tests.spark import tasks
from tests.spark.drivers import settled
from tests.spark.jobs import Job, Journal, Timed, left, note, within
from tests.spark.memory import Workers

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(400)]

ROWS = 400
AWAY_S = 8.0
LIMIT_S = 8.0
"""Nominally three tries take one and a half of it; the rest of two is for a busy machine."""
IDS = [(number,) for number in range(ROWS)]


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path)


def _job(spark, bridge, journal, seconds, partitions=2, rows=ROWS):
    df = spark.range(0, rows, numPartitions=partitions)
    mapped = bridge.map_arrow(df, journal.task(seconds), "id long", chunksize=5)
    return Job(spark, lambda: [tuple(row) for row in mapped.collect()])


def test_row_13_a_pool_killed_in_the_middle_costs_no_spark_task(spark, own_mesh, journal):
    own_mesh.pool("one")
    own_mesh.pool("two")
    job = _job(spark, MeshSpark(own_mesh.address), journal, 0.03)
    wait_until(lambda: len(journal.lines) >= ROWS // 5 // 5, 30, "a fifth of the batches has begun")

    own_mesh.pools[0].kill()

    assert job.result() == IDS
    assert job.failed_tasks == 0
    again = len(journal.lines) - len(set(journal.lines))
    assert len(set(journal.lines)) == ROWS // 5
    assert again <= 2 * 4  # two partitions, a window of four


def test_row_14_both_pools_killed_and_a_new_one(spark, own_mesh, journal):
    own_mesh.pool("one")
    own_mesh.pool("two")
    job = _job(spark, MeshSpark(own_mesh.address), journal, 0.02)
    wait_until(lambda: len(journal.lines) >= 10, 30)
    for pool in own_mesh.pools:
        pool.kill()
    with Mesh(own_mesh.address) as mesh:
        wait_until(lambda: not mesh.status()["pools"], 20, "the hub has given both up")
    assert not job.over

    own_mesh.pool("three")

    assert job.result() == IDS
    assert job.failed_tasks == 0


def test_row_14_both_pools_killed_and_none_that_is_new(spark, own_mesh, journal):
    own_mesh.pool("one")
    bridge = MeshSpark(own_mesh.address, no_worker_timeout=3.0)
    job = _job(spark, bridge, journal, 0.02)
    wait_until(lambda: len(journal.lines) >= 10, 30)

    own_mesh.pools[0].kill()

    text = job.failure()
    assert "NoMeshWorkers: no pool for queue 'default'" in text
    assert own_mesh.address in text
    assert "no_worker_timeout" in text


@pytest.fixture
def one_partition(spark, tmp_path):
    """Rows whose tries are timed."""
    return Timed(spark.range(0, 4, numPartitions=1), tmp_path / "seconds")


def test_row_15_no_pool_for_the_queue_or_tags(spark, own_mesh, one_partition):
    own_mesh.pool("one", "--queues", "other")
    bridge = MeshSpark(own_mesh.address, queue="gpu", tags=("big",), no_worker_timeout=LIMIT_S)

    text = Job(spark, bridge.map_arrow(one_partition, tasks.same, "id long").collect).failure()

    assert "NoMeshWorkers: no pool for queue 'gpu' and tags big" in text
    assert "pools there: one serves other" in text
    assert f"taskmesh worker --address {own_mesh.address} --queues gpu --tags big`" in text
    within(LIMIT_S, one_partition)


def test_row_15_nobody_at_the_address(spark, one_partition):
    bridge = MeshSpark("tcp://127.0.0.1:9", connect_timeout=LIMIT_S)

    text = Job(spark, bridge.map_arrow(one_partition, tasks.same, "id long").collect).failure()

    assert "HubUnreachable" in text
    assert "tcp://127.0.0.1:9" in text
    assert "authorize" not in text, "another error than of a key"
    within(LIMIT_S, one_partition)


def test_row_15_a_function_that_pools_do_not_have(spark, mesh, one_partition, tmp_path, monkeypatch):
    (tmp_path / "only_on_the_driver.py").write_text("def same(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("only_on_the_driver")
    try:
        text = Job(spark, mesh.map_arrow(one_partition, module.same, "id long").collect).failure()
    finally:
        del sys.modules["only_on_the_driver"]

    assert "FunctionUnavailable" in text
    assert "finds no module 'only_on_the_driver'" in text
    assert "register_by_value" in text
    within(LIMIT_S, one_partition)


def test_row_16_a_hub_killed_and_started_again_costs_no_spark_task(spark, own_mesh, journal):
    own_mesh.pool("one")
    own_mesh.pool("two")
    job = _job(spark, MeshSpark(own_mesh.address), journal, 0.03)
    wait_until(lambda: len(journal.lines) >= 10, 30)

    own_mesh.hub.kill()
    back = time.monotonic() + AWAY_S
    wait_until(lambda: time.monotonic() > back, 2 * AWAY_S, "it has been away for long")
    own_mesh.programs.hub(own_mesh.address)

    assert job.result() == IDS
    assert job.failed_tasks == 0


def test_row_16_work_goes_on_as_soon_as_the_hub_is_back(spark, own_mesh, tmp_path):
    """For ten seconds nothing ran, though pools and clients were there again after one."""
    own_mesh.pool("one")
    own_mesh.pool("two")
    path = str(tmp_path / "ends")

    def timed(batch):
        threading.Event().wait(0.05)
        note(path, time.monotonic())  # one clock for all processes of a machine
        return batch

    df = spark.range(0, 2 * ROWS, numPartitions=2)
    mapped = MeshSpark(own_mesh.address).map_arrow(df, timed, "id long", chunksize=5)
    job = Job(spark, lambda: [row.id for row in mapped.collect()])
    wait_until(lambda: len(settled(Path(path))) >= 20, 30)

    own_mesh.hub.kill()
    own_mesh.programs.hub(own_mesh.address)

    assert job.result() == list(range(2 * ROWS))
    assert job.failed_tasks == 0
    ends = sorted(map(float, settled(Path(path))))
    longest = max(after - before for before, after in pairwise(ends))
    assert longest < 6, "a hub's start, a second and two beats; a busy machine takes as long again"


def test_row_16_and_20_shared_results_outlive_the_hub_that_has_a_journal(spark, programs, tmp_path, journal):
    settings = {"TASKMESH_JOURNAL": str(tmp_path / "tasks.journal"), "TASKMESH_LEASE": "3"}
    hub, address = programs.hub(**settings)
    programs.worker(address)
    bridge = MeshSpark(address, dedupe="result")
    mapped = bridge.map_arrow(spark.range(0, 40, numPartitions=2), journal.task(), "id long", chunksize=5)
    assert [row.id for row in mapped.collect()] == list(range(40))
    with Mesh(address) as mesh:
        wait_until(lambda: mesh.status()["kept"]["outcomes"] == 8, 10, "all results are kept")
        wait_until(lambda: mesh.status()["journal"]["waiting"] == 0, 10, "and written")

    hub.kill()
    programs.hub(address, **settings)

    assert [row.id for row in mapped.collect()] == list(range(40))
    assert len(journal.lines) == len(set(journal.lines)) == 8, "no batch was computed twice"


def test_row_16_a_hub_that_does_not_come_back(spark, own_mesh, journal):
    own_mesh.pool("one")
    bridge = MeshSpark(own_mesh.address, gateway_timeout=4.0, connect_timeout=1.0)
    job = _job(spark, bridge, journal, 0.03, partitions=1)
    wait_until(lambda: len(journal.lines) >= 5, 30)

    own_mesh.hub.kill()

    wait_until(lambda: job.over, 60)
    assert "MeshGatewayLost" in job.failure() or "HubUnreachable" in job.failure()
    assert own_mesh.address in job.failure()
    own_mesh.pools[0].kill()  # it waits for its hub


def test_row_21_a_cancelled_job_leaves_nothing_on_the_mesh(spark, own_mesh, journal):
    own_mesh.pool("one")
    job = _job(spark, MeshSpark(own_mesh.address), journal, 30.0)
    wait_until(lambda: journal.lines, 30, "a batch runs")
    wait_until(lambda: left(own_mesh.address) >= 4, 10, "others wait")
    began = time.monotonic()

    spark.sparkContext.cancelJobGroup(job.group)

    assert "cancel" in job.failure(10).lower()
    assert time.monotonic() - began < 5
    # Spark kills its worker after 3 s, and the hub gives a client that is silent 5 s
    wait_until(lambda: not left(own_mesh.address), 30, "the hub has given up what nobody waits for")
    quick = MeshSpark(own_mesh.address).map_arrow(spark.range(0, 4, numPartitions=1), tasks.same, "id long")
    assert len(quick.collect()) == 4


def test_row_22_a_limit_does_not_run_the_rest(spark, mesh, address, journal):
    df = spark.range(0, 1_000_000, numPartitions=2)
    # pieces that fill the buffer of Spark's worker at once: else it keeps several back before Spark sees one
    mapped = mesh.map_arrow(df, journal.task(0.1), "id long", chunksize=10_000)

    found = mapped.limit(5).collect()

    assert len(found) == 5
    assert len(journal.lines) < 2 * 2 * 4  # two tasks, two windows
    wait_until(lambda: not left(address), 30, "what was under way is given up")


def test_row_22_a_generator_that_is_closed_early_has_the_hub_cancel_its_window(address, gates):
    first, others = gates(), gates()
    paths = first.path, others.path

    def waits(batch):
        wait_at(paths[batch["id"][0].as_py() > 0])
        return batch

    def batches():
        for number in range(20):
            if number == 3:
                first.open()  # with two more under way
            yield pa.record_batch({"id": [number]}, schema)

    bridge, schema = MeshSpark(address), pa.schema([pa.field("id", pa.int64())])
    step = Step(dump_function(waits), "arrow", ipc.schema_bytes(schema), "raise")
    partition = ArrowPartition(bridge, RemoteTask.of(bridge, waits, step), 1, ipc.schema_bytes(schema))
    before = _cancelled(address)
    results = partition.run(batches())
    try:
        assert next(results)["id"].to_pylist() == [0]
        results.close()

        wait_until(lambda: not left(address), 10, "what was under way is given up")
        assert before + 2 <= _cancelled(address) <= before + bridge.window
    finally:
        mesh_of(bridge).close(cancel=True)


def _cancelled(address):
    """The number of tasks that clients of this hub have cancelled."""
    with Mesh(address) as mesh:
        return mesh.status()["ended"]["cancelled"]


def test_row_23_two_operators_in_one_stage_on_one_pool(spark, own_mesh):
    own_mesh.pool("one")
    bridge = MeshSpark(own_mesh.address, window=1)
    df = spark.range(0, 200, numPartitions=2)

    first = bridge.map_arrow(df, tasks.double, "id long, twice long", chunksize=20)
    second = bridge.map_arrow(first, tasks.evens, "id long, twice long", chunksize=7)

    job = Job(spark, lambda: [tuple(row) for row in second.collect()])
    assert job.result(30) == [(n, 2 * n) for n in range(0, 200, 2)]


class Held(NamedTuple):
    """The descriptors of a process.

    Attributes:
        connections: to a hub's port. sockets: of all kinds; Spark has two or four descriptors of the one by
            which it talks with Java. others: descriptors of what is no socket.
    """

    connections: int
    sockets: int
    others: int

    @classmethod
    def by(cls, process, port):
        there = [each.raddr for each in psutil.Process(process).net_connections("tcp")]
        open_ones = [os.readlink(each) for each in Path(f"/proc/{process}/fd").iterdir()]
        sockets = [each for each in open_ones if each.startswith("socket:")]
        connections = sum(bool(end) and end.port == port for end in there)
        return cls(connections, len(set(sockets)), len(open_ones) - len(sockets))


def test_row_25_fifty_jobs_share_one_client_a_worker(spark, own_mesh):
    own_mesh.pool("one")
    bridge = MeshSpark(own_mesh.address)
    df = spark.range(0, 8, numPartitions=2)
    port = int(own_mesh.address.rpartition(":")[2])

    def jobs(count):
        for _ in range(count):
            assert len(bridge.map_arrow(df, tasks.same, "id long").collect()) == 8

    def clients():
        with Mesh(own_mesh.address) as mesh:
            return sum(client["present"] for client in mesh.status()["clients"]) - 1

    with Workers(spark) as workers:  # with nothing open that another test has left to them

        def held():
            return {worker: Held.by(worker, port) for worker in workers.all()}

        jobs(10)
        before = held()
        jobs(40)

        wait_until(lambda: before.items() <= held().items(), 5, f"they are as they were: {before}")
        assert before
        assert clients() == len(held()) <= 2
        assert {each.connections for each in held().values()} == {1}


def test_row_25_a_fork_in_sparks_worker_gets_a_client_of_its_own(spark, own_mesh):
    own_mesh.pool("one")
    bridge = MeshSpark(own_mesh.address)

    def forked(batches):
        import os

        from taskmesh.spark.jobs.connection import mesh_of

        def answer():
            return mesh_of(bridge).submit(os.getpid).result(20)

        for _ in batches:
            there = answer()
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                os.write(writer, str(answer()).encode())
                os._exit(0)  # noqa: TID251  a forked child that never returns
            os.waitpid(child, 0)
            same = int(os.read(reader, 20)) == there == answer()
            yield pa.RecordBatch.from_pydict({"same": [same]})

    assert spark.range(0, 1, numPartitions=1).mapInArrow(forked, "same boolean").collect()[0].same
