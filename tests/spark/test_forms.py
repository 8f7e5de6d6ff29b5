"""The other forms: pandas, rows, UDFs, RDDs; and what an exception does to a row."""

import pickle
import re
import threading
from dataclasses import make_dataclass, replace

import pyarrow as pa
import pytest

from tests.spark import tasks
from tests.spark.jobs import failure, values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(params=["mesh", "local"])
def bridge(request, mesh):
    return mesh if request.param == "mesh" else mesh.local()


@pytest.mark.parametrize(
    ("form", "task"), [("pandas", tasks.frame), ("rows", tasks.rows), ("arrow", tasks.double)]
)
def test_row_01_batches_in_every_format(spark, bridge, form, task):
    df = spark.range(0, 1000, numPartitions=2)

    found = bridge.map_batches(df, task, "id long, twice long", format=form)

    assert values(found) == [(number, 2 * number) for number in range(1000)]


def test_row_11_a_failing_row_is_null_or_told_in_a_column(spark, mesh):
    df = spark.range(0, 1000, numPartitions=2)
    good = [(n, 2 * n) for n in range(1000)]

    nulls = replace(mesh, errors="null").map_arrow(df, tasks.frail, "id long, twice long")
    told = replace(mesh, errors="column").map_arrow(df, tasks.frail, "id long, twice long")

    assert values(nulls) == [(n, twice if n % 10 != 7 else None) for n, twice in good]
    rows = told.collect()
    assert [row.id for row in rows] == list(range(1000))
    assert {row._mesh_error for row in rows if row.id % 10 == 7} == {"ValueError: a seven"}
    assert {row._mesh_error for row in rows if row.id % 10 != 7} == {None}
    assert "ValueError: a seven" in failure(mesh.map_arrow(df, tasks.frail, "id long, twice long").collect)


def test_row_01_udfs_over_arrays_series_and_values(spark, bridge):
    df = spark.sql("select id, if(id % 5 = 0, null, concat('w', id)) as word from range(0, 500, 1, 2)")
    lengths = bridge.udf("int")(tasks.lengths)
    shout = bridge.udf("string", input="pandas")(tasks.shout)
    described = bridge.udf("struct<number: bigint, word: string>", input="scalar")(_describe)

    found = df.select(lengths("word"), shout("word", "id"), described(df.id, df.word), "id").collect()

    expected = []
    for number in range(500):
        word = None if number % 5 == 0 else f"w{number}"
        expected.append((
            word and len(word),
            word and (word.upper() + "!") * number,
            word and (number, word),
            number,
        ))  # fmt: skip
    assert [tuple(row) for row in found] == expected


def _describe(number, word):
    return None if word is None else {"number": number, "word": word}


def test_a_udf_for_sql(spark, mesh):
    mesh.udf("int")(tasks.lengths).register(spark, "mesh_length")

    assert values(spark.sql("select mesh_length('four') as n where mesh_length('ab') = 2")) == [(4,)]


def test_row_11_a_udf_with_nulls_for_errors(spark, mesh):
    described = replace(mesh, errors="null").udf("struct<number: bigint, word: string>", input="scalar")(
        tasks.describe
    )
    df = spark.range(0, 6, numPartitions=1)

    found = df.select(described("id", df.id.cast("string")).word).collect()

    assert [row[0] for row in found] == ["0", "1", "2", None, "4", "5"]


def test_row_09_a_udf_of_the_wrong_length_is_named(spark, mesh):
    text = failure(spark.range(0, 4, numPartitions=1).select(mesh.udf("bigint")(tasks.short)("id")).collect)

    assert "MeshSchemaError" in text
    assert "expected 4 rows, got 1: a UDF returns one value for each row" in text


def test_row_01_rdds(spark, bridge):
    rdd = spark.sparkContext.parallelize(range(3000), 3)
    texts = spark.sparkContext.parallelize(["a b", "", "c"], 2)

    assert bridge.rdd(rdd).map(lambda n: n * n).collect() == [n * n for n in range(3000)]
    assert bridge.rdd(texts).flat_map(tasks.split).collect() == ["a", "b", "c"]
    assert bridge.rdd(rdd).map_partitions(tasks.count, chunksize=600).collect() == [600, 400] * 3


@pytest.mark.parametrize(
    "kind", ["cached", "shuffled", "joined", "frame", "classes", "text", "zipped", "pipelined"]
)
def test_row_01_rdds_wherever_spark_has_them_from(spark, bridge, tmp_path, kind):
    context = spark.sparkContext
    numbers = context.parallelize(range(6000), 3)
    point = make_dataclass("Point", ["x"])  # travels by value: no module has it
    (tmp_path / "lines").write_text("one\ntwo\n")
    rdd = {
        "cached": lambda: numbers.map(lambda n: (n, str(n))).cache(),
        "shuffled": lambda: numbers.map(lambda n: (n % 700, n)).reduceByKey(lambda a, b: a + b, 4),
        "joined": lambda: numbers.union(numbers).coalesce(1),
        "classes": lambda: numbers.map(point).cache(),
        "frame": lambda: spark.range(5000, numPartitions=2).selectExpr("id", "string(id) as name").rdd,
        "text": lambda: context.textFile(str(tmp_path / "lines")),
        "zipped": lambda: numbers.zip(numbers),
        "pipelined": lambda: numbers.filter(lambda n: n % 3 == 0),
    }[kind]()

    assert bridge.rdd(rdd).map(repr).collect() == rdd.map(repr).collect()


def test_row_04_items_that_take_long_travel_one_by_one(spark, mesh):
    bridge = mesh.counting(spark)

    def slow(number):
        threading.Event().wait(0.1)
        return -number

    assert bridge.rdd(spark.sparkContext.parallelize(range(12), 1)).map(slow).collect() == [
        -n for n in range(12)
    ]
    assert bridge.rdd(spark.sparkContext.parallelize(list(range(8)), 1)).map(slow).count() == 8
    assert bridge.counts.value.pieces == 20


def test_row_01_a_partitioner_is_kept_where_keys_are(spark, mesh):
    pairs = spark.sparkContext.parallelize([(n % 5, n) for n in range(100)], 2).partitionBy(3)

    kept = mesh.rdd(pairs.cache()).map(lambda pair: (pair[0], -pair[1]), keeps_partitioning=True)

    assert kept.partitioner == pairs.partitioner
    assert mesh.rdd(pairs).map(lambda pair: pair).partitioner is None
    assert kept.glom().map(sorted).collect() == [
        sorted((key, -value) for key, value in part) for part in pairs.glom().collect()
    ]


def test_row_10_a_failing_item_of_a_batch_that_travels_as_it_is_tells_all(spark, mesh):
    def fussy(number):
        if number == 5_500:
            raise ValueError("not this one")
        return number

    rdd = spark.sparkContext.parallelize(list(range(6_000)), 1)  # six batches of Spark's

    text = failure(mesh.rdd(rdd).map(fussy).count)

    assert "fussy: ValueError: not this one" in text
    assert re.search(r"\((piece \d+|rows \d+ to \d+) of the partition, ", text)


@pytest.mark.parametrize("way", ["rdd", "map_arrow", "udf"])
def test_row_10_a_failure_is_one_of_its_application_also_outside_of_sql(spark, bridge, way):
    def fails(_):
        raise ValueError("not today")

    df = spark.range(0, 2, numPartitions=1)
    rdd = {
        "rdd": lambda: bridge.rdd(spark.sparkContext.parallelize([1], 1)).map(fails),
        "map_arrow": lambda: bridge.map_arrow(df, fails, "id long").rdd,
        "udf": lambda: df.select(bridge.udf("long")(fails)("id")).rdd,
    }[way]()

    assert f"app {spark.sparkContext.applicationId}, stage" in failure(rdd.count)


def test_row_01_foreach_runs_for_every_item(spark, mesh, tmp_path):
    folder = str(tmp_path)

    def leave(number):
        import pathlib

        pathlib.Path(folder, str(number)).touch()

    mesh.rdd(spark.sparkContext.parallelize(range(20), 2)).foreach(leave, chunksize=3)

    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(20))


def test_row_12_a_result_that_cannot_be_pickled_harms_nobody(spark, mesh):
    rdd = spark.sparkContext.parallelize(range(4), 1)

    text = failure(mesh.rdd(rdd).map(tasks.unpicklable).collect)

    assert "MeshTaskError" in text
    assert "cannot pickle 'generator' object" in text
    assert "Pass a list made of it" in text
    assert mesh.rdd(rdd).map(str).collect() == ["0", "1", "2", "3"]


def test_row_12_a_result_that_is_too_large_harms_nobody(spark, mesh):
    def large(batch):
        return pa.RecordBatch.from_pydict({"raw": pa.array([bytes(150 << 20)] * 2, pa.binary())})

    df = spark.range(0, 1, numPartitions=1)

    text = failure(mesh.map_arrow(df, large, "raw binary").collect)

    assert "TooLarge" in text
    assert "max_payload" in text
    assert values(mesh.map_arrow(df, tasks.same, "id long")) == [(0,)]


def test_a_udf_in_the_closure_of_nothing_is_still_a_value(spark, mesh):
    made = mesh.udf("int")(tasks.lengths)
    assert values(spark.sql("select 'four' as word").select(made("word"))) == [(4,)]

    assert pickle.loads(pickle.dumps(made)).__name__ == "lengths"
