"""DataFrames through the mesh, batch by batch. Numbers are those of the acceptance rows."""

import functools
import pickle
import re

import pyarrow as pa
import pytest

from taskmesh import task
from taskmesh.errors import ConfigError, SerializationError
from taskmesh.spark import MeshSpark
from taskmesh.spark.steps.errors import MeshSchemaError
from tests.spark import tasks
from tests.spark.jobs import failure, values
from tests.spark.steps import run_step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_row_01_the_number_of_rows_is_the_tasks_own(spark, mesh):
    df = spark.range(0, 1000, numPartitions=2)

    assert values(mesh.map_arrow(df, tasks.evens, "id long")) == [(n,) for n in range(0, 1000, 2)]
    assert values(mesh.map_arrow(df, tasks.nothing, "id long")) == []
    assert values(mesh.map_arrow(df, tasks.in_two, "id long")) == [(n,) for n in range(1000)]


def test_row_01_without_order_all_rows_are_there(spark, mesh):
    df = spark.range(0, 2000, numPartitions=1)

    found = values(mesh.map_arrow(df, tasks.same, "id long", chunksize=50, ordered=False))

    assert sorted(found) == [(number,) for number in range(2000)]


def test_row_01_partitions_run_on_both_pools(spark, mesh):
    @task
    def whereabouts(batch):
        import os

        return pa.RecordBatch.from_pydict({"pid": pa.array([os.getppid()] * batch.num_rows, pa.int64())})

    df = spark.range(0, 400, numPartitions=4)

    found = values(mesh.map_arrow(df, whereabouts, "pid long", chunksize=10))

    assert len(found) == 400
    assert len(set(found)) == 2


def test_row_06_empty_partitions_dial_nobody(spark):
    nobody = MeshSpark("tcp://127.0.0.1:9", connect_timeout=0.5)
    empty = spark.range(0, 100, numPartitions=4).filter("id < 0")

    found = nobody.map_arrow(empty, tasks.double, "id long, twice long")

    assert found.collect() == []
    assert found.schema.simpleString() == "struct<id:bigint,twice:bigint>"


def test_row_06_empty_partitions_beside_full_ones(spark, mesh):
    df = spark.range(0, 10, numPartitions=8).filter("id % 4 = 0")

    assert values(mesh.map_arrow(df, tasks.double, "id long, twice long")) == [(0, 0), (4, 8), (8, 16)]


def test_row_06_no_columns(spark, mesh):
    df = spark.range(0, 30, numPartitions=2).select()

    found = mesh.map_arrow(df, tasks.same, "")

    assert found.columns == []
    assert found.count() == df.mapInArrow(lambda batches: batches, "").count()  # Spark itself loses them


TYPES = """
    named_struct('deep', array(map('k', named_struct('n', cast(id as int))))) as nested,
    cast(id % 128 as tinyint) as i8, cast(id as smallint) as i16, cast(id as int) as i32, id as i64,
    cast(id / 3 as float) as f32, id / 3 as f64, cast(id as decimal(38, 18)) / 7 as d38,
    id % 2 = 0 as flag, if(id % 3 = 0, null, concat('ä€', id)) as text,
    cast(concat('b', id) as binary) as raw,
    date_add(date'2024-02-28', cast(id as int)) as day,
    timestamp_micros(1711846800000000 + id * 1800000001) as at,
    timestamp_ntz'1969-12-31 23:59:59.999999' as naive,
    make_dt_interval(1, 2, 3, cast(id % 60 as decimal(8, 6))) as span,
    array(id, null) as items, map(id, cast(null as string)) as mapping, cast(null as double) as nothing
"""


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_row_07_and_08_types_and_time_zones_come_back_bit_for_bit(spark, mesh, zone):
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        df = spark.sql("select" + TYPES + "from range(0, 200, 1, 2)")
        before = df.toArrow()

        after = mesh.map_arrow(df, tasks.same, df.schema).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert after.schema.types == before.schema.types
    assert after.equals(before)
    assert before.column("nothing").null_count == 200


def test_row_07_cells_of_a_mebibyte(spark, mesh):
    df = spark.range(0, 8, numPartitions=2).selectExpr(
        "id", "cast(repeat(chr(65 + id), 1048576) as binary) as cell"
    )

    found = mesh.map_arrow(df, tasks.same, df.schema).collect()

    assert [bytes(row.cell) for row in found] == [bytes([65 + number]) * 1048576 for number in range(8)]


@pytest.mark.parametrize(
    "instant", ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2024-03-31 02:30:00"]
)
def test_row_08_the_ends_of_time_keep_their_microseconds(spark, mesh, instant):
    df = spark.sql(f"select timestamp'{instant}' as at, timestamp_ntz'{instant}' as naive")
    after = mesh.map_arrow(df, tasks.same, df.schema)

    micros = "unix_micros(at) as at", "cast(naive as string) as naive"

    assert after.selectExpr(*micros).collect() == df.selectExpr(*micros).collect()


SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
THREE = pa.RecordBatch.from_pydict({"id": [0, 1, 2]})


CASTABLE = ["swapped", "int32", "decimal", "whole floats", "dictionary", "large text"]


@pytest.mark.parametrize("kind", CASTABLE)
def test_row_09_what_loses_nothing_is_cast(kind):
    (found,) = run_step(tasks.returns(kind), "arrow", SCHEMA, THREE)

    assert found.schema == SCHEMA
    assert found.to_pydict() == {"id": [0, 1, 2], "name": ["x"] * 3}


MISFITS = [
    ("broken floats", "column 'id': expected int64, got double: Float value 0.500000 was truncated"),
    ("text", "column 'id': expected int64, got string: not a number"),
    ("extra", "column 'more': expected no such column, got one: the schema declares 'id', 'name'"),
    ("missing", "column 'name': expected string, got no such column: the task returned 'id'"),
    ("null", "column 'name': expected string without nulls, got 3 null of 3"),
    ("twice", "column 'id': expected int64, got two of that name"),
    ("no batch", "the task returned a int: expected a pyarrow RecordBatch or Table"),
]


@pytest.mark.parametrize(("kind", "words"), MISFITS)
def test_row_09_what_does_not_fit_is_named(kind, words):
    with pytest.raises(MeshSchemaError, match=re.escape(words)):
        run_step(tasks.returns(kind), "arrow", SCHEMA, THREE)


@pytest.mark.parametrize(
    ("where", "kind", "words"), [*(("mesh", *misfit) for misfit in MISFITS), ("local", *MISFITS[1])]
)
def test_row_09_the_driver_is_told_and_not_in_the_jvms_words(spark, mesh, where, kind, words):
    bridge = mesh if where == "mesh" else mesh.local()
    df = bridge.map_arrow(
        spark.range(0, 3, numPartitions=1), tasks.returns(kind), "id long, name string not null"
    )

    text = failure(df.collect)

    assert f"MeshSchemaError: task tests.spark.tasks._return: {words}" in text
    assert "getLong" not in text


@pytest.mark.parametrize("kind", CASTABLE)
def test_row_09_what_is_cast_arrives_in_spark(spark, mesh, kind):
    df = mesh.map_arrow(
        spark.range(0, 3, numPartitions=1), tasks.returns(kind), "id long, name string not null"
    )

    assert [tuple(row) for row in df.collect()] == [(0, "x"), (1, "x"), (2, "x")]


@pytest.mark.parametrize(
    ("kind", "zone", "words"),
    [
        (
            "us",
            "UTC",
            "expected timestamp[us, tz=UTC], got timestamp[us]: a naive datetime: give it a time zone",
        ),
        ("us UTC", None, "got timestamp[us, tz=UTC]: a datetime with a time zone"),
        ("ns odd", None, "would lose data"),
    ],
)
def test_row_08_and_09_times_of_the_wrong_kind_are_refused(kind, zone, words):
    schema = pa.schema([("at", pa.timestamp("us", zone))])

    with pytest.raises(MeshSchemaError, match="column 'at': .*" + re.escape(words)):
        run_step(tasks.times(kind), "arrow", schema, THREE)


@pytest.mark.parametrize("kind", ["s Asia/Kolkata", "ms UTC", "ns America/New_York"])
def test_row_09_times_of_other_units_and_zones_are_the_same_instants(spark, mesh, kind):
    df = mesh.map_arrow(spark.range(0, 3, numPartitions=1), tasks.times(kind), "at timestamp")

    assert values(df.selectExpr("unix_micros(at)")) == [(0,), (1_000_000,), (2_000_000,)]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("plain", "ValueError: no good row"),
        ("caused", "KeyError: 'missing'"),
        ("unpicklable", "Unpicklable: no good row"),
        ("broken", "Broken: no good row and no way"),
        ("exit", "SystemExit: no good row"),
        ("stop", "StopIteration: no good row"),
    ],
)
def test_row_10_an_exception_tells_all_and_harms_nobody(spark, mesh, kind, words):
    df = spark.range(0, 3, numPartitions=1)

    text = failure(mesh.map_arrow(df, tasks.fail_as(kind), "id long").collect)

    assert "MeshTaskError" in text
    assert words in text
    assert 'tasks.py", line' in text
    assert "rows 0 to 2 of the partition" in text
    assert "partition 0" in text
    assert values(mesh.map_arrow(df, tasks.same, "id long")) == [(0,), (1,), (2,)]


def test_row_26_lambdas_and_nested_functions_travel_by_value(spark, mesh):
    factor = 3
    df = spark.range(0, 5, numPartitions=1)

    found = mesh.map_arrow(
        df,
        lambda batch: pa.RecordBatch.from_pydict({"id": [factor * n for n in batch["id"].to_pylist()]}),
        "id long",
    )

    assert values(found) == [(0,), (3,), (6,), (9,), (12,)]


def test_row_26_what_cannot_travel_is_named_on_the_driver(spark, mesh):
    context = spark.sparkContext

    def with_context(batch):
        return context and batch

    with pytest.raises(SerializationError, match="context"):
        mesh.map_arrow(spark.range(3), with_context, "id long")


def test_row_26_the_bridge_is_a_picklable_value(mesh):
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert hash(pickle.loads(pickle.dumps(mesh))) == hash(mesh)


def test_settings_come_from_the_session(spark, address):
    settings = {"address": address, "window": "2", "window_bytes": "1MiB", "tags": "gpu,big"}
    for name, value in settings.items():
        spark.conf.set(f"spark.taskmesh.{name}", value)
    try:
        found = MeshSpark.from_conf(spark, queue="slow")
        spark.conf.set("spark.taskmesh.windw", "2")
        with pytest.raises(
            ConfigError, match=r"spark\.taskmesh\.windw; did you mean 'spark\.taskmesh\.window'\?"
        ):
            MeshSpark.from_conf(spark)
    finally:
        for name in [*settings, "windw"]:
            spark.conf.unset(f"spark.taskmesh.{name}")

    assert found == MeshSpark(address, queue="slow", tags=("gpu", "big"), window=2, window_bytes=1 << 20)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"window": 0}, "window has to be a whole number, at least 1, not 0"),
        ({"window_bytes": "much"}, "window_bytes has to be"),
        ({"errors": "ignore"}, "errors has to be 'raise', 'null' or 'column', not 'ignore'"),
        ({"connect_timeout": -1}, "connect_timeout has to be seconds"),
        ({"address": ""}, "no address"),
        ({"dedupe": "all"}, "dedupe has to be 'none' or 'result'"),
        ({"remember_errors": -1}, "remember_errors has to be a whole number"),
        ({"remember_errors": "often"}, "remember_errors has to be a whole number"),
        ({"remember_errors": 1.5}, "remember_errors has to be a whole number"),
        ({"address": "hub:5550"}, "is not an address: write tcp://HOST:PORT"),
        ({"address": "tcp://hub"}, "is not an address: write tcp://HOST:PORT"),
        ({"address": ("tcp://127.0.0.1:5550", "localhost")}, "is not an address: write tcp://HOST:PORT"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        MeshSpark(**{"address": "tcp://127.0.0.1:5550", **values})


def test_remember_errors_is_a_number_or_a_switch():
    for value, tries in ((True, 2), (False, 0), (0, 0), ("false", 0), ("3", 3)):
        assert MeshSpark("tcp://127.0.0.1:5550", remember_errors=value).remember_errors == tries


def test_partials_are_tasks_too(spark, mesh):
    df = spark.range(0, 2, numPartitions=1)

    assert values(mesh.map_arrow(df, functools.partial(_add, 5), "id long")) == [(5,), (6,)]


def _add(number, batch):
    return pa.RecordBatch.from_pydict({"id": [number + n for n in batch["id"].to_pylist()]})
