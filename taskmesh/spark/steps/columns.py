"""Columns of Python values from rows, scalar UDFs and pandas objects: each value survives or is refused.

`pyarrow.array(values, type)` silently makes 0 of 0.7, infinity of 1e300 and a date of a datetime. So the
classes of the values decide here which of them Arrow may read as the declared type.
"""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Iterable, Mapping, Sized
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from taskmesh.spark.steps.errors import MeshSchemaError
from taskmesh.spark.steps.schemas import (
    check_names,
    converted,
    exact_up_to,
    family,
    fitted,
    of_elements,
    shown,
    zone_trouble,
)

_FAMILIES: Final = (
    (bool, "boolean"),  # which is an int, too
    ((int, float, Decimal), "number"),
    (str, "text"),
    ((bytes, bytearray, memoryview), "bytes"),
    (datetime.datetime, "timestamp"),  # which is a date, too
    (datetime.date, "date"),
    (datetime.time, "time of day"),
    (datetime.timedelta, "duration"),
)


class _Refused(Exception):
    """A value does not fit.

    Attributes:
        got: a description of the value.
        reason: the reason why it does not fit.
    """

    def __init__(self, got: str, reason: str) -> None:
        super().__init__(got, reason)
        self.got = got
        self.reason = reason


_ERRORS: Final = (_Refused, pa.ArrowException, ValueError, TypeError, ArithmeticError)
"""The errors of a conversion; UnicodeEncodeError and OverflowError are among them."""


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


def of_values(values: list[Any], field: pa.Field, *, nan_is_null: bool = False) -> pa.Array:
    """A column of Python values.

    Args:
        values: one for each row.
        field: name and type of the column.
        nan_is_null: as in pandas, which has no other null for numbers.

    Raises:
        MeshSchemaError: a value does not fit; names its row and the value.
    """
    try:
        column = _built(values, field.type, nan_is_null=nan_is_null)
    except _ERRORS as error:
        raise _refusal(values, field, error, nan_is_null=nan_is_null) from error
    return fitted(column, field)


def of_series(series: Any, field: pa.Field) -> pa.Array:
    """A pandas Series as a column; where pandas holds objects, they are looked at one by one.

    Raises:
        MeshSchemaError: a value does not fit.
    """
    if series.dtype == object:
        return of_values(list(series), field, nan_is_null=True)
    try:
        column = pa.Array.from_pandas(series)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise MeshSchemaError(
            f"column {field.name!r}: expected {field.type}, got pandas {series.dtype}: {error}"
        ) from error
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return fitted(column, field)


def _refusal(values: list[Any], field: pa.Field, error: Exception, *, nan_is_null: bool) -> MeshSchemaError:
    """The error that names the first value which does not fit by itself."""
    where = ""
    for row, value in enumerate(values):
        try:
            _built([value], field.type, nan_is_null=nan_is_null)
        except _ERRORS as its_own:
            error, where, values = its_own, f" (row {row}: {shown(value)})", [value]
            break
    if isinstance(error, _Refused):
        got, reason = error.got, error.reason
    else:
        got, reason = _named(set(map(type, values))), str(error)
    return MeshSchemaError(f"column {field.name!r}: expected {field.type}, got {got}: {reason}{where}")


def _named(classes: Iterable[type]) -> str:
    return f"values of {', '.join(sorted(found.__name__ for found in classes))}"


def _built(values: Any, kind: pa.DataType, *, nan_is_null: bool) -> pa.Array:
    """A list or numpy array of values as an array of exactly this type; nested ones from the inside out."""
    if not isinstance(values, list):
        return converted(pa.array(values, from_pandas=nan_is_null), kind)
    if nan_is_null:
        values = _without_nan(values)
    if types.is_struct(kind):
        return _structs(values, kind, nan_is_null=nan_is_null)
    if types.is_map(kind):
        pairs = [None if value is None else _pairs(value) for value in values]
        flat = list(chain.from_iterable(filter(None, pairs)))
        keys = _built([key for key, _ in flat], kind.key_type, nan_is_null=nan_is_null)
        items = _built([item for _, item in flat], kind.item_type, nan_is_null=nan_is_null)
        return of_elements(map(_length, pairs), (keys, items), kind)
    if family(kind) == "list":
        lists = [None if value is None else _items(value) for value in values]
        elements = _built(_joined(lists), kind.value_type, nan_is_null=nan_is_null)
        return of_elements(map(_length, lists), (elements,), kind)
    return _plain(values, kind)


def _without_nan(values: list[Any]) -> list[Any]:
    """With None for NaN, NaT and NA."""
    nulls, floats = set(), set()
    for found in set(map(type, values)):
        if found.__name__ in {"NAType", "NaTType"}:
            nulls.add(found)
        elif issubclass(found, float) or found.__name__ in {"float32", "float16"}:
            floats.add(found)
    if not nulls and not floats:
        return values
    return [
        None if type(value) in nulls or (type(value) in floats and math.isnan(value)) else value
        for value in values
    ]


def _structs(values: list[Any], kind: pa.DataType, *, nan_is_null: bool) -> pa.Array:
    """A field that a mapping lacks is null; one that the struct lacks would be lost, and is refused."""
    rows = [
        value if value is None or isinstance(value, Mapping) else dict(_pairs(value, "a struct is a dict"))
        for value in values
    ]
    names = [field.name for field in kind]
    extra = set(chain.from_iterable(filter(None, rows))).difference(names)
    if extra:
        raise _Refused(
            f"a field {min(map(repr, extra))}",
            f"the struct has {', '.join(names) or 'no fields'}. Declare it, or drop it in the task",
        )
    if not names:
        return pa.array(rows, kind)
    parts = []
    for field in kind:
        given = [None if row is None else row.get(field.name) for row in rows]
        parts.append(_built(given, field.type, nan_is_null=nan_is_null))
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)


def _pairs(value: Any, wanted: str = "a map is a dict") -> list[tuple[Any, Any]]:
    """The pairs of a mapping, which may also be given as their list."""
    if isinstance(value, Mapping):
        return list(value.items())
    listed = isinstance(value, list | tuple) or type(value).__name__ == "ndarray"
    if not listed or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        raise _Refused(_named([type(value)]), f"{wanted}, or a list of pairs")
    return [(key, item) for key, item in value]


def _items(value: Any) -> Any:
    """A list's items, in something that has a length."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise _Refused(_named([type(value)]), "not a list")
    return value if isinstance(value, Sized) else list(value)


def _length(value: Sized | None) -> int | None:
    return None if value is None else len(value)


def _joined(lists: list[Any]) -> Any:
    """All items of lists: one numpy array if they are such, for its numbers need not become objects."""
    there = [items for items in lists if items is not None]
    if there and all(type(items).__name__ == "ndarray" for items in there):
        import numpy as np  # pools need it only where arrays of it come

        if len({items.dtype for items in there}) == 1 and all(items.ndim == 1 for items in there):
            joined = np.concatenate(there)
            if joined.dtype.kind in "biuf":
                return joined
    return list(chain.from_iterable(there))


def _plain(values: list[Any], kind: pa.DataType) -> pa.Array:
    classes = set(map(type, values)) - {type(None)}
    if any(_is_scalar_of_numpy(found) for found in classes):
        return _of_scalars(values, classes, kind)
    wanted = family(kind)
    wrong = [found for found in classes if _family(found) != wanted]
    if wrong:
        raise _Refused(_named(wrong), f"not a {wanted}" if wanted else "another type")
    there = (value for value in values if value is not None)
    if wanted == "number":
        return _numbers(values, classes, kind)
    if wanted == "timestamp":
        for value in there:
            if (value.tzinfo is not None) != (kind.tz is not None):
                raise _Refused(*zone_trouble(kind))
            if getattr(value, "nanosecond", 0):
                raise _Refused(_named([type(value)]), f"nanoseconds would be lost in {kind}")
    elif wanted == "duration" and any(getattr(value, "nanoseconds", 0) for value in there):
        raise _Refused(_named(classes), f"nanoseconds would be lost in {kind}")
    elif wanted == "time of day" and any(value.tzinfo is not None for value in there):
        raise _Refused(_named(classes), "a time of day has no time zone here")
    return pa.array(values, kind)


@lru_cache(256)
def _family(found: type) -> str:
    return next((name for classes, name in _FAMILIES if issubclass(found, classes)), "")


def _is_scalar_of_numpy(found: type) -> bool:
    """True of numpy's own scalars; those that are Python's classes as well need no care."""
    return (
        found.__module__ == "numpy" and hasattr(found, "item") and not issubclass(found, str | bytes | float)
    )


def _of_scalars(values: list[Any], classes: set[type], kind: pa.DataType) -> pa.Array:
    """Scalars of numpy, among others perhaps."""
    if len(classes) == 1 and next(iter(classes)).__name__ in {"datetime64", "timedelta64"}:
        import numpy as np  # pools need it only where scalars of it come

        return converted(pa.array(np.array(values)), kind)
    told = {found for found in classes if _is_scalar_of_numpy(found)}
    values = [value.item() if type(value) in told else value for value in values]
    left = [found for found in map(type, values) if _is_scalar_of_numpy(found)]
    if left or any(found.__name__ in {"datetime64", "timedelta64", "ndarray"} for found in told):
        raise _Refused(_named(told), f"not a {family(kind) or kind}")
    return _plain(values, kind)


def _numbers(values: list[Any], classes: set[type], kind: pa.DataType) -> pa.Array:
    """Numbers: whole ones exactly, fractions as far as a float has digits."""
    if types.is_integer(kind):
        if not all(issubclass(found, int) for found in classes):
            values = [value if value is None else _whole(value) for value in values]
    elif types.is_decimal(kind):
        if any(issubclass(found, float) for found in classes):
            values = [Decimal(repr(float(value))) if isinstance(value, float) else value for value in values]
    elif all(issubclass(found, float) for found in classes):
        return converted(pa.array(values, pa.float64()), kind)
    elif any(not issubclass(found, int | float if kind == pa.float64() else int) for found in classes):
        values = [value if value is None else _rounded(value, kind) for value in values]
    return pa.array(values, kind)


def _whole(value: float | Decimal) -> int:
    if int(value) != value:  # which raises for NaN and infinity
        raise _Refused(_named([type(value)]), "it is not a whole number")
    return int(value)


def _rounded(value: float | Decimal, kind: pa.DataType) -> float:
    found = float(value)
    if kind.bit_width < 64:
        found = struct.unpack("f", struct.pack("f", found))[0]
    whole = not isinstance(value, float) and abs(value) > exact_up_to(kind) and int(value) == value
    if (found == 0 != value) or (whole and found != value) or (abs(found) == float("inf") != abs(value)):
        raise _Refused(_named([type(value)]), f"{kind} cannot hold it")
    return found
