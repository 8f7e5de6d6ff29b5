"""Spark Connect: what works there works as on classic Spark, and what cannot says what to use instead."""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.harness.requirement import require_java
from tests.harness.waiting import wait_until
from tests.spark.drivers import JOB_S, Driver, driving, settled

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


DAEMON = {"spark.python.daemon.module": "taskmesh.spark.daemon"}


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver that knows its Spark through gRPC only."""
    require_java()
    pytest.importorskip("grpc", reason="Spark Connect: pip install grpcio grpcio-status")
    with driving(tmp_path_factory.mktemp("connect"), {"remote": "local[2]", **DAEMON}) as driver:
        yield driver


def test_row_28_dataframes_and_udfs_are_as_on_classic_spark(connect, address):
    assert connect.run("same", address=address) == {"equal": True, "rows": 1000}


def test_spark_s_own_functions_are_as_on_classic_spark(connect, address):
    assert connect.run("offloaded", address=address) == {"equal": True, "jobs": 8, "groups": 10}


def test_modules_of_the_session_s_artifacts_are_imported_in_slots(connect, address, tmp_path):
    (tmp_path / "of_session.py").write_text("def plus(number):\n    return number + 1\n")

    assert connect.run("with_module", address=address, path=tmp_path / "of_session.py") == [1, 2, 3]


def test_row_28_rdds_and_counts_name_the_alternative(connect, address):
    with pytest.raises(AssertionError, match="Spark Connect has no RDDs: use map_arrow or map_batches"):
        connect.run("rdd", address=address)
    with pytest.raises(AssertionError, match="Spark Connect has no accumulators"):
        connect.run("counted", address=address)


def test_row_34_a_mesh_on_every_interface_needs_the_host_that_executors_dial(connect, programs, tmp_path):
    path, bind = tmp_path / "address", "tcp://0.0.0.0:0"
    with pytest.raises(AssertionError, match="advertise='HOST'"):
        connect.run("served", path=path, more={"bind": bind})
    job = connect.start("served", path=path, more={"bind": "tcp://127.0.0.1:0"})
    (address,) = wait_until(lambda: settled(path), 60, "the program listens")

    programs.worker(address)

    assert job.result(JOB_S) == list(range(1000))


def test_row_28_a_stream_into_a_sink_on_the_mesh(connect, address, tmp_path):
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.mkdir()
    for number in range(2):
        ids = list(range(10 * number, 10 * number + 10))
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), source / f"{number}.parquet")

    assert (
        connect.run("into_sink", address=address, source=source, checkpoint=tmp_path / "c", sink=sink) == 20
    )

    lines = Counter(settled(sink))
    assert sorted(int(line.rpartition("/")[2]) for line in lines) == list(range(20))
    assert {line.partition("/")[0] for line in lines} == {"q"}
