"""One partition in Spark's Python worker: it is cut into pieces, sent, checked, and put together again.

Spark's closures hold these objects: bytes and settings, never anything live.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from taskmesh.shm.files import Buffer
from taskmesh.spark.jobs.batch_size import FIXED, BatchSizer, sizer_of
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.engine import engine_of
from taskmesh.spark.jobs.remote_task import RemoteTask
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.spark_task import SparkTask
from taskmesh.spark.jobs.stream import Stream
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.errors import MeshSchemaError
from taskmesh.spark.steps.step import Delivery

MOST_BYTES: Final = 1 << 20
"""Of batches or items that travel together where no `chunksize` is given; a single one may be larger."""

Encoded = tuple[pa.Buffer, int, int]
_log = logging.getLogger("taskmesh.spark")


@dataclass(frozen=True)
class Partition:
    """The base of all kinds of partition.

    Attributes:
        settings: of the job.
        remote_task: the task that runs its pieces.
        rows: in one piece; 0 for the number that the sizer finds.
    """

    settings: Settings
    remote_task: RemoteTask
    rows: int = 0

    def _results(
        self,
        cut: Callable[[BatchSizer], Iterator[tuple[Any, int, int]]],
        tally: Tally,
        *,
        ordered: bool = True,
        rows_of: Callable[[Any], int] | None = None,
    ) -> Iterator[Any]:
        """The results of the pieces that `cut` makes; the tally is reported at the end, even an early one."""
        sizer = self._new_sizer()
        with self._counted(tally):
            engine = partial(engine_of, self.settings, self.remote_task)
            yield from Stream(engine, self.settings, sizer, tally, ordered=ordered, rows_of=rows_of).run(
                cut(sizer)
            )

    @contextmanager
    def _counted(self, tally: Tally) -> Iterator[None]:
        """Report what was counted, at the end of a block."""
        try:
            yield
        finally:
            _log.info("%s: %s", self.remote_task.name, tally)
            if self.settings.counts is not None:
                self.settings.counts.add(tally)

    def _new_sizer(self) -> BatchSizer:
        """As many rows as fit the time; shared results need equal pieces for equal input, on any day."""
        if self.rows or self.settings.dedupe == "result":
            return BatchSizer(self.rows or FIXED)
        return sizer_of(self.remote_task.function)

    def _cut(self, batches: Iterable[pa.RecordBatch], sizer: BatchSizer) -> Iterator[Encoded]:
        """Record batches as encoded pieces."""
        if self.rows:
            return _cut(batches, sizer)
        return (_encoded(held, held[0].schema) for held in gathered(batches, sizer, self._most))

    @property
    def _most(self) -> int:
        """Bytes in a piece: a window's pieces fit in it; 0, no limit, where rows are a fixed number."""
        return 0 if self.rows else self.settings.window_bytes // self.settings.window


@dataclass(frozen=True)
class ArrowPartition(Partition):
    """Record batches in and out.

    Attributes:
        schema: of the result, as `ipc.schema_bytes`.
        ordered: results in the order of their input; else as they come.
    """

    schema: bytes = b""
    ordered: bool = True

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the partition: `mapInArrow` calls it."""
        schema, tally = ipc.schema_of(self.schema), Tally()
        results = self._results(partial(self._cut, batches), tally, ordered=self.ordered)
        yield from pushed((batch for data in results for batch in _checked(data, schema, tally)), schema)


@dataclass(frozen=True)
class SinkPartition(ArrowPartition):
    """Record batches in, each with its delivery; nothing out.

    Attributes:
        query: the stream's name; empty for the id that Spark gave it.
        batch: Spark's number of the micro-batch.
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
        schema, tally = ipc.schema_of(self.schema), Tally()
        lengths: deque[int] = deque()
        parts: list[pa.Array] = []
        batches = _noted(columns, lengths)
        results = self._results(partial(self._cut, batches), tally)
        for batch in (batch for data in results for batch in _checked(data, schema, tally)):
            parts.append(batch.column(0))
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

    `noted` takes the schema and the number of a piece's first row, and may write on the schema.
    """
    for part, first in _slices(batches, sizer, most):
        yield _encoded([part], noted(part.schema, first))


def gathered(
    batches: Iterable[pa.RecordBatch], sizer: BatchSizer, most: int
) -> Iterator[list[pa.RecordBatch]]:
    """Batches in pieces of at most as many rows as the sizer says; small ones travel together."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    limit = min(most or MOST_BYTES, MOST_BYTES)
    for part, _ in _slices(batches, sizer, most):
        if held and (rows + part.num_rows > sizer.rows or size + part.nbytes > limit):
            yield held
            held, rows, size = [], 0, 0
        held.append(part)
        rows += part.num_rows
        size += part.nbytes
    if held:
        yield held


def _slices(
    batches: Iterable[pa.RecordBatch], sizer: BatchSizer, most: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches in slices that make a piece, each with its first row's number in the partition."""
    before = 0
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            rows = sizer.rows
            if most and batch.nbytes > most:
                rows = max(1, min(rows, int(most * batch.num_rows // batch.nbytes)))
            part = batch.slice(first, rows)
            yield part, before + first
            first += part.num_rows
        before += batch.num_rows


def _encoded(batches: list[pa.RecordBatch], schema: pa.Schema) -> Encoded:
    data = ipc.encode(schema, batches)
    return data, sum(batch.num_rows for batch in batches), data.size


def _checked(data: Buffer, schema: pa.Schema, tally: Tally) -> Iterator[pa.RecordBatch]:
    """The batches that a slot sent, once they are known to be valid and of the declared schema.

    Raises:
        MeshSchemaError: they are not: the slot runs another version of this package, or is not to be trusted.
    """
    try:
        got, batches = ipc.decode(data)
        for batch in batches:
            batch.validate(full=True)
    except pa.ArrowException as error:
        raise MeshSchemaError(f"a pool sent an invalid batch: {error}") from error
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
        raise MeshSchemaError(f"a UDF's result has {len(column)} rows instead of {length}")
    return column


HELD_S: Final = 0.1
"""Seconds for which a batch may stay in the buffer."""


def pushed(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, held: float = HELD_S
) -> Iterator[pa.RecordBatch]:
    """The batches, and after one that would stay behind as many empty ones as fill the buffer."""
    room = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
    behind, emptied = 0, time.monotonic()
    for batch in batches:
        yield batch
        behind += pa.ipc.get_record_batch_size(batch)
        if behind > room:
            behind, emptied = 0, time.monotonic()
        elif time.monotonic() - emptied > held:
            empty = pa.RecordBatch.from_pylist([], schema)
            for _ in range(room // pa.ipc.get_record_batch_size(empty) + 1):
                yield empty
            behind, emptied = 0, time.monotonic()
