"""The same jobs on clusters: executors that die, hosts that are slow. Numbers are acceptance rows."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from taskmesh import Mesh
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.requirement import require_java
from tests.harness.waiting import wait_until
from tests.spark.drivers import JOB_S, Driver, Standalone, driving, executors, settled
from tests.spark.jobs import left

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(400)]

CLIENT_GONE_S = 7.0
"""The hub gives a client that is silent 5 s."""


@pytest.fixture(scope="module")
def address(mesh_programs: Programs) -> str:
    """A hub with two pools of two slots."""
    found = mesh_programs.hub()[1]
    for name in ("one", "two"):
        mesh_programs.worker(found, "--name", name, slots=2)
    return found


@pytest.fixture(scope="module")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Two executors, started by the driver itself."""
    require_java()
    pytest.importorskip("pyspark.sql")
    with driving(tmp_path_factory.mktemp("cluster"), {"master": "local-cluster[2,2,512]"}) as driver:
        yield driver


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Standalone, Driver]]:
    """A Master, two Workers that count as two hosts, and a driver that speculates."""
    require_java()
    pytest.importorskip("pyspark.sql")
    settings = {
        "spark.executor.cores": "2",
        "spark.cores.max": "4",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "1s",
    }
    folder = tmp_path_factory.mktemp("standalone")
    with (
        Standalone(folder) as cluster,
        driving(folder, {"master": cluster.url, **settings}) as driver,
    ):
        yield cluster, driver


def _clients(address: str) -> dict[str, dict]:
    with Mesh(address) as mesh:
        return {client["client"]: client for client in mesh.status()["clients"]}


def _working(
    jvms: list[psutil.Process], clients: dict[str, dict]
) -> tuple[psutil.Process, dict[str, int]] | None:
    """An executor with its clients that have tasks, and their processes; one may just have been started."""
    busy = {key: int(one["name"].split(":")[1]) for key, one in clients.items() if one["tasks"]}
    for jvm in jvms:
        pids = {child.pid for child in jvm.children(recursive=True)}
        its = {key: pid for key, pid in busy.items() if pid in pids}
        if its:
            return jvm, its
    return None


@pytest.mark.parametrize("job", ["offloaded_udf", "grouped"])
def test_a_session_without_the_daemon_is_told_which_one_it_needs(local_cluster, address, job):
    with pytest.raises(AssertionError, match=r"Start Spark with --conf spark.python.daemon.module=taskmesh"):
        local_cluster.run(job, address=address)


def test_row_01_the_same_job_on_a_local_cluster(local_cluster, address):
    assert local_cluster.run("same", address=address) == {"equal": True, "rows": 1000}
    assert local_cluster.run("rdd", address=address) == [str(n) for n in range(100)]


def test_row_01_the_same_job_on_a_standalone_cluster(standalone, address):
    _, driver = standalone

    assert driver.run("same", address=address) == {"equal": True, "rows": 1000}
    assert driver.run("rdd", address=address) == [str(n) for n in range(100)]


def test_row_34_executors_of_a_standalone_cluster_dial_the_driver(standalone, programs, tmp_path):
    _, driver = standalone
    ring, path = Ring(tmp_path), tmp_path / "address"
    shutil.copy(ring.mesh, ring.hub.path)
    keys = {"hub_keys": str(ring.hub.path), "keys": ring.peer("client", "executors")}
    job = driver.start("served", path=path, more={"bind": "tcp://0.0.0.0:0", **keys})
    (address,) = wait_until(lambda: settled(path), 60, "the driver listens")

    programs.worker(address, "--keys", ring.peer("worker", "far"))

    assert job.result(JOB_S) == list(range(1000))


def test_row_17_an_executor_killed_in_the_middle_of_a_task(local_cluster, address, tmp_path):
    path = tmp_path / "noted"
    job = local_cluster.start("noted", address=address, path=path, seconds=0.5, rows=96, batch=2, more={})
    wait_until(lambda: len(settled(path)) >= 12, 60, "pieces run")
    victim, before = wait_until(
        lambda: _working(executors(local_cluster.process.pid), _clients(address)),
        30,
        "an executor has pieces under way",
    )

    victim.kill()

    killed = time.monotonic()
    wait_until(lambda: not any(map(psutil.pid_exists, before.values())), 10, "its Python workers end with it")
    wait_until(
        lambda: not any(client["tasks"] for key, client in _clients(address).items() if key in before),
        30,
        "the hub has dropped what the dead executor's clients had",
    )
    assert time.monotonic() - killed < 4 * CLIENT_GONE_S
    assert job.result(90) == list(range(96))
    wait_until(lambda: not left(address), 10, "the queue is empty again")


def test_row_18_an_executor_killed_with_the_map_output_of_a_mesh_step(local_cluster, address, tmp_path):
    executions, begun, go = (tmp_path / name for name in ("executions", "begun", "go"))
    job = local_cluster.start("reduced", address=address, executions=executions, begun=begun, go=go)
    holder = int(wait_until(lambda: settled(begun), 90, "the stage after the shuffle runs")[0])
    victim = next(
        each for each in executors(local_cluster.process.pid) if each in psutil.Process(holder).parents()
    )

    victim.kill()
    go.touch()

    expected = sorted((rest, sum(2 * n for n in range(400) if n % 7 == rest)) for rest in range(7))
    assert [tuple(pair) for pair in job.result(90)] == expected
    runs = Counter(line.rpartition(" ")[0] for line in settled(executions))
    assert max(runs.values()) >= 2, "a partition ran twice with the same stage, number and attempt"
    assert len(set(settled(executions))) == len(settled(executions))


def test_row_19_a_straggler_gets_a_twin_and_its_loser_is_cancelled(standalone, address, tmp_path):
    _, driver = standalone
    path = tmp_path / "noted"
    began = time.monotonic()

    found = driver.run("straggling", address=address, path=path, seconds=60.0, more={})

    assert found == list(range(40))
    assert time.monotonic() - began < 50  # the straggler alone takes 60 s
    assert Counter(settled(path))["30"] == 2
    wait_until(lambda: not left(address), 15, "the loser's piece is given up")


def test_row_19_with_shared_results_the_twin_waits_for_the_first(standalone, address, tmp_path):
    _, driver = standalone
    path = tmp_path / "noted"

    found = driver.run("straggling", address=address, path=path, seconds=6.0, more={"dedupe": "result"})

    assert found == list(range(40))
    assert set(Counter(settled(path)).values()) == {1}
