"""Spark's UDF worker protocol: the prototype, driven over its socket by the published messages."""

import os
import queue
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from taskmesh.spark.jobs.partitions import ArrowPartition
from taskmesh.spark.steps import ipc
from tests.harness.program import Program, environment
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.spark import tasks
from tests.spark.udf_sessions import IDS, TWICE, ids, init_fields, partition_of, rows_of

grpc = pytest.importorskip("grpc", reason="pip install 'taskmesh[spark,spark-udf-worker]'")
pytest.importorskip("grpc_tools", reason="pip install 'taskmesh[spark,spark-udf-worker]'")

from taskmesh.spark.udf_worker.protocol import SERVICE, Protocol  # noqa: E402  it needs the extra
from taskmesh.spark.udf_worker.session import payload_of  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ANSWER_S = 60.0
PROTOCOL = Protocol()
Kind = tuple[str, Any]


class Stream:
    """The engine's side of one Execute stream."""

    def __init__(self, channel: Any) -> None:
        self._request = PROTOCOL.message("UdfRequest")
        self._given: queue.SimpleQueue[Any] = queue.SimpleQueue()
        execute = channel.stream_stream(
            f"/{SERVICE}/Execute",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=PROTOCOL.message("UdfResponse").FromString,
        )
        self.call = execute(iter(self._given.get, None), timeout=ANSWER_S)

    def control(self, name: str, **fields: Any) -> None:
        self._given.put(self._request(control={name: fields}))

    def data(self, data: bytes) -> None:
        self._given.put(self._request(data={"data": data}))

    def batch(self, batch: pa.RecordBatch) -> None:
        self.data(batch.serialize().to_pybytes())

    def next(self) -> Kind:
        """The worker's next message, by its name in the protocol."""
        response = next(self.call)
        kind = response.WhichOneof("response")
        message = getattr(response, kind)
        if kind == "control":
            kind = message.WhichOneof("control")
            message = getattr(message, kind)
        return kind, message

    def init(self, partition: ArrowPartition, **fields: Any) -> None:
        self.control("init", **init_fields(partition, **fields))

    def until_control(self) -> tuple[list[bytes], Kind]:
        """The batches up to the next other message, and that."""
        batches = []
        while (found := self.next())[0] == "data":
            batches.append(found[1].data)
        return batches, found

    def close(self) -> None:
        """Half-closes, as the engine does when it knows the outcome, and expects no more."""
        self._given.put(None)
        assert list(self.call) == []
        assert self.call.code() is grpc.StatusCode.OK


class Worker:
    """A worker as Spark starts one, and its channel."""

    def __init__(self, program: Program, path: Path) -> None:
        self.program = program
        self.path = path

    @contextmanager
    def channel(self) -> Iterator[Any]:
        with grpc.insecure_channel(f"unix:{self.path}") as channel:
            grpc.channel_ready_future(channel).result(ANSWER_S)
            yield channel

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        with self.channel() as channel:
            yield Stream(channel)

    def manage(self, **request: Any) -> Kind:
        with self.channel() as channel:
            call = channel.unary_unary(
                f"/{SERVICE}/Manage",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=PROTOCOL.message("WorkerResponse").FromString,
            )
            response = call(PROTOCOL.message("WorkerRequest")(**request), timeout=ANSWER_S)
        kind = response.WhichOneof("manage")
        return kind, getattr(response, kind)


def _started(programs: Programs, folder: Path) -> Worker:
    path = folder / "s"
    line = ["-m", "taskmesh.spark.udf_worker", "--id", "7", "--connection", str(path)]
    return Worker(programs.launch("udf-worker", line), path)


@pytest.fixture(scope="module")
def worker(mesh_programs, tmp_path_factory) -> Worker:
    """One for all tests that leave it running."""
    return _started(mesh_programs, tmp_path_factory.mktemp("udf"))


@pytest.fixture
def own_worker(programs, tmp_path) -> Worker:
    return _started(programs, tmp_path)


def test_a_session_runs_its_batches_on_the_mesh_and_finishes(worker, address):
    with worker.stream() as stream:
        stream.init(partition_of(address, tasks.double), output_schema=ipc.schema_bytes(TWICE))
        assert stream.next()[0] == "init"
        for number in range(20):
            stream.batch(ids(500 * number, 500))
        stream.control("finish")

        batches, (kind, finished) = stream.until_control()
        stream.close()

    assert rows_of(batches, TWICE) == [{"id": number, "twice": 2 * number} for number in range(10_000)]
    assert kind == "finish"
    assert (finished.metrics["rows_in"], finished.metrics["rows_out"]) == ("10000", "10000")


def test_a_session_without_batches_finishes_without_a_mesh(worker):
    with worker.stream() as stream:
        stream.init(partition_of("tcp://127.0.0.1:1", tasks.double))
        assert stream.next()[0] == "init"
        stream.control("finish")

        assert stream.next()[0] == "finish"
        stream.close()


def test_sessions_of_one_worker_run_side_by_side(worker, address):
    with worker.channel() as channel:
        streams = [Stream(channel) for _ in range(5)]
        for stream in streams:
            stream.init(partition_of(address, tasks.double))
            assert stream.next()[0] == "init"
        for number, stream in enumerate(streams):
            stream.batch(ids(10 * number, 10))
        assert worker.manage(heartbeat={})[1].metrics["sessions"] == "5"
        for stream in reversed(streams):
            stream.control("finish")
        found = [stream.until_control() for stream in streams]

    assert [kind for _, (kind, _) in found] == ["finish"] * 5
    assert [rows_of(batches, TWICE)[0]["id"] for batches, _ in found] == [0, 10, 20, 30, 40]


def test_a_large_function_comes_in_chunks_and_is_checked(worker, address):
    partition = partition_of(address, tasks.double)
    payload = payload_of(partition)
    more = {"payload": payload[:10], "payload_size": len(payload), "payload_crc32": zlib.crc32(payload)}
    with worker.stream() as stream:
        stream.init(partition, is_chunking_payload=True, udf=more)
        stream.control("payload", data=payload[10:100])
        stream.control("payload", data=payload[100:], last=True)
        assert stream.next() == ("init", PROTOCOL.message("InitResponse")())

        stream.batch(ids(0, 3))
        stream.control("finish")
        batches, (kind, _) = stream.until_control()

    assert kind == "finish"
    assert len(rows_of(batches, TWICE)) == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"protocol_version": 2}, "this worker speaks version 1"),
        ({"data_format": 0}, "this worker speaks Arrow"),
        ({"udf": {"format": "pyspark-udf-v1"}}, "this worker runs 'taskmesh-partition'"),
        ({"udf": {"payload_crc32": 1}}, "CRC32"),
        ({"udf": {"payload_size": 1}}, "bytes of 1 came"),
        ({"input_schema": b""}, "no input_schema"),
        ({"output_schema": ipc.schema_bytes(IDS)}, "output_schema is"),
    ],
)
def test_an_init_that_this_worker_cannot_do_is_refused_and_the_stream_ends_by_cancel(worker, fields, words):
    with worker.stream() as stream:
        stream.init(partition_of("tcp://127.0.0.1:1", tasks.double), **fields)
        kind, answer = stream.next()
        assert (kind, answer.error.WhichOneof("kind")) == ("init", "protocol")
        assert words in answer.error.protocol.message

        stream.control("cancel")
        assert stream.next()[0] == "cancel"
        stream.close()


def test_messages_out_of_order_are_violations(worker, address):
    def violated(stream, place):
        kind, answer = stream.next()
        assert (kind, answer.error.WhichOneof("kind")) == (place, "protocol")
        stream.control("cancel")
        assert stream.next()[0] == "cancel"
        return answer.error.protocol.message

    with worker.stream() as stream:
        stream.batch(ids(0, 1))
        assert violated(stream, "init") == "data before Init"
    for again in ("init", "payload"):
        with worker.stream() as stream:
            stream.init(partition_of(address, tasks.double))
            assert stream.next()[0] == "init"
            stream.control(again)
            assert violated(stream, "error") == f"{again} among the batches"
    with worker.stream() as stream:
        stream.init(partition_of(address, tasks.double))
        assert stream.next()[0] == "init"
        stream.data(b"no batch")
        assert "no Arrow record batch" in violated(stream, "error")


def test_the_functions_error_is_the_users(worker, address):
    with worker.stream() as stream:
        stream.init(partition_of(address, tasks.fail_as("plain")))
        assert stream.next()[0] == "init"
        for number in range(50):  # more than are read ahead: they are dropped, so that the Cancel is seen
            stream.batch(ids(number, 1))

        kind, answer = stream.next()
        stream.control("cancel")
        last, _ = stream.next()
        stream.close()

    assert (kind, last) == ("error", "cancel")
    assert "ValueError: no good row" in answer.error.user.message
    assert "tasks.py" in answer.error.user.message


def test_the_meshs_error_is_the_workers(worker, own_mesh):
    with worker.stream() as stream:
        stream.init(partition_of(own_mesh.address, tasks.double, no_worker_timeout=1, queue="gpu"))
        assert stream.next()[0] == "init"
        stream.batch(ids(0, 1))
        stream.control("finish")

        kind, answer = stream.next()
        stream.control("cancel")
        assert stream.next()[0] == "cancel"

    assert kind == "error"
    assert "NoMeshWorkers: no pool for queue 'gpu'" in answer.error.worker.message


@pytest.mark.parametrize("way", ["cancel", "cancel after finish", "the call ends"])
def test_a_cancel_gives_up_what_runs(worker, own_mesh, gates, way):
    own_mesh.pool("one")
    gate = gates()
    with worker.stream() as stream:
        stream.init(partition_of(own_mesh.address, tasks.held_at(gate.path), IDS, rows=1))
        assert stream.next()[0] == "init"
        stream.batch(ids(0, 1))
        if way == "cancel after finish":
            stream.control("finish")
        wait_until(gate.reached, ANSWER_S, "the task runs")

        if way == "the call ends":
            stream.call.cancel()
        else:
            stream.control("cancel", reason="a test")
            assert stream.next()[0] == "cancel"

    with worker.stream() as stream:  # the only slot is free again, while the gate is shut
        stream.init(partition_of(own_mesh.address, tasks.double))
        assert stream.next()[0] == "init"
        stream.batch(ids(0, 1))
        stream.control("finish")
        assert stream.until_control()[1][0] == "finish"
    wait_until(lambda: worker.manage(heartbeat={})[1].metrics["sessions"] == "0", ANSWER_S)


def test_a_shutdown_waits_for_sessions(own_worker, address):
    with own_worker.stream() as stream:
        stream.init(partition_of(address, tasks.double))
        assert stream.next()[0] == "init"

        kind, answer = own_worker.manage(shutdown={"reason": "a test"})
        assert (kind, answer.sessions_settled) == ("shutdown", False)
        stream.batch(ids(0, 1))
        stream.control("finish")
        assert stream.until_control()[1][0] == "finish"

    assert own_worker.program.process.wait(ANSWER_S) == 0


@pytest.mark.parametrize("way", ["shutdown", "SIGTERM"])
def test_a_worker_that_has_to_end_tells_its_sessions(own_worker, address, way):
    with own_worker.stream() as stream:
        stream.init(partition_of(address, tasks.double))
        assert stream.next()[0] == "init"

        if way == "SIGTERM":
            own_worker.program.process.send_signal(signal.SIGTERM)
        else:
            own_worker.manage(shutdown={"cancel_sessions": True})
        kind, answer = stream.next()
        assert (kind, stream.next()[0]) == ("error", "cancel")

    assert "has been told to end" in answer.error.worker.message
    assert own_worker.program.process.wait(ANSWER_S) == 0


def test_a_worker_ends_with_its_parent(programs, tmp_path):
    """An executor that is killed ends nobody."""
    line = [sys.executable, "-m", "taskmesh.spark.udf_worker", "--connection", str(tmp_path / "s")]
    read, write = os.pipe()
    code = f"import subprocess; subprocess.Popen({line!r}, pass_fds=[{write}])"
    parent = subprocess.Popen(
        [sys.executable, "-c", code + "; import signal; signal.pause()"], pass_fds=[write], env=environment()
    )
    os.close(write)
    try:
        wait_until((tmp_path / "s").exists, ANSWER_S, "the worker listens")
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
        os.set_blocking(read, True)
        parent.kill()
        parent.wait(ANSWER_S)
        assert os.read(read, 1) == b""  # the last holder of the other end is gone
    finally:
        parent.kill()
        os.close(read)
