"""Holding what a task returned against the declared schema: by name, cast where nothing is lost.

Spark itself does not look: it takes columns by position and reads their memory as the declared types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute, types

from taskmesh.spark.errors import MeshSchemaError

_FAMILIES: Final = (
    ("number", (types.is_integer, types.is_floating, types.is_decimal)),
    ("text", (types.is_string, types.is_large_string, types.is_string_view)),
    ("bytes", (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)),
    ("date", (types.is_date,)),
    ("time of day", (types.is_time,)),
    ("duration", (types.is_duration,)),
    ("boolean", (types.is_boolean,)),
    ("list", (types.is_list, types.is_large_list, types.is_fixed_size_list)),
)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the schema's columns, in its order and types.

    Columns are found by name. They are cast where every value survives: between kinds of numbers, of text, of
    bytes; dictionaries are decoded, finer timestamps made microseconds where no digit is lost.

    Raises:
        MeshSchemaError: a column is missing, too much, of another type, or null where it must not be.
    """
    names = batch.schema.names
    check_names(names, schema)
    columns = []
    for field in schema:
        column = batch.column(names.index(field.name))
        columns.append(fitted(column, field))
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_names(names: Iterable[str], schema: pa.Schema) -> None:
    """Refuses names that are not the schema's, whatever their order.

    Raises:
        MeshSchemaError: names the column that is missing, too much or there twice.
    """
    got = list(names)
    shown = ", ".join(map(repr, got)) or "no columns"
    for field in schema:
        if got.count(field.name) != 1:
            found = "no such column" if field.name not in got else "two of that name"
            raise MeshSchemaError(
                f"column {field.name!r}: expected {field.type}, got {found}: the task returned {shown}"
            )
    extra = [name for name in got if name not in schema.names]
    if extra:
        declared = ", ".join(map(repr, schema.names)) or "no columns"
        raise MeshSchemaError(
            f"column {extra[0]!r}: expected no such column, got one: the schema declares {declared}. "
            "Cure: declare it, or drop it in the task"
        )


def fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    """The column in the field's type.

    Raises:
        MeshSchemaError: it does not fit.
    """
    reason = "" if column.type == field.type else _obstacle(column.type, field.type)
    if not reason and column.type != field.type:
        try:
            column = _cast(column, field.type)
        except (pa.ArrowException, ValueError, TypeError) as error:
            reason = str(error)
    if reason:
        raise MeshSchemaError(f"column {field.name!r}: expected {field.type}, got {column.type}: {reason}")
    if not field.nullable and column.null_count:
        raise MeshSchemaError(
            f"column {field.name!r}: expected {field.type} without nulls, got {column.null_count} "
            f"null of {len(column)}"
        )
    inside = _null_inside(column, field.type)
    if inside:
        raise MeshSchemaError(f"column {field.name!r}: expected {field.type}, got null in {inside}")
    return column


def _null_inside(column: pa.Array, kind: pa.DataType) -> str:
    """Where a nested column has a null that its type forbids, for error texts; empty if nowhere.

    Arrow's own checks do not look for these, and Spark would fail in the midst of reading the memory.
    """
    for field, values in _inner(column, kind):
        where = field.name if not field.nullable and values.null_count else _null_inside(values, field.type)
        if where:
            return where
    return ""


def _inner(column: pa.Array, kind: pa.DataType) -> Iterable[tuple[pa.Field, pa.Array]]:
    """What a nested column is made of: its fields, or its elements, where the column itself is not null."""
    if types.is_struct(kind):
        return zip(kind, column.drop_null().flatten(), strict=True)
    if types.is_map(kind):
        there = column.drop_null()
        first, last = there.offsets[0].as_py(), there.offsets[-1].as_py()
        parts = (there.keys.slice(first, last - first), there.items.slice(first, last - first))
        return zip((kind.key_field, kind.item_field), parts, strict=True)
    return [(kind.value_field, column.flatten())] if _family(kind) == "list" else []


def of_rows(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of rows given as mappings from column names to Python values.

    Raises:
        MeshSchemaError: a row lacks a column or has another one, or a value does not fit.
    """
    rows = list(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            raise MeshSchemaError(
                f"rows: expected mappings of column names to values, got a {type(row).__name__}"
            )
        check_names(row, schema)
    if not schema.names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    columns = [of_values([row[field.name] for row in rows], field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def of_values(values: list[Any], field: pa.Field) -> pa.Array:
    """A column of Python values.

    Raises:
        MeshSchemaError: one of them does not fit.
    """
    try:
        column = fitted(pa.array(values, field.type), field)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, MeshSchemaError):
            raise
        got = ", ".join(sorted({type(value).__name__ for value in values}))
        raise MeshSchemaError(
            f"column {field.name!r}: expected {field.type}, got values of {got}: {error}"
        ) from error
    check_zones(values, field)
    return column


def check_zones(values: Iterable[Any], field: pa.Field) -> None:
    """Refuses datetimes of the other kind, also nested ones: Arrow would take naive ones for UTC.

    Raises:
        MeshSchemaError: there is one.
    """
    for kind, value in _instants(values, field.type):
        if (value.tzinfo is not None) != (kind.tz is not None):
            got, cure = _zone_trouble(kind)
            raise MeshSchemaError(f"column {field.name!r}: expected {field.type}, got {got}: {cure}")


def _instants(values: Iterable[Any], kind: pa.DataType) -> Iterator[tuple[pa.DataType, datetime]]:
    """All datetimes within values of a type, also nested ones, each with the type that it is read as."""
    if types.is_timestamp(kind):
        yield from ((kind, value) for value in values if isinstance(value, datetime))
    elif "timestamp" in str(kind):
        there = [value for value in values if isinstance(value, Iterable)]
        if types.is_struct(kind):
            rows = [dict(value) for value in there]
            parts = [(field.type, [row.get(field.name) for row in rows]) for field in kind]
        elif types.is_map(kind):
            pairs = [
                pair for value in there for pair in (value.items() if isinstance(value, Mapping) else value)
            ]
            parts = [
                (kind.key_type, [key for key, _ in pairs]),
                (kind.item_type, [item for _, item in pairs]),
            ]
        else:
            parts = [(kind.value_type, [item for value in there for item in value])]
        for inner, found in parts:
            yield from _instants(found, inner)


def _zone_trouble(expected: pa.DataType) -> tuple[str, str]:
    """What a timestamp of the other kind is called, and the cure."""
    if expected.tz is not None:
        return "a naive datetime", "give it a time zone, or declare the column TIMESTAMP_NTZ"
    return "a datetime with a time zone", "make it naive, or declare the column TIMESTAMP"


def _obstacle(got: pa.DataType, expected: pa.DataType) -> str:
    """Why no cast is tried from one type to the other; empty when it is."""
    if types.is_dictionary(got):
        return _obstacle(got.value_type, expected)
    if types.is_null(got) or got == expected:
        return ""
    if types.is_timestamp(expected):
        return _timestamp_obstacle(got, expected)
    if types.is_struct(expected):
        return _struct_obstacle(got, expected)
    if types.is_map(expected):
        if not types.is_map(got):
            return "not a map"
        return _obstacle(got.key_type, expected.key_type) or _obstacle(got.item_type, expected.item_type)
    family = _family(expected)
    if not family or family != _family(got):
        return f"not a {family}" if family else "another type"
    return _obstacle(got.value_type, expected.value_type) if family == "list" else ""


def _timestamp_obstacle(got: pa.DataType, expected: pa.DataType) -> str:
    if not types.is_timestamp(got):
        return "not a timestamp"
    return "" if (got.tz is None) == (expected.tz is None) else ": ".join(_zone_trouble(expected))


def _struct_obstacle(got: pa.DataType, expected: pa.DataType) -> str:
    if not types.is_struct(got):
        return "not a struct"
    mine, theirs = [field.name for field in got], [field.name for field in expected]
    if mine != theirs:
        return f"its fields are {', '.join(mine)} in place of {', '.join(theirs)}"
    for one, other in zip(got, expected, strict=True):
        reason = _obstacle(one.type, other.type)
        if reason:
            return f"field {other.name!r}: {reason}"
    return ""


def _family(kind: pa.DataType) -> str:
    return next((name for name, tests in _FAMILIES if any(test(kind) for test in tests)), "")


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_decimal(kind) and types.is_integer(column.type):
        column = compute.cast(
            column, pa.decimal256(76, kind.scale)
        )  # else it has to have room for any integer
    return compute.cast(column, kind, safe=True)
