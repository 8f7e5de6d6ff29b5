"""What happens to one partition in Spark's Python worker: cut into pieces, sent, checked, put together again.

These objects are what Spark's closures hold: bytes and settings, never anything live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from taskmesh.spark import ipc
from taskmesh.spark.engine import Engine, engine_of
from taskmesh.spark.errors import MeshSchemaError
from taskmesh.spark.pace import Pace, pace_of
from taskmesh.spark.settings import Settings
from taskmesh.spark.stream import Stream
from taskmesh.spark.work import Work
from taskmesh.wire.blob import Buffer

Encoded = tuple[pa.Buffer, int, int]


@dataclass(frozen=True)
class _Way:
    """What all ways of a partition share.

    Attributes:
        rows: in one piece; 0 for as many as fit a tenth of a second.
    """

    settings: Settings
    work: Work
    rows: int = 0

    def _engine(self) -> Engine:
        return engine_of(self.settings, self.work)

    def _pace(self) -> Pace:
        return Pace(self.rows) if self.rows else pace_of(self.work.function)


@dataclass(frozen=True)
class BatchWay(_Way):
    """Record batches in and out.

    Attributes:
        schema: of what comes back, as `ipc.schema_bytes`.
    """

    schema: bytes = b""
    order: bool = True

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` calls."""
        pace, schema = self._pace(), ipc.schema_of(self.schema)
        stream = Stream(self._engine, self.settings, order=self.order, learn=pace.learn)
        for data in stream.run(_cut(batches, pace)):
            yield from _checked(data, schema)


@dataclass(frozen=True)
class ColumnWay(_Way):
    """Columns of a UDF in, one column out, cut exactly as the input.

    Attributes:
        schema: of the one column.
    """

    schema: bytes = b""

    def run(self, columns: Iterable[Any]) -> Iterator[pa.Array]:
        """What an iterator `arrow_udf` calls: an array, or a tuple of them, for each batch."""
        pace, schema = self._pace(), ipc.schema_of(self.schema)
        stream = Stream(self._engine, self.settings, learn=pace.learn)
        lengths: deque[int] = deque()
        parts: list[pa.Array] = []
        for data in stream.run(_cut(_noted(columns, lengths), pace)):
            parts += [batch.column(0) for batch in _checked(data, schema)]
            while lengths and sum(map(len, parts)) >= lengths[0]:
                yield _joined(parts, lengths.popleft(), schema)
                parts = []
        for length in lengths:
            yield _joined(parts, length, schema)
            parts = []


@dataclass(frozen=True)
class ChunkWay(_Way):
    """Lists of pickled objects in and out."""

    def run(self, items: Iterable[Any]) -> Iterator[Any]:
        """What `mapPartitions` calls."""
        stream = Stream(self._engine, self.settings)
        for returned in stream.run(_chunks(items, self.rows)):
            yield from returned


def _cut(batches: Iterable[pa.RecordBatch], pace: Pace) -> Iterator[Encoded]:
    """Batches as encoded pieces of as many rows as the pace says when they are cut."""
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            part = batch.slice(first, pace.rows)
            data = ipc.encode(batch.schema, [part])
            yield data, part.num_rows, data.size
            first += part.num_rows


def _checked(data: Buffer, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches that a slot sent: sound, and of the schema that Spark was told.

    Raises:
        MeshSchemaError: they are not; the slot runs another version of this package, or it lies.
    """
    try:
        got, batches = ipc.decode(data)
        for batch in batches:
            batch.validate(full=True)
    except pa.ArrowException as error:
        raise MeshSchemaError(f"a pool sent a batch that is not sound: {error}") from error
    for field, other in zip(schema, got, strict=False):
        if field.name != other.name or field.type != other.type:
            raise MeshSchemaError(
                f"column {field.name!r}: expected {field.type}, got {other.name!r} of {other.type} from a "
                "pool: its taskmesh is of another version"
            )
    if len(got) != len(schema):
        raise MeshSchemaError(f"expected {len(schema)} columns, got {len(got)} from a pool")
    yield from batches


def _noted(columns: Iterable[Any], lengths: deque[int]) -> Iterator[pa.RecordBatch]:
    """A UDF's input as batches; their lengths are noted."""
    for given in columns:
        arrays = list(given) if isinstance(given, tuple) else [given]
        lengths.append(len(arrays[0]))
        yield pa.RecordBatch.from_arrays(arrays, names=[f"_{number}" for number in range(len(arrays))])


def _joined(parts: list[pa.Array], length: int, schema: pa.Schema) -> pa.Array:
    """Parts as one column of this length."""
    column = pa.concat_arrays(parts) if parts else pa.array([], schema.field(0).type)
    if len(column) != length:
        raise MeshSchemaError(f"a UDF's result has {len(column)} rows in place of {length}")
    return column


def _chunks(items: Iterable[Any], size: int) -> Iterator[tuple[list[Any], int, int]]:
    """Lists of so many items. Their bytes are not known before they are pickled: they count as none."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk, len(chunk), 0
