"""Spark's own code for UDF workers, from PySpark's jars, starts the prototype, drives it and ends it.

PySpark's jars lack two things: the protobuf classes under the name that the messages ask for, and a gRPC
client. So the two jars are rewritten to use the protobuf of Spark Connect, and udf_engine.scala has a
transport over Connect's gRPC. The processes, the states of sessions and their ends are Spark's.
"""

import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.harness.program import environment
from tests.harness.requirement import require_java
from tests.harness.waiting import wait_until
from tests.spark import tasks
from tests.spark.udf_sessions import IDS, TWICE, ids, init_of, partition_of, rows_of

pytest.importorskip("grpc_tools", reason="pip install 'taskmesh[spark,spark-udf-worker]'")

from taskmesh.spark.udf_worker.protocol import Protocol

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

JARS = Path(pyspark.__file__).parent / "jars"
SOURCE = Path(__file__).with_name("udf_engine.scala")
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
ASKED, GIVEN = b"com/google/protobuf", b"org/sparkproject/connect/protobuf"
LENGTHS = {
    3: 5,
    4: 5,
    5: 9,
    6: 9,
    7: 3,
    8: 3,
    9: 5,
    10: 5,
    11: 5,
    12: 5,
    15: 4,
    16: 3,
    17: 5,
    18: 5,
    19: 3,
    20: 3,
}
"""Bytes of a class file's constants by their tags; text (1) has its own length."""


def _relocated(code: bytes) -> bytes:
    """A class that uses Connect's protobuf: its names stand in the table of constants."""
    (count,) = struct.unpack_from(">H", code, 8)
    found, at, number = [code[:10]], 10, 1
    while number < count:
        if code[at] == 1:
            (length,) = struct.unpack_from(">H", code, at + 1)
            text = code[at + 3 : at + 3 + length].replace(ASKED, GIVEN)
            found.append(struct.pack(">BH", 1, len(text)) + text)
            at += 3 + length
        else:
            found.append(code[at : at + LENGTHS[code[at]]])
            number += code[at] in {5, 6}  # long and double take two places
            at += len(found[-1])
        number += 1
    return b"".join([*found, code[at:]])


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the engine, compiled by the compiler among Spark's jars."""
    require_java()
    folder = tmp_path_factory.mktemp("engine")
    with zipfile.ZipFile(folder / "udf.jar", "w") as target:
        for jar in JARS.glob("spark-udf-worker-*.jar"):
            with zipfile.ZipFile(jar) as source:
                for name in source.namelist():
                    if name.startswith("org/apache/spark/udf/") and name.endswith(".class"):
                        target.writestr(name, _relocated(source.read(name)))
    path = os.pathsep.join([str(folder), str(folder / "udf.jar"), *map(str, sorted(JARS.glob("*.jar")))])
    compiler = [*JAVA, "-cp", str(JARS / "*"), "scala.tools.nsc.Main", "-nowarn"]
    subprocess.run([*compiler, "-classpath", path, "-d", str(folder), str(SOURCE)], check=True, timeout=200)
    return path


class Engine:
    """An executor with one session after the other."""

    def __init__(self, classes: str, folder: Path) -> None:
        self.folder = folder
        self._classes = classes
        self._sessions: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None

    def session(self, init: bytes, *, hold: bool = False) -> Path:
        """Add a session over three batches; its folder."""
        folder = self.folder / f"session-{len(self._sessions)}"
        folder.mkdir()
        (folder / "init").write_bytes(init)
        for number in range(3):
            (folder / f"in-{number}").write_bytes(ids(100 * number, 100).serialize().to_pybytes())
        if hold:
            (folder / "hold").touch()
        self._sessions.append(folder)
        return folder

    def start(self) -> None:
        spec = self.folder / "spec"
        spec.write_bytes(_specification())
        main = ["org.apache.spark.udf.worker.engine.Main", str(spec), str(self.folder)]
        line = [*JAVA, "-cp", self._classes, *main, *map(str, self._sessions)]
        self._process = subprocess.Popen(line, env=environment())

    def end(self) -> int:
        assert self._process is not None
        return self._process.wait(120)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def engine(classes: str, tmp_path: Path) -> Iterator[Engine]:
    made = Engine(classes, tmp_path)
    try:
        yield made
    finally:
        made.close()


def _specification() -> bytes:
    """A worker specification as MeshSpark would write it."""
    runner = {"command": [sys.executable], "arguments": ["-m", "taskmesh.spark.udf_worker"]}
    capabilities = {"supported_data_formats": [1], "supported_communication_patterns": [1]}
    properties = {"connection": {"unix_domain_socket": {}}, "initialization_timeout_ms": 30_000}
    fields: dict[str, Any] = {
        "environment": {},
        "capabilities": capabilities,
        "direct": {"runner": runner, "properties": properties},
    }
    message = Protocol().message("UDFWorkerSpecification")(**fields)
    return bytes(message.SerializeToString())


def test_spark_starts_a_worker_runs_a_session_in_it_and_ends_it(engine, address):
    sessions = [engine.session(init_of(partition_of(address, tasks.double))) for _ in range(2)]
    failing = engine.session(init_of(partition_of(address, tasks.fail_as("plain"))))
    engine.start()

    assert engine.end() == 0

    for folder in sessions:
        found = [path.read_bytes() for path in sorted(folder.glob("out-*"))]
        assert rows_of(found, TWICE) == [{"id": number, "twice": 2 * number} for number in range(300)]
        end = (folder / "end").read_text()
        assert end.startswith("Finished(")
        assert 'key: "rows_in"\n  value: "300"' in end
    end = (failing / "end").read_text()
    assert end.startswith("Cancelled(")
    assert "ValueError: no good row" in end


def test_a_session_that_spark_closes_early_is_cancelled_on_the_mesh(engine, own_mesh, gates):
    own_mesh.pool("one")
    gate = gates()
    held = engine.session(init_of(partition_of(own_mesh.address, tasks.held_at(gate.path), IDS)), hold=True)
    after = engine.session(init_of(partition_of(own_mesh.address, tasks.double)))
    engine.start()
    wait_until(gate.reached, 60, "the task runs")

    (held / "hold").unlink()

    assert engine.end() == 0
    assert (held / "end").read_text().startswith("Cancelled(")
    assert (
        (after / "end").read_text().startswith("Finished(")
    )  # the only slot is free, while the gate is shut
