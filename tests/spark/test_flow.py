"""Slow pools and slow sinks on a real mesh: they hold a job up, and nothing piles up on the way."""

import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from taskmesh import Mesh
from taskmesh.spark import MeshSpark
from tests.harness.waiting import wait_until
from tests.spark import tasks
from tests.spark.jobs import Job
from tests.spark.memory import MIB, Workers, memory

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

BATCHES = 48
ROWS = 4096
"""In a batch; with 250 bytes in each, it takes 1.02 MiB."""
STEP_S = 0.1
LOOK_S = 0.02
FLAT = 8 * MIB
"""By how much memory may rise while three quarters of the batches, 37 MiB, go there and back."""


@pytest.fixture
def frame(spark):
    """One partition, which Spark hands over in batches of a mebibyte."""
    limit = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(limit)
    spark.conf.set(limit, str(ROWS))
    text = "repeat(chr(65 + id % 26), 250) as text"
    yield spark.range(0, BATCHES * ROWS, numPartitions=1).selectExpr("id", text)
    spark.conf.set(limit, before)


class Look(NamedTuple):
    """The state at one moment.

    Attributes:
        under_way, bytes: tasks that the hub has, and their size. finished: that it no longer has.
        used: batches that the sink is done with. memory: of processes.
    """

    under_way: int
    bytes: int
    finished: int
    used: int
    memory: dict[int, int]


class Flow:
    """A job that counts and sums, and how it looked meanwhile, again and again."""

    def __init__(self, spark, own_mesh, used: Path, plan) -> None:
        self.looks: list[Look] = []
        self.hub = own_mesh.hub.pid
        with Workers(spark) as workers, Mesh(own_mesh.address) as watcher:
            job = Job(spark, plan().selectExpr("count(*)", "sum(id)").collect)

            def looked() -> bool:
                status, processes = watcher.status(), (self.hub, *workers.all())
                self.looks.append(
                    Look(
                        sum(status["tasks"].values()),
                        status["bytes"],
                        status["finished"],
                        used.stat().st_size,
                        {process: memory(process) for process in processes},
                    )
                )
                return job.over

            wait_until(looked, 200, "the job is over", tick=LOOK_S)
            self.clients = workers.grown()
        count = BATCHES * ROWS
        assert [tuple(row) for row in job.result()] == [(count, count * (count - 1) // 2)]

    def rises(self) -> dict[int, int]:
        """By how much each process's memory was higher than ever in the first quarter of the batches."""
        found = {}
        for process in self.looks[-1].memory:
            early = [look.memory.get(process, 0) for look in self.looks if look.finished <= BATCHES // 4]
            found[process] = max(look.memory.get(process, 0) for look in self.looks) - max(early)
        return found


@pytest.fixture
def used(tmp_path):
    """A file with a byte for each batch that a sink has used."""
    path = tmp_path / "used"
    path.touch()
    return path


def test_row_24_slow_pools_hold_up_what_is_sent_to_them(spark, own_mesh, frame, used):
    own_mesh.pool("one")
    bridge = MeshSpark(own_mesh.address, window=8, window_bytes="5MiB")

    def slow(batch):
        threading.Event().wait(STEP_S)
        return batch

    flow = Flow(spark, own_mesh, used, lambda: bridge.map_arrow(frame, slow, frame.schema, chunksize=ROWS))

    # 5 MiB have room for four; on a busy machine Spark may not hand over so many in the time of one
    assert 2 <= max(look.under_way for look in flow.looks) <= 4
    assert 2 * MIB < max(look.bytes for look in flow.looks) <= 5 * MIB
    assert max(flow.rises().values()) < FLAT
    assert max(flow.clients.values()) < 150 * MIB


def test_row_24_slow_sinks_hold_up_what_is_computed_for_them(spark, own_mesh, frame, used):
    own_mesh.pool("one")
    bridge = MeshSpark(own_mesh.address, window=3)
    path = str(used)

    def sink(batches):
        for batch in batches:
            threading.Event().wait(STEP_S)
            with open(path, "ab") as file:
                file.write(b".")
            yield batch.select(["id"])

    def plan():
        return bridge.map_arrow(frame, tasks.same, frame.schema, chunksize=ROWS).mapInArrow(sink, "id long")

    flow = Flow(spark, own_mesh, used, plan)

    assert 1 <= max(look.under_way for look in flow.looks) <= 3
    assert max(look.bytes for look in flow.looks) <= 3.1 * MIB
    ahead = max(look.under_way + look.finished - look.used for look in flow.looks)
    assert ahead <= 3 + 6, "the window, and twice what Spark itself was seen to hold between two steps"
    assert max(flow.rises().values()) < FLAT
    assert max(flow.clients.values()) < 150 * MIB
