"""A real Spark session and a real mesh, shared by the tests of this folder."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import leaks
from tests.harness.program import ROOT, Program
from tests.harness.programs import Programs, shared
from tests.harness.requirement import require_java

WORKERS_MARK = "spark-workers-come-and-go"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that starts in half the time; what it compiles is not as fast, which no test needs."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A classic session with two slots and three tries for each task.

    The JVM and its Python workers live as long as the session: they bear a mark of their own.
    """
    require_java()
    pyspark = pytest.importorskip("pyspark.sql", reason="pip install '.[spark]'")
    before = dict(os.environ)
    path = [str(ROOT), *filter(None, [before.get("PYTHONPATH")])]
    os.environ |= {
        leaks.MARK: WORKERS_MARK,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONWARNINGS": "ignore",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }
    session = (
        pyspark.SparkSession.builder.master("local[2,3]")
        .appName("taskmesh tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.python.daemon.module", "taskmesh.spark.daemon")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", tmp_path_factory.mktemp("events").as_uri())
        .config("spark.eventLog.rolling.enabled", "false")
        .config("spark.eventLog.compress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.executorEnv.MODEL_NAME", "small")
        .config("spark.executorEnv.HOME", "/of/executors")
        .getOrCreate()
    )
    os.environ.clear()
    os.environ.update(before)
    # Py4J opens connections, and never closes them, when an object is given back in the midst of a call, and
    # when Java's collector finds an object of Python's: both are nothing that a test does.
    leaks.KEPT_PEERS.add(session.sparkContext._gateway.proc.pid)
    session.range(4).mapInArrow(lambda batches: batches, "id long").collect()  # opens what stays open
    try:
        yield session
    finally:
        leaks.KEPT_PEERS.clear()
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM waits for this
        gateway.proc.wait(20)


@pytest.fixture(scope="session")
def mesh_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    yield from shared(tmp_path_factory.mktemp("mesh"))


@pytest.fixture(scope="session")
def address(mesh_programs: Programs) -> str:
    """A hub with two pools of one slot each."""
    found = mesh_programs.hub()[1]
    for name in ("one", "two"):
        mesh_programs.worker(found, "--name", name)
    return found


@pytest.fixture
def mesh(address: str) -> Any:
    """The bridge to the shared mesh."""
    from taskmesh.spark import MeshSpark

    return MeshSpark(address)


@pytest.fixture(params=["mesh", "local"])
def bridge(request: pytest.FixtureRequest, mesh: Any) -> Any:
    """The bridge, and one inside of Spark's workers."""
    return mesh if request.param == "mesh" else mesh.local()


@pytest.fixture
def conf(spark: Any) -> Iterator[dict[str, str]]:
    """Entries of the session's conf for one test; it has what they were before."""

    class Entries(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            self.setdefault(name, spark.conf.get(name, None))
            spark.conf.set(name, value)

    entries = Entries()
    yield entries
    for name, before in entries.items():
        spark.conf.set(name, before) if before else spark.conf.unset(name)


class Mesh:
    """A mesh of one test's own: a hub, and pools that come and go."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.hub, self.address = programs.hub()
        self.pools: list[Program] = []

    def pool(self, name: str, *options: str) -> Program:
        """Starts a pool of one slot."""
        program = self.programs.worker(self.address, "--name", name, *options)
        self.pools.append(program)
        return program


@pytest.fixture
def own_mesh(programs: Programs) -> Mesh:
    return Mesh(programs)
