"""A mesh in the driver, for the time of its job. The number is the acceptance row."""

import shutil
from types import SimpleNamespace

import pytest

from taskmesh import Mesh, task
from taskmesh.errors import ConfigError, HubUnreachable, InsecureBind
from taskmesh.spark import MeshSpark
from taskmesh.spark.jobs.driver_mesh import host_to_dial
from tests.harness.keys import Ring
from tests.harness.waiting import wait_until
from tests.spark import tasks
from tests.spark.jobs import Job, Journal

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

LOOPBACK = "tcp://127.0.0.1:0"
EVERYWHERE = "tcp://0.0.0.0:5550"
ROWS = 400


def _collected(spark, bridge):
    df = bridge.map_arrow(spark.range(0, 4, numPartitions=2), tasks.same, "id long")
    return [row.id for row in df.collect()]


def test_row_34_executors_and_workers_dial_the_driver(spark, programs):
    with MeshSpark.serve(spark, bind=LOOPBACK, window=2) as bridge:
        (address,) = bridge.address
        worker = programs.worker(address, "--name", "far")

        assert _collected(spark, bridge) == [0, 1, 2, 3]
        assert bridge.window == 2
        assert task(abs).submit(-3).result(20) == 3, "it is the current mesh of the driver's own code"
        with Mesh(address) as mesh:
            assert [pool["pool"] for pool in mesh.status()["pools"]] == ["far"]

    with pytest.raises(HubUnreachable), Mesh(address, open_timeout=0.5):
        pass
    assert worker.alive, "it serves the next program that listens there"
    with MeshSpark.serve(spark, bind=address) as bridge:
        assert _collected(spark, bridge) == [0, 1, 2, 3]


@pytest.mark.fault
def test_row_34_a_worker_killed_in_the_middle_costs_no_spark_task(spark, programs, tmp_path):
    journal = Journal(tmp_path)
    with MeshSpark.serve(spark, bind=LOOPBACK) as bridge:
        workers = [programs.worker(bridge.address[0], "--name", name) for name in ("one", "two")]
        df = spark.range(0, ROWS, numPartitions=2)
        mapped = bridge.map_arrow(df, journal.task(0.03), "id long", chunksize=5)
        job = Job(spark, lambda: [row.id for row in mapped.collect()])
        wait_until(lambda: len(journal.lines) >= ROWS // 5 // 5, 30, "a fifth of the batches has begun")

        workers[0].kill()

        assert job.result() == list(range(ROWS))
        assert job.failed_tasks == 0
        assert len(set(journal.lines)) == ROWS // 5


def test_row_34_a_mesh_on_every_interface_is_dialled_at_the_driver_s_host(spark, programs, tmp_path):
    ring = Ring(tmp_path)
    shutil.copy(ring.mesh, ring.hub.path)
    serving = MeshSpark.serve(
        spark, bind="tcp://0.0.0.0:0", hub_keys=str(ring.hub.path), keys=ring.peer("client", "executors")
    )
    with serving as bridge:
        (address,) = bridge.address
        assert address.startswith("tcp://127.0.0.1:"), spark.conf.get("spark.driver.host")
        programs.worker(address, "--keys", ring.peer("worker", "far"))

        assert _collected(spark, bridge) == [0, 1, 2, 3]


def test_row_34_without_keys_it_listens_on_loopback_only(spark):
    with (
        pytest.raises(InsecureBind, match=r"(?s)only loopback.*hub_keys=DIR"),
        MeshSpark.serve(spark, bind="tcp://0.0.0.0:0"),
    ):
        pass


def test_row_34_a_setting_that_cannot_be_used_leaves_nothing_open(spark):
    with pytest.raises(ConfigError, match="window"), MeshSpark.serve(spark, bind=LOOPBACK, window=0):
        pass


@pytest.mark.parametrize(
    ("bind", "advertise", "host"),
    [
        (EVERYWHERE, "", "driver-svc.jobs"),
        ("tcp://*:5550", "", "driver-svc.jobs"),
        ("tcp://[::]:5550", "", "driver-svc.jobs"),
        ("tcp://10.0.0.7:5550", "", ""),
        ("ipc:///tmp/hub", "", ""),
        (EVERYWHERE, "other", "other"),
        ("tcp://127.0.0.1:5550", "through-a-tunnel", "through-a-tunnel"),
        (EVERYWHERE, "[fd00::1]", "[fd00::1]"),
    ],
)
def test_the_host_is_that_of_bind_or_the_driver_s(bind, advertise, host):
    spark = SimpleNamespace(conf={"spark.driver.host": "driver-svc.jobs"})

    assert host_to_dial(spark, bind, advertise) == host


@pytest.mark.parametrize(
    ("conf", "bind", "advertise", "error"),
    [
        ({}, EVERYWHERE, "", "advertise='HOST'"),
        ({"spark.driver.host": "*"}, EVERYWHERE, "", "advertise='HOST'"),
        ({}, EVERYWHERE, "tcp://driver:5550", "without a port"),
        ({}, EVERYWHERE, "driver:5550", "without a port"),
        ({}, "ipc:///tmp/hub", "driver", "has none"),
        ({}, "driver", "", "is not an address"),
    ],
)
def test_a_host_that_nobody_can_dial_is_refused(conf, bind, advertise, error):
    with pytest.raises(ConfigError, match=error):
        host_to_dial(SimpleNamespace(conf=conf), bind, advertise)
