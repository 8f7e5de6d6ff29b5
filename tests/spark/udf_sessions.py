"""Sessions of Spark's UDF worker protocol as tests ask for them: the function, its input, its results."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from taskmesh.spark.jobs.partitions import ArrowPartition
from taskmesh.spark.jobs.remote_task import RemoteTask, function_bytes
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.step import Step

IDS = pa.schema([("id", pa.int64())])
TWICE = pa.schema([("id", pa.int64()), ("twice", pa.int64())])


def partition_of(
    address: str, task: Callable[..., Any], schema: pa.Schema = TWICE, rows: int = 0, **settings: Any
) -> ArrowPartition:
    """The partition that MeshSpark would make of a task."""
    made = Settings((address,), **settings)
    data = ipc.schema_bytes(schema)
    step = Step(function_bytes(task), "arrow", data, made.errors)
    return ArrowPartition(made, RemoteTask.of(made, task, step), rows, data)


def init_fields(partition: ArrowPartition, **fields: Any) -> dict[str, Any]:
    """The fields of an Init, some of them changed."""
    from taskmesh.spark.udf_worker.session import FORMAT, payload_of  # it needs the extra

    udf = {"payload": payload_of(partition), "format": FORMAT, **fields.pop("udf", {})}
    return {"data_format": 1, "input_schema": ipc.schema_bytes(IDS), "udf": udf, **fields}


def init_of(partition: ArrowPartition) -> bytes:
    """An Init as bytes."""
    from taskmesh.spark.udf_worker.protocol import Protocol

    return bytes(Protocol().message("Init")(**init_fields(partition)).SerializeToString())


def ids(first: int, count: int) -> pa.RecordBatch:
    """A batch of input."""
    return pa.RecordBatch.from_pydict({"id": pa.array(range(first, first + count), pa.int64())})


def rows_of(batches: Sequence[bytes], schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of a session's results."""
    read = [pa.ipc.read_record_batch(pa.py_buffer(data), schema) for data in batches]
    return [row for batch in read for row in batch.to_pylist()]
