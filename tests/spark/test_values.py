"""Results of functions, checked against the schema inside a step: nested values, numbers, and others."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from taskmesh.serialize.code import dump_function
from taskmesh.spark.steps.chunks import ChunkStep
from taskmesh.spark.steps.errors import MeshSchemaError
from tests.spark.steps import column

pytestmark = [pytest.mark.spark]

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2, 3]})
ZONED = pa.timestamp("us", "UTC")
NAIVE = datetime.datetime(2024, 7, 1)  # noqa: DTZ001
AWARE = NAIVE.replace(tzinfo=datetime.UTC)


def _column(returned, kind, form="rows", errors="raise"):
    """The values of the column that a function's result becomes."""
    return column(lambda _: returned, form, kind, BATCH, errors).to_pylist()


def _refusal(*arguments) -> str:
    with pytest.raises(MeshSchemaError) as caught:
        _column(*arguments)
    return str(caught.value)


def _full(name, kind):
    return pa.field(name, kind, nullable=False)


NESTED = {
    "elements": (pa.list_(_full("element", pa.int32())), [1, None], [1]),
    "fields": (pa.struct([_full("n", pa.string())]), {"n": None}, {"n": "a"}),
    "values": (pa.map_(pa.string(), _full("value", pa.int32())), [("k", None)], [("k", 1)]),
    "deep": (
        pa.list_(pa.struct([pa.field("l", pa.list_(_full("element", pa.int8())))])),
        [{"l": [None]}],
        [None],
    ),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("form", ["rows", "pandas"])
def test_row_09_a_null_inside_a_column_is_refused_where_none_may_be(name, form):
    kind, bad, good = NESTED[name]

    def returned(*values):
        return [{"x": value} for value in values] if form == "rows" else pd.DataFrame({"x": list(values)})

    assert "column 'x': expected" in (text := _refusal(returned(good, bad), kind, form))
    assert ", got null in " in text
    assert _column(returned(good, None), kind, form)[1] is None


def test_row_09_a_null_inside_an_arrow_column_is_refused_and_one_outside_of_a_slice_is_not():
    kind = NESTED["elements"][0]
    lists = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32()))
    batch = pa.RecordBatch.from_pydict({"x": lists})
    pairs = pa.array([[("a", 1)], None, [("b", None)], [("c", 3)]], pa.map_(pa.string(), pa.int32()))
    maps = pa.RecordBatch.from_pydict({"x": pairs})

    assert "got null in value" in _refusal(maps, NESTED["values"][0], "arrow")
    assert _column(maps.slice(0, 2), NESTED["values"][0], "arrow") == [[("a", 1)], None]
    assert _column(maps.slice(3), NESTED["values"][0], "arrow") == [[("c", 3)]]
    assert "got null in element" in _refusal(batch, kind, "arrow")
    assert _column(batch.slice(0, 2), kind, "arrow") == [[1, 2], None]


HOLDING = {
    "list": (pa.list_, lambda value: [None, value]),
    "struct": (lambda at: pa.struct([("at", at)]), lambda value: {"at": value}),
    "values": (lambda at: pa.map_(pa.string(), at), lambda value: {"k": value}),
    "keys": (lambda at: pa.map_(at, pa.int32()), lambda value: [(value, 1)]),
    "deep": (lambda at: pa.list_(pa.struct([("at", pa.list_(at))])), lambda value: [{"at": [value]}]),
}


@pytest.mark.parametrize("name", HOLDING)
def test_row_09_nested_times_of_the_wrong_kind_are_refused(name):
    kind, nest = HOLDING[name]
    for form, table in (
        ("rows", lambda value: [{"x": value}]),
        ("pandas", lambda value: pd.DataFrame({"x": [value]})),
    ):
        assert "got a naive datetime" in _refusal(table(nest(NAIVE)), kind(ZONED), form)
        assert "got a datetime with a time zone" in _refusal(
            table(nest(AWARE)), kind(pa.timestamp("us")), form
        )
        assert len(_column(table(nest(AWARE)), kind(ZONED), form)) == 1
    assert _column([{"x": None}], kind(ZONED)) == [None]


def test_row_09_whole_numbers_become_decimals_that_have_room_for_them():
    narrow = pa.decimal128(4, 1)
    ids = pa.RecordBatch.from_pydict({"x": pa.array([1, -999, None], pa.int64())})

    assert [value and int(value) for value in _column(ids, narrow, "arrow")] == [1, -999, None]
    assert [int(value) for value in _column(pd.DataFrame({"x": [1, 2]}), narrow, "pandas")] == [1, 2]
    assert "expected decimal128(4, 1)" in _refusal(pd.DataFrame({"x": [1, 1000]}), narrow, "pandas")


def test_row_09_times_of_day_come_from_pandas_too():
    noon = datetime.time(12, 0, 0, 5)

    assert _column(pd.DataFrame({"x": [noon]}), pa.time64("ns"), "pandas") == [noon]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"x": NAIVE}, "got a naive datetime: give it a time zone"),
        ({}, "got no such column"),
        ({"x": "today"}, "got values of str"),
    ],
)
def test_row_09_rows_are_checked_by_column(row, words):
    assert f"column 'x': expected timestamp[us, tz=UTC], {words}" in _refusal([row], ZONED)


@pytest.mark.parametrize("returned", [7, pd.DataFrame({"x": [1]})])
@pytest.mark.parametrize("errors", ["raise", "null"])
def test_row_09_what_are_no_rows_is_told_and_is_no_rows_fault(returned, errors):
    assert "expected a list of dicts" in _refusal(returned, pa.int64(), "rows", errors)


@pytest.mark.parametrize("returned", [None, (), iter([]), np.array([])])
def test_no_rows_are_rows_too(returned):
    assert _column(list(returned) if returned is not None else None, pa.int64()) == []


@pytest.mark.parametrize("returned", [None, [], np.array([]), np.array([1, 2])])
def test_a_chunk_may_come_to_nothing_or_to_an_array(returned):
    step = ChunkStep(dump_function(lambda _: returned), "partition")

    assert step([1, 2]) == (2, [] if returned is None else list(returned))
