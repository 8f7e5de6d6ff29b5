"""Record batches to Arrow IPC streams and back: what travels between a Spark worker and a slot."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from taskmesh.shm.files import Buffer


def encode(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
    """An IPC stream of batches of one schema; there may be none."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def decode(data: Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Schema and batches of a stream, over its memory.

    Raises:
        pyarrow.ArrowException: it is no IPC stream.
    """
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.schema, list(reader)


def schema_bytes(schema: pa.Schema) -> bytes:
    """A schema as picklable bytes."""
    return schema.serialize().to_pybytes()  # type: ignore[no-any-return]


@lru_cache(64)
def schema_of(data: bytes) -> Any:
    """The schema of `schema_bytes`."""
    return pa.ipc.read_schema(pa.py_buffer(data))
