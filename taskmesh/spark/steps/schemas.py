"""Columns that a task returned, made the columns of the declared schema: by name, cast where nothing is lost.

Spark itself does not look: it takes columns by position and reads their memory as the declared types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Final

import pyarrow as pa
from pyarrow import compute, types

from taskmesh.spark.steps.errors import MeshSchemaError

_SHOWN: Final = 200
_FAMILIES: Final = (
    ("number", (types.is_integer, types.is_floating, types.is_decimal)),
    ("text", (types.is_string, types.is_large_string, types.is_string_view)),
    ("bytes", (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)),
    ("date", (types.is_date,)),
    ("time of day", (types.is_time,)),
    ("duration", (types.is_duration,)),
    ("boolean", (types.is_boolean,)),
    ("timestamp", (types.is_timestamp,)),
    ("struct", (types.is_struct,)),
    ("map", (types.is_map,)),
    ("list", (types.is_list, types.is_large_list, types.is_fixed_size_list)),
)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the schema's columns, in its order and types.

    Columns are found by name. They are cast where every value survives: between kinds of numbers, of text, of
    bytes; dictionaries are decoded, finer timestamps made microseconds where no digit is lost. Fractions are
    rounded to a float's digits.

    Raises:
        MeshSchemaError: a column is missing, undeclared, of another type, or null where it must not be.
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
    """Refuse names that are not the schema's, whatever their order.

    Raises:
        MeshSchemaError: names the column that is missing, undeclared or there twice.
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
            "Declare it, or drop it in the task"
        )


def fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    """The column in the field's type.

    Raises:
        MeshSchemaError: it does not fit; names the first row and value that do not.
    """
    reason = "" if column.type == field.type else _obstacle(column.type, field.type)
    if not reason and column.type != field.type:
        try:
            column = _cast(column, field.type)
        except (pa.ArrowException, ValueError, TypeError) as error:
            row = _first_lost(column, field.type)
            reason = f"{error} (row {row}: {shown(column[row].as_py())})"
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


def shown(value: object) -> str:
    """A value as error texts name it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _first_lost(column: pa.Array, kind: pa.DataType) -> int:
    """The first row for which a cast fails that fails for the column."""
    first, count = 0, len(column)
    while count > 1:
        half = count // 2
        try:
            _cast(column.slice(first, half), kind)
        except (pa.ArrowException, ValueError, TypeError):
            count = half
        else:
            first, count = first + half, count - half
    return first


def _null_inside(column: pa.Array, kind: pa.DataType) -> str:
    """Return where a nested column has a null that its type forbids, for error texts; empty if nowhere.

    Arrow's own checks do not look for these, and Spark would fail in the midst of reading the memory.
    """
    for field, values in _inner(column, kind) if types.is_nested(kind) else ():
        where = field.name if not field.nullable and values.null_count else _null_inside(values, field.type)
        if where:
            return where
    return ""


def _inner(column: pa.Array, kind: pa.DataType) -> Iterable[tuple[pa.Field, pa.Array]]:
    """Return the fields of a nested type, each with its values where the column itself is not null."""
    if types.is_map(kind):
        there = column.drop_null()
        first, last = there.offsets[0].as_py(), there.offsets[-1].as_py()
        parts = [there.keys.slice(first, last - first), there.items.slice(first, last - first)]
    else:
        parts = column.drop_null().flatten() if types.is_struct(kind) else [column.flatten()]
    return zip(_fields(kind), parts, strict=False)


def zone_trouble(expected: pa.DataType) -> tuple[str, str]:
    """Return the name of a timestamp of the other kind, and how to fix it."""
    if expected.tz is not None:
        return "a naive datetime", "give it a time zone, or declare the column TIMESTAMP_NTZ"
    return "a datetime with a time zone", "make it naive, or declare the column TIMESTAMP"


def _obstacle(got: pa.DataType, expected: pa.DataType) -> str:
    """Return why no cast is tried from one type to the other; empty when it is."""
    if types.is_dictionary(got):
        return _obstacle(got.value_type, expected)
    if types.is_null(got) or got == expected:
        return ""
    wanted = family(expected)
    if not wanted or wanted != family(got):
        return f"not a {wanted}" if wanted else "another type"
    if wanted == "timestamp" and (got.tz is None) != (expected.tz is None):
        return ": ".join(zone_trouble(expected))
    if not types.is_nested(expected):
        return ""
    mine, theirs = _fields(got), _fields(expected)
    if wanted == "struct" and [field.name for field in mine] != [field.name for field in theirs]:
        names = (", ".join(field.name for field in fields) for fields in (mine, theirs))
        return f"its fields are {' instead of '.join(names)}"
    for one, other in zip(mine, theirs, strict=True):
        reason = _obstacle(one.type, other.type)
        if reason:
            return f"field {other.name!r}: {reason}" if wanted == "struct" else reason
    return ""


def _fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the parts of a nested type: the fields, key and item, or the element."""
    if types.is_struct(kind):
        return list(kind)
    return [kind.key_field, kind.item_field] if types.is_map(kind) else [kind.value_field]


def family(kind: pa.DataType) -> str:
    """Return the name of a type's family, in plain words; empty for types that nothing is cast to."""
    return next((name for name, tests in _FAMILIES if any(test(kind) for test in tests)), "")


def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in another type, without a look at nulls.

    Raises:
        ArrowException, ValueError: it does not fit.
    """
    reason = _obstacle(column.type, kind)
    if reason:
        raise ValueError(reason)
    return _cast(column, kind)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in another type of its family; nested ones from the inside out.

    Raises:
        ArrowException, ValueError: a value would not survive.
    """
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == kind:
        return column
    if types.is_nested(kind) and types.is_nested(column.type):
        return _cast_inside(column, kind)
    before = column
    if types.is_decimal(kind) and types.is_integer(column.type):
        column = compute.cast(
            column, pa.decimal256(76, kind.scale)
        )  # else it has to have room for any integer
    if types.is_decimal(column.type) and types.is_floating(kind):
        column = compute.cast(column, pa.string())  # Arrow's own way makes 1.7000000000000002 of 1.7
    column = compute.cast(column, kind, safe=True)
    _check_survival(before, column)
    return column


def _cast_inside(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A nested column whose fields or elements are cast: those that are there, none outside of a slice."""
    if types.is_struct(kind):
        parts = [_cast(part, field.type) for part, field in zip(column.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    given = [part for _, part in _inner(column, column.type)]
    parts = [_cast(part, field.type) for part, field in zip(given, _fields(kind), strict=True)]
    there = column.is_valid().to_pylist()
    if types.is_map(kind):
        ends = column.offsets.to_pylist()
        lengths = [
            end - first if valid else None for first, end, valid in zip(ends, ends[1:], there, strict=False)
        ]
    else:
        lengths = compute.list_value_length(column).to_pylist()
    return of_elements(lengths, parts, kind)


def of_elements(lengths: Iterable[int | None], parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """A list or map column of its elements, or keys and items, and of each row's number of them."""
    lengths = list(lengths)
    ends = list(accumulate((length or 0 for length in lengths), initial=0))
    begins = [None if length is None else end for length, end in zip(lengths, ends, strict=False)]
    large = types.is_large_list(kind)
    offsets = pa.array([*begins, ends[-1]], pa.int64() if large else pa.int32())
    made = pa.MapArray if types.is_map(kind) else pa.LargeListArray if large else pa.ListArray
    return made.from_arrays(offsets, *parts, type=kind)


def _check_survival(before: pa.Array, after: pa.Array) -> None:
    """Refuse the losses that Arrow's safe casts allow. A fraction is rounded to a float's digits.

    Raises:
        ValueError: a value is another one after the cast.
    """
    got, kind = before.type, after.type
    if types.is_floating(kind) and types.is_floating(got):
        vanished = compute.and_(compute.not_equal(before, 0), compute.equal(after, 0))
        grown = compute.and_(compute.is_finite(before), compute.is_inf(after))
        if compute.any(compute.or_(vanished, grown)).as_py():
            raise ValueError(f"outside of what a {kind} can hold")
    elif types.is_floating(kind) and types.is_decimal(got):
        large = compute.greater(compute.abs(before), pa.scalar(Decimal(exact_up_to(kind))))
        pairs = zip(before.filter(large).to_pylist(), after.filter(large).to_pylist(), strict=True)
        if any(value == value.to_integral_value() and value != other for value, other in pairs):
            raise ValueError(f"a whole number of more digits than a {kind} has")
    elif types.is_decimal(kind) and types.is_floating(got):
        back = compute.cast(compute.cast(after, pa.string()), got)
        if compute.any(compute.not_equal(back, before)).as_py():
            raise ValueError(f"more digits than {kind} has. Round it in the task")


def exact_up_to(kind: pa.DataType) -> int:
    """The largest number up to which a float type has all whole ones."""
    return int(2 ** {16: 11, 32: 24, 64: 53}[kind.bit_width])
