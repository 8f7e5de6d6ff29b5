"""One partition in Spark's Python worker: it is cut into pieces, sent, checked, and put together again.

These objects are what Spark's closures hold: bytes and settings, never anything live.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from taskmesh.shm.files import Buffer
from taskmesh.spark.jobs.batch_size import FIXED, BatchSizer, sizer_of
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.engine import Engine, engine_of
from taskmesh.spark.jobs.remote_task import RemoteTask
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.spark_task import SparkTask
from taskmesh.spark.jobs.stream import Stream
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.delivery import Delivery
from taskmesh.spark.steps.errors import MeshSchemaError

MOST_BYTES: Final = 1 << 20
"""Of batches or items that travel together where no number is asked for; a single one may be larger."""

Encoded = tuple[pa.Buffer, int, int]
_log = logging.getLogger("taskmesh.spark")


@dataclass(frozen=True)
class Partition:
    """The base of all kinds of partition.

    Attributes:
        rows: in one piece; 0 for what the sizer finds.
    """

    settings: Settings
    remote_task: RemoteTask
    rows: int = 0

    def _engine(self) -> Engine:
        return engine_of(self.settings, self.remote_task)

    def _stream(
        self,
        sizer: BatchSizer,
        tally: Tally,
        *,
        ordered: bool = True,
        rows_of: Callable[[Any], int] | None = None,
    ) -> Stream:
        return Stream(
            self._engine,
            self.settings,
            ordered=ordered,
            learn=sizer.learn,
            is_known=lambda: sizer.is_known,
            rows_of=rows_of,
            tally=tally,
        )

    def _tell(self, tally: Tally) -> None:
        """At the end of the partition, also of one that was left early."""
        _log.info("%s: %s", self.remote_task.name, tally)
        if self.settings.counts is not None:
            self.settings.counts.add(tally)

    def _new_sizer(self) -> BatchSizer:
        """As many rows as fit the time; shared results need equal pieces for equal input, on any day."""
        if self.rows or self.settings.dedupe == "result":
            return BatchSizer(self.rows or FIXED)
        return sizer_of(self.remote_task.function)

    @property
    def _most(self) -> int:
        """Bytes in a piece: a window's pieces fit in it; 0, no limit, where rows are a fixed number."""
        return 0 if self.rows else self.settings.window_bytes // self.settings.window


@dataclass(frozen=True)
class ArrowPartition(Partition):
    """Record batches in and out.

    Attributes:
        schema: of what comes back, as `ipc.schema_bytes`.
    """

    schema: bytes = b""
    ordered: bool = True

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the partition: `mapInArrow` calls it."""
        sizer, schema, tally = self._new_sizer(), ipc.schema_of(self.schema), Tally()
        try:
            results = self._stream(sizer, tally, ordered=self.ordered).run(self._cut(batches, sizer))
            yield from pushed((batch for data in results for batch in _checked(data, schema, tally)), schema)
        finally:
            self._tell(tally)

    def _cut(self, batches: Iterable[pa.RecordBatch], sizer: BatchSizer) -> Iterator[Encoded]:
        return _cut(batches, sizer) if self.rows else _gathered(batches, sizer, self._most)


@dataclass(frozen=True)
class SinkPartition(ArrowPartition):
    """Record batches in, each with the delivery that it is; nothing out.

    Attributes:
        query: of the stream; empty for what Spark says. batch: Spark's number of the micro-batch.
    """

    query: str = ""
    batch: int = 0

    def _cut(self, batches: Iterable[pa.RecordBatch], sizer: BatchSizer) -> Iterator[Encoded]:
        spark_task = SparkTask.here()
        query = self.query or spark_task.query

        def noted(schema: pa.Schema, first: int) -> pa.Schema:
            return Delivery(query, self.batch, spark_task.partition, first).noted(schema)

        return _cut(batches, sizer, self._most, noted)


@dataclass(frozen=True)
class ColumnPartition(Partition):
    """Columns of a UDF in, one column out, cut exactly as the input.

    Attributes:
        schema: of the one column.
    """

    schema: bytes = b""

    def run(self, columns: Iterable[Any]) -> Iterator[pa.Array]:
        """Run the partition: an iterator `arrow_udf` gives an array, or a tuple of them, for each batch."""
        tally = Tally()
        try:
            yield from self._columns(columns, tally)
        finally:
            self._tell(tally)

    def _columns(self, columns: Iterable[Any], tally: Tally) -> Iterator[pa.Array]:
        sizer, schema = self._new_sizer(), ipc.schema_of(self.schema)
        lengths: deque[int] = deque()
        parts: list[pa.Array] = []
        for data in self._stream(sizer, tally).run(_cut(_noted(columns, lengths), sizer, self._most)):
            parts += [batch.column(0) for batch in _checked(data, schema, tally)]
            while lengths and sum(map(len, parts)) >= lengths[0]:
                length = lengths.popleft()
                yield _joined(parts if length else [], length, schema)  # no rows in, no piece
                parts = [] if length else parts
        for length in lengths:
            yield _joined(parts, length, schema)
            parts = []


def _cut(
    batches: Iterable[pa.RecordBatch],
    sizer: BatchSizer,
    most: int = 0,
    noted: Callable[[pa.Schema, int], pa.Schema] = lambda schema, first: schema,
) -> Iterator[Encoded]:
    """Batches as encoded pieces of as many rows as the sizer says when they are cut, and about `most` bytes.

    `noted` is given the schema and the number of a piece's first row, and may write on the schema.
    """
    before = 0
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            part = batch.slice(first, _fitting(batch, sizer, most))
            data = ipc.encode(noted(batch.schema, before + first), [part])
            yield data, part.num_rows, data.size
            first += part.num_rows
        before += batch.num_rows


def _fitting(batch: pa.RecordBatch, sizer: BatchSizer, most: int) -> int:
    """Return how many rows of a batch make one piece: what the sizer says, or fewer with `most` bytes."""
    if not most or batch.nbytes <= most:
        return sizer.rows
    return max(1, min(sizer.rows, int(most * batch.num_rows // batch.nbytes)))


def _gathered(batches: Iterable[pa.RecordBatch], sizer: BatchSizer, most: int) -> Iterator[Encoded]:
    """Batches as encoded pieces of at most as many rows as the sizer says; small ones travel together."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            part = batch.slice(first, _fitting(batch, sizer, most))
            if held and (rows + part.num_rows > sizer.rows or size + part.nbytes > min(most, MOST_BYTES)):
                yield _encoded(held, rows)
                held, rows, size = [], 0, 0
            held.append(part)
            rows += part.num_rows
            size += part.nbytes
            first += part.num_rows
    if held:
        yield _encoded(held, rows)


def _encoded(batches: list[pa.RecordBatch], rows: int) -> Encoded:
    data = ipc.encode(batches[0].schema, batches)
    return data, rows, data.size


def _checked(data: Buffer, schema: pa.Schema, tally: Tally) -> Iterator[pa.RecordBatch]:
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
    tally.bytes_out += len(data)
    tally.rows_out += sum(batch.num_rows for batch in batches)
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


HELD_S: Final = 0.1
"""Seconds for which a batch may stay in the buffer."""


def pushed(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, held: float = HELD_S
) -> Iterator[pa.RecordBatch]:
    """The batches, and after one that would stay behind as many empty ones as fill the buffer."""
    room = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
    empty = pa.RecordBatch.from_pylist([], schema)
    size = pa.ipc.get_record_batch_size(empty)
    behind, emptied = 0, time.monotonic()
    for batch in batches:
        yield batch
        behind += pa.ipc.get_record_batch_size(batch)
        if behind > room:
            behind, emptied = 0, time.monotonic()
        elif time.monotonic() - emptied > held:
            for _ in range(room // size + 1):
                yield empty
            behind, emptied = 0, time.monotonic()
