"""B: what a task returns in any form becomes exactly what is declared, or a MeshSchemaError."""

import datetime
import math
import struct
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import types

from taskmesh.spark.steps import columns, schemas
from taskmesh.spark.steps.errors import MeshSchemaError
from tests.spark.steps import column

pytestmark = [pytest.mark.spark]

ONE = pa.RecordBatch.from_pydict({"id": [1]})
UTC = datetime.UTC
NAIVE = datetime.datetime(2024, 7, 1, 12, 30, 0, 5)  # noqa: DTZ001
AWARE = NAIVE.replace(tzinfo=UTC)


def _returned(form: str, values: list, kind: pa.DataType) -> list:
    """The column `x` of this type that comes of these values, returned by a task or UDF of this form."""
    series = pd.Series(values, dtype=object)
    returned, batch = {
        "rows": ([{"x": value} for value in values], ONE),
        "pandas": (pd.DataFrame({"x": series}), ONE),
        "series": (series, None),
        "values": (values, None),
    }[form]
    if batch is None:
        batch = pa.RecordBatch.from_pydict({"id": pa.array(range(len(values)), pa.int64())})
    call = (lambda row: returned[row]) if form == "values" else (lambda *_: returned)
    return column(call, form, kind, batch)


FORMS = ["rows", "pandas", "series", "values"]
INT, FLOAT, DATE, AT = pa.int32(), pa.float32(), pa.date32(), pa.timestamp("us", "UTC")
CENTS = pa.decimal128(10, 2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0.7, INT),
        (1e300, INT),
        (math.inf, INT),
        (Decimal("1.7"), INT),
        (2**31, INT),
        (True, INT),
        (1, pa.bool_()),
        (1e300, FLOAT),
        (1e-300, FLOAT),
        (2**24 + 1, FLOAT),
        (2**53 + 1, pa.float64()),
        (Decimal(2**53 + 1), pa.float64()),
        (Decimal("1e400"), pa.float64()),
        (1.239, CENTS),
        (Decimal("1.239"), CENTS),
        (10**9, CENTS),
        (NAIVE, DATE),
        (AWARE, DATE),
        (pd.Timestamp(NAIVE), DATE),
        (5, DATE),
        (5, AT),
        (NAIVE, AT),
        (datetime.date(2024, 7, 1), AT),
        (AWARE, pa.timestamp("us")),
        (pd.Timestamp(NAIVE) + pd.Timedelta(1, "ns"), pa.timestamp("us")),
        (np.datetime64("2024-07-01T00:00:00.000000001"), pa.timestamp("us")),
        (pd.Timedelta(1, "ns"), pa.duration("us")),
        (5, pa.duration("us")),
        (datetime.time(1, tzinfo=UTC), pa.time64("ns")),
        (b"a", pa.string()),
        ("a", pa.binary()),
        ("\ud800", pa.string()),
        ("ab", pa.list_(pa.string())),
        ({"a": 1, "b": 2}, pa.struct([("a", pa.int64())])),
        ([1.7], pa.list_(INT)),
        (np.array([1.7]), pa.list_(INT)),
        (np.array([1e300]), pa.list_(FLOAT)),
        ({"a": 1.7}, pa.struct([("a", INT)])),
        ({"k": 1.7}, pa.map_(pa.string(), INT)),
        ([(1.7, "v")], pa.map_(INT, pa.string())),
        ([{"a": [NAIVE]}], pa.list_(pa.struct([("a", pa.list_(DATE))]))),
    ],
)
def test_b_a_value_that_would_be_another_one_is_refused_by_column_row_and_value(form, value, kind):
    with pytest.raises(MeshSchemaError) as caught:
        _returned(form, [None, None, value], kind)

    text = str(caught.value)
    assert text.startswith(f"column 'x': expected {kind}, got ")
    assert text.count("(row 2: ") == text.count("expected") == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1.0, Decimal(2), 3, np.int8(4), np.float32(5)], INT, [1, 2, 3, 4, 5]),
        ([1, Decimal("0.5"), 0.25, np.float32(2)], FLOAT, [1.0, 0.5, 0.25, 2.0]),
        ([1, Decimal("0.1"), 0.1], pa.float64(), [1.0, 0.1, 0.1]),
        ([1, Decimal("0.50"), 0.1, np.int64(7)], CENTS, [*map(Decimal, ("1.00", "0.50", "0.10", "7.00"))]),
        ([np.bool_(True), False], pa.bool_(), [True, False]),
        ([bytearray(b"a"), b"b"], pa.binary(), [b"a", b"b"]),
        ([np.datetime64("2024-07-01")], DATE, [datetime.date(2024, 7, 1)]),
        ([np.datetime64(NAIVE)], pa.timestamp("us"), [NAIVE]),
        ([pd.Timestamp(AWARE), AWARE], AT, [AWARE, AWARE]),
        ([np.timedelta64(5, "s"), None], pa.duration("us"), [datetime.timedelta(seconds=5), None]),
        ([np.array([1, 2]), None, np.array([], "int64")], pa.list_(INT), [[1, 2], None, []]),
        ([np.array([[1], [2]]), [(1.0,)]], pa.list_(pa.list_(INT)), [[[1], [2]], [[1]]]),
        ([{"a": 1}, None], pa.struct([("a", INT), ("b", INT)]), [{"a": 1, "b": None}, None]),
        ([{1: 2.0}, [(3, None)], None, {}], pa.map_(INT, INT), [[(1, 2)], [(3, None)], None, []]),
        ([(1, 2), {3}, None], pa.large_list(INT), [[1, 2], [3], None]),
        ([{}, None], pa.struct([]), [{}, None]),
        ([[], [None], None], pa.list_(pa.null()), [[], [None], None]),
    ],
)  # fmt: skip
def test_b_what_keeps_its_value_is_taken(form, values, kind, expected):
    found = _returned(form, values, kind)

    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "source", "kind"),
    [
        ([1.0, 1e300], pa.float64(), FLOAT),
        ([1.0, 1e-300], pa.float64(), FLOAT),
        ([1.0, 0.7], pa.float64(), pa.decimal128(10, 0)),
        ([Decimal(1), Decimal(2**53 + 1)], pa.decimal128(20, 0), pa.float64()),
        ([[1.0], [1e300]], pa.list_(pa.float64()), pa.list_(FLOAT)),
        ([{"a": 1.0}, {"a": 1.239}], pa.struct([("a", pa.float64())]), pa.struct([("a", CENTS)])),
        ([[("k", 1.0)], [("k", 1e300)]], pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), FLOAT)),
        ([[1.0], [1.7]], pa.list_(pa.float64()), pa.list_(INT)),
    ],
)
def test_b_arrow_columns_are_held_to_the_same(values, source, kind):
    with pytest.raises(MeshSchemaError, match=r"column 'x': expected .* got .*\(row 1: "):
        _arrow(pa.array(values, source), kind)


def test_b_decimals_of_arrow_become_the_nearest_float():
    values = [Decimal("4930245.8292"), Decimal("1.7"), None]

    assert _arrow(pa.array(values, pa.decimal128(38, 8)), pa.float64()).to_pylist() == [
        4930245.8292,
        1.7,
        None,
    ]


@pytest.mark.parametrize(
    ("values", "source", "kind"),
    [
        ([[9.5], [1.0, None], None, [], [2.0]], pa.list_(pa.float64()), pa.large_list(INT)),
        ([[(1, 9.5)], [(2, 1.0), (3, None)], None, []], pa.map_(INT, pa.float64()), pa.map_(INT, INT)),
        ([{"a": 9.5}, {"a": 1.0}, None], pa.struct([("a", pa.float64())]), pa.struct([("a", INT)])),
        ([[9.5, 1], [1.0, None], None], pa.list_(pa.float64(), 2), pa.list_(INT)),
    ],
)  # fmt: skip
def test_b_what_is_outside_of_a_slice_is_not_looked_at(values, source, kind):
    found = _arrow(pa.array(values, source).slice(1), kind)

    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == values[1:]


def _arrow(given: pa.Array, kind: pa.DataType) -> pa.Array:
    return column(lambda given: given, "arrow", kind, pa.RecordBatch.from_arrays([given], names=["x"]))


# --- any value into any type ------------------------------------------------------------------------------

ZONES = st.sampled_from([UTC, ZoneInfo("America/New_York"), datetime.timezone(datetime.timedelta(hours=5.5))])
NUMBERS = st.one_of(
    st.integers(-300, 300),
    st.integers(-(2**65), 2**65),
    st.floats(width=64),
    st.integers(-1000, 1000).map(float),
    st.decimals(allow_nan=True, allow_infinity=True),
    st.decimals(-1000, 1000, places=2),
    st.integers(-100, 100).map(np.int8),
    st.floats(width=32).map(np.float32),
)
DATETIMES = st.datetimes() | st.datetimes(timezones=ZONES)
PLAIN = st.one_of(
    NUMBERS,
    st.booleans(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.dates(),
    DATETIMES,
    DATETIMES.filter(lambda at: 1700 < at.year < 2200).map(pd.Timestamp),
    st.timedeltas(),
    st.times() | st.times(timezones=st.just(UTC)),
)
LEAVES: dict[pa.DataType, st.SearchStrategy] = {
    pa.bool_(): st.booleans(),
    pa.int8(): NUMBERS,
    pa.int16(): NUMBERS,
    pa.int32(): NUMBERS,
    pa.int64(): NUMBERS,
    pa.float32(): NUMBERS,
    pa.float64(): NUMBERS,
    pa.decimal128(5, 2): NUMBERS,
    pa.decimal128(38, 18): NUMBERS,
    pa.string(): st.text(max_size=4),
    pa.large_string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.date32(): st.dates() | DATETIMES,
    pa.timestamp("us", "America/New_York"): DATETIMES,
    pa.timestamp("us"): DATETIMES,
    pa.duration("us"): st.timedeltas(),
    pa.time64("ns"): st.times(),
    pa.null(): st.none(),
}
SOURCES = {
    **{kind: NUMBERS for kind in LEAVES if LEAVES[kind] is NUMBERS},
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.decimal256(60, 10): st.decimals(-(10**40), 10**40, places=10),
    pa.timestamp("ns"): st.integers(-(2**62), 2**62).map(lambda n: np.datetime64(n, "ns")),
    pa.timestamp("s", "UTC"): st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0)),
    pa.date64(): st.dates(),
    pa.large_string(): st.text(max_size=4),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.dictionary(pa.int32(), pa.string()): st.text(max_size=4),
}
"""Types of Arrow columns that tasks may return."""
KINDS = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(inner, inner).map(lambda two: pa.struct([("a", two[0]), ("b", two[1])])),
        st.tuples(inner.filter(lambda kind: not types.is_null(kind)), inner).map(lambda two: pa.map_(*two)),
    ),
    max_leaves=3,
)


def _of(kind: pa.DataType) -> st.SearchStrategy:
    """Values that are meant for a type; now and then one that is not."""
    if types.is_struct(kind):
        meant = st.fixed_dictionaries({field.name: _of(field.type) for field in kind})
        meant |= st.fixed_dictionaries({"a": _of(kind[0].type), "c": PLAIN})
    elif types.is_map(kind):
        meant = st.lists(
            st.tuples(_of(kind.key_type).filter(lambda key: key is not None), _of(kind.item_type)), max_size=2
        )
    elif types.is_list(kind):
        meant = st.lists(_of(kind.value_type), max_size=3)
        meant |= st.lists(st.floats() | st.integers(-9, 9), max_size=3).map(np.array)
    else:
        meant = LEAVES[kind]
    return st.one_of(meant, meant, meant, st.none(), PLAIN)


class Single(float):
    """A number of a float32 column: a decimal of it has as many digits as give the same float32 back."""


def _same(value, got, kind) -> bool:
    """True if a value has come through: equal, or a fraction that is the nearest one of a float type."""
    if value is None or got is None:
        return value is got
    inner = _inner(value, got, kind)
    if inner is None:
        return _same_plain(value.item() if isinstance(value, np.generic) else value, got, kind)
    return all(_same(*each) for each in inner)


def _inner(value, got, kind) -> list | None:
    """The parts of a nested value, each with its result and type; None for plain values."""
    if types.is_struct(kind):
        assert set(value) <= set(got)
        return [(value.get(field.name), got[field.name], field.type) for field in kind]
    if types.is_map(kind):
        pairs = zip(value.items() if isinstance(value, dict) else value, got, strict=True)
        sides = (kind.key_type, kind.item_type)
        return [each for one, other in pairs for each in zip(one, other, sides, strict=True)]
    if types.is_list(kind):
        return [(one, other, kind.value_type) for one, other in zip(value, got, strict=True)]
    return None


def _same_plain(value, got, kind) -> bool:
    if isinstance(value, bool | bytes) or isinstance(got, bool | bytes):
        return type(value) is type(got) and value == got
    if types.is_floating(kind):
        return _is_nearest(value, got, kind)
    if types.is_decimal(kind) and isinstance(value, float):
        return value == (np.float32(str(got)) if isinstance(value, Single) else float(got))
    if isinstance(value, datetime.datetime):
        return value == got and (value.tzinfo is None) == (got.tzinfo is None)
    return value == got


def _is_nearest(value, got, kind) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return math.isnan(got)
    if not isinstance(value, float) and value == int(value):
        return got == value
    near = float(value)
    return got == (near if kind == pa.float64() else struct.unpack("f", struct.pack("f", near))[0])


def _without_nan(value):
    """As pandas has it: NaN is null."""
    if isinstance(value, dict):
        return {_without_nan(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float | np.floating) and math.isnan(value) else value


def _check(convert, values, kind) -> None:
    """Each value is there, or they are refused with column and row."""
    try:
        column = convert()
    except MeshSchemaError as error:
        column, told = None, str(error)
    if column is None:
        assert told.startswith("column 'x': expected ")
        assert any(part in told for part in (" (row ", ": not a ", ": another type", "time zone"))
        return
    column.validate(full=True)
    assert column.type == kind
    for value, got in zip(values, column.to_pylist(), strict=True):
        assert _same(value, got, kind), (value, got, kind)


@settings(max_examples=500, deadline=None)
@given(st.data(), st.booleans())
def test_b_any_value_in_any_type_is_equal_or_refused(data, of_pandas):
    kind = data.draw(KINDS)
    values = data.draw(st.lists(_of(kind), min_size=1, max_size=3))
    field = pa.field("x", kind)
    if of_pandas:
        wanted = [_without_nan(value) for value in values]
        _check(lambda: columns.of_series(pd.Series(values, dtype=object), field), wanted, kind)
    else:
        _check(lambda: columns.of_values(values, field), values, kind)


@settings(max_examples=500, deadline=None)
@given(st.data(), st.sampled_from(list(SOURCES)), st.sampled_from(list(LEAVES)), st.booleans())
def test_b_any_arrow_column_in_any_type_is_equal_or_refused(data, source, kind, nested):
    values = data.draw(st.lists(SOURCES[source] | st.none(), min_size=1, max_size=3))
    try:
        column = pa.array(values, source)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return
    given = column.to_pylist()
    if source == pa.float32():
        given = [None if value is None else Single(value) for value in given]
    if nested:
        column, kind, given = pa.array([given], pa.list_(source)), pa.list_(kind), [given]
    _check(lambda: schemas.fitted(column, pa.field("x", kind)), given, kind)
