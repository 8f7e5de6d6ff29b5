"""A step as it travels to the slots: the user's function in a frame that reads and writes Arrow IPC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import msgspec
import pyarrow as pa

from taskmesh.pool.slots.coroutines import runnable
from taskmesh.serialize.code import load_function
from taskmesh.serialize.values import error_text
from taskmesh.shm.files import Buffer
from taskmesh.spark.steps import columns, ipc, schemas
from taskmesh.spark.steps.errors import MeshSchemaError

Errors = Literal["raise", "null", "column"]
Format = Literal["arrow", "pandas", "rows", "arrays", "series", "values", "sink"]
"""The input of the function: a whole batch in three forms; a UDF's columns as Arrow arrays, as pandas Series,
or one row's values at a time; or a batch with its delivery."""

ERROR_COLUMN: Final = "_mesh_error"
_ERROR_FIELD: Final = pa.field(ERROR_COLUMN, pa.string())
_ERROR_TEXT: Final = 2000
_DELIVERY: Final = b"taskmesh.delivery"
"""The entry of a schema's metadata that holds a delivery."""


@dataclass(frozen=True)
class Delivery:
    """The origin of rows. A stream delivers every batch at least once, so a sink remembers what it has seen.

    (query, batch) are the same when Spark does a micro-batch again. Its partitions need not be cut the same
    way then: to write each row once, a sink needs a key of the rows' own beside these two.

    Attributes:
        query: the stream's id, the same after a restart from its checkpoint.
        batch: Spark's number of the micro-batch.
        partition: number of the partition in the micro-batch.
        first: number of the batch's first row in the partition.
    """

    query: str
    batch: int
    partition: int
    first: int

    @classmethod
    def of(cls, schema: pa.Schema) -> Self:
        """The delivery that is written on a batch's schema."""
        return cls(**msgspec.json.decode(schema.metadata[_DELIVERY]))

    def noted(self, schema: pa.Schema) -> pa.Schema:
        """The schema with this delivery on it."""
        return schema.with_metadata({_DELIVERY: msgspec.json.encode(self)})


class Step:
    """Takes an IPC stream of batches, calls the function for each, returns the stream of its results.

    Args:
        function: its bytes as `dump_function` made them.
        form: of its input and output.
        schema: of its output, as `ipc.schema_bytes`.
        errors: the effect of its exception. Other than "raise", the batch is halved until the rows are found
            that cause it; that calls the function again for the rest.
    """

    def __init__(self, function: bytes, form: Format, schema: bytes, errors: Errors) -> None:
        self.function = function
        self.form = form
        self.schema = schema
        self.errors = errors
        self._loaded: tuple[Callable[..., Any], pa.Schema] | None = None

    def plain_values(self) -> tuple[str | bytes, ...]:
        """Return the parts that `dump_function` writes: a step travels without a pickle."""
        return self.function, self.form, self.schema, self.errors

    def __call__(self, data: Buffer) -> pa.Buffer:
        """Run the step on one encoded piece of a partition."""
        if self._loaded is None:
            self._loaded = runnable(load_function(self.function)), ipc.schema_of(self.schema)
        function, schema = self._loaded
        _, batches = ipc.decode(data)
        returned = [out for batch in batches for out in self._outcome(function, schema, batch)]
        if self.errors == "column":
            schema = schema.append(_ERROR_FIELD)
        return ipc.encode(schema, returned)

    def _outcome(
        self, function: Callable[..., Any], schema: pa.Schema, batch: pa.RecordBatch
    ) -> Iterable[pa.RecordBatch]:
        try:
            returned = list(_FORMS[self.form](function, schema, batch))
        except MeshSchemaError:
            raise  # the function's as a whole, not a row's
        except Exception as error:
            if self.errors == "raise":
                raise
            if batch.num_rows <= 1:
                return [self._substitute(schema, batch, error_text(error, _ERROR_TEXT))]
            half = batch.num_rows // 2
            parts = (batch.slice(0, half), batch.slice(half))
            return [out for part in parts for out in self._outcome(function, schema, part)]
        return [_with_error(out, None) for out in returned] if self.errors == "column" else returned

    def _substitute(self, schema: pa.Schema, batch: pa.RecordBatch, text: str) -> pa.RecordBatch:
        """The row instead of one that failed: the columns that it shares with the input, else nulls."""
        columns = []
        for field in schema:
            if field.name in batch.schema.names and batch.schema.field(field.name).type == field.type:
                columns.append(batch.column(field.name))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        row = pa.RecordBatch.from_arrays(columns, schema=schema)
        return _with_error(row, text) if self.errors == "column" else row


def _with_error(batch: pa.RecordBatch, text: str | None) -> pa.RecordBatch:
    return batch.append_column(_ERROR_FIELD, pa.array([text] * batch.num_rows, pa.string()))


def _arrow(
    function: Callable[..., Any], schema: pa.Schema, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """A batch in; a batch, a table, several of them, or None out."""
    for part in _parts(function(batch)):
        yield schemas.conform(part, schema)


def _parts(returned: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(returned, pa.RecordBatch):
        yield returned
    elif isinstance(returned, pa.Table):
        batches = returned.to_batches()
        yield from batches or [pa.RecordBatch.from_pylist([], schema=returned.schema)]
    elif isinstance(returned, Iterable) and not isinstance(returned, str | bytes | dict):
        for part in returned:
            yield from _parts(part)
    elif returned is not None:
        raise MeshSchemaError(
            f"the task returned a {type(returned).__name__}: expected a pyarrow RecordBatch or Table, "
            "or several"
        )


def _pandas(
    function: Callable[..., Any], schema: pa.Schema, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """A DataFrame in and out."""
    frame = function(batch.to_pandas())
    if not hasattr(frame, "columns"):
        raise MeshSchemaError(f"the task returned a {type(frame).__name__}: expected a pandas DataFrame")
    schemas.check_names(map(str, frame.columns), schema)
    named = {str(name): frame[name] for name in frame.columns}
    made = [columns.of_series(named[field.name], field) for field in schema]
    yield pa.RecordBatch.from_arrays(made, schema=schema)


def _sink(function: Callable[..., Any], schema: pa.Schema, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch and its delivery in; nothing out."""
    function(batch.replace_schema_metadata(None), Delivery.of(batch.schema))
    yield from ()


def _rows(function: Callable[..., Any], schema: pa.Schema, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A list of dicts in and out."""
    returned = function(batch.to_pylist())
    if returned is not None and (hasattr(returned, "columns") or not isinstance(returned, Iterable)):
        raise MeshSchemaError(f"the task returned a {type(returned).__name__}: expected a list of dicts")
    yield columns.of_rows(() if returned is None else returned, schema)


def _arrays(
    function: Callable[..., Any], schema: pa.Schema, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """A UDF over Arrow arrays."""
    returned = function(*batch.columns)
    if isinstance(returned, pa.ChunkedArray):
        returned = returned.combine_chunks()
    if isinstance(returned, pa.Scalar):
        returned = pa.repeat(returned, batch.num_rows)
    if not isinstance(returned, pa.Array):
        raise MeshSchemaError(f"the UDF returned a {type(returned).__name__}: expected a pyarrow Array")
    yield _column(schemas.fitted(returned, schema.field(0)), schema, batch)


def _series(
    function: Callable[..., Any], schema: pa.Schema, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """A UDF over pandas Series."""
    returned = function(*(column.to_pandas() for column in batch.columns))
    if not hasattr(returned, "dtype") or not hasattr(returned, "index"):
        raise MeshSchemaError(f"the UDF returned a {type(returned).__name__}: expected a pandas Series")
    yield _column(columns.of_series(returned, schema.field(0)), schema, batch)


def _values(
    function: Callable[..., Any], schema: pa.Schema, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """A UDF called row by row."""
    given = [column.to_pylist() for column in batch.columns]
    returned = [function(*row) for row in zip(*given, strict=True)]
    yield _column(columns.of_values(returned, schema.field(0)), schema, batch)


def _column(column: pa.Array, schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A UDF's result as a batch.

    Raises:
        MeshSchemaError: it is not as long as the input.
    """
    if len(column) != batch.num_rows:
        raise MeshSchemaError(
            f"column {schema.field(0).name!r}: expected {batch.num_rows} rows, got {len(column)}: a UDF "
            "returns one value for each row; to change their number use map_arrow"
        )
    return pa.RecordBatch.from_arrays([column], schema=schema)


_FORMS: Final[dict[str, Callable[..., Iterator[pa.RecordBatch]]]] = {
    "arrow": _arrow,
    "pandas": _pandas,
    "rows": _rows,
    "sink": _sink,
    "arrays": _arrays,
    "series": _series,
    "values": _values,
}


FRAME: Final = Step
"""Loaded by name: see `taskmesh.serialize.code`."""
