"""Spark's own functions in all their forms: each job runs in Spark, and with the functions on pools.

Each builder gets what is done to a function before Spark is given it: nothing, or `MeshSpark.offload`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row, Window
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import IntegerType, StructType

Through = Callable[[Any], Any]
FORMS: dict[str, Callable[[Any, Through], Any]] = {}
ROWS = 60


def form(build: Callable[[Any, Through], Any]) -> Callable[[Any, Through], Any]:
    """Enter a job into the table."""
    FORMS[build.__name__] = build
    return build


def rows(spark: Any) -> Any:
    """A DataFrame with values that Spark's own functions see in a special way."""
    return spark.range(0, ROWS, numPartitions=3).selectExpr(
        "id",
        "id % 5 as k",
        "if(id % 7 = 0, null, concat('w', id)) as word",
        "timestamp'2024-03-10 01:30:00' + make_interval(0, 0, 0, 0, cast(id as int)) as at",
        "struct(id as a, cast(id as string) as b) as st",
        "map('x', id, 'y', id + 1) as mp",
        "array(id, null, id * 2) as arr",
        "cast(id as decimal(12, 2)) / 4 as price",
    )


# --- one row at a time


def _seen(word, at, st, mp):
    return f"{word} {at.isoformat()} {at.tzinfo} {type(st).__name__} {st.a} {type(mp).__name__} {mp['x']}"


@form
def udf_sees_rows_dicts_and_naive_times(spark: Any, through: Through) -> Any:
    seen = through(F.udf(_seen, "string"))
    return rows(spark).select(seen("word", "at", "st", "mp").alias("seen"))


@form
def udf_without_arrow(spark: Any, through: Through) -> Any:
    seen = through(F.udf(_seen, "string", useArrow=False))
    return rows(spark).select(seen("word", "at", "st", "mp").alias("seen"))


def _made(number):
    at = datetime.datetime.fromisoformat(f"2024-01-01T{number % 24:02}:00")
    return Row(n=number, at=at, m={"a": [number]})


@form
def udf_gives_rows_dicts_and_naive_times(spark: Any, through: Through) -> Any:
    made = through(F.udf(_made, "struct<n: int, at: timestamp, m: map<string, array<int>>>"))
    return rows(spark).select(made("id").alias("made"))


@form
def udf_of_another_type_is_null_or_cast_as_spark_does(spark: Any, through: Through) -> Any:
    cast = through(F.udf(lambda number: number + 0.0, IntegerType(), useArrow=False))
    return rows(spark).select(cast("id").alias("number"))


@form
def udf_with_named_and_default_arguments(spark: Any, through: Through) -> Any:
    joined = through(F.udf(lambda a, b="-", c="?": f"{a}{b}{c}", "string"))
    return rows(spark).select(joined(F.col("id"), c=F.col("k")).alias("joined"))


@form
def udf_without_arguments(spark: Any, through: Through) -> Any:
    return rows(spark).select("id", through(F.udf(lambda: 7, "int"))().alias("seven"))


@form
def udf_of_a_udf(spark: Any, through: Through) -> Any:
    more = through(F.udf(lambda number: number + 1, "long"))
    return rows(spark).select(more(more(more("id"))).alias("more"), more("k").alias("other"))


@form
def udf_in_sql(spark: Any, through: Through) -> Any:
    spark.udf.register("offloaded_twice", through(F.udf(lambda number: 2 * number, "long")))
    rows(spark).createOrReplaceTempView("offloaded_rows")
    return spark.sql("select offloaded_twice(id) as twice from offloaded_rows where offloaded_twice(k) > 2")


# --- pandas UDFs


@form
def pandas_udf_of_series(spark: Any, through: Through) -> Any:
    @F.pandas_udf("string")
    def joined(word: pd.Series, at: pd.Series, number: pd.Series) -> pd.Series:
        return word.str.upper() + "/" + at.astype(str) + "/" + number.astype(str)

    return rows(spark).select(through(joined)("word", "at", number="id").alias("joined"))


@form
def pandas_udf_of_a_struct_is_a_frame(spark: Any, through: Through) -> Any:
    @F.pandas_udf("a long, c string")
    def turned(st: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"a": st["a"] * 2, "c": st["b"] + "!"})

    return rows(spark).select(through(turned)("st").alias("turned"))


@form
def pandas_udf_of_maps_and_arrays(spark: Any, through: Through) -> Any:
    @F.pandas_udf("long")
    def summed(mp: pd.Series, arr: pd.Series) -> pd.Series:
        return mp.map(lambda one: one["x"]) + arr.map(lambda one: int(one[-1]))

    return rows(spark).select(through(summed)("mp", "arr").alias("summed"))


@form
def pandas_udf_of_iterators(spark: Any, through: Through) -> Any:
    @F.pandas_udf("long")
    def counted(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        before = 0  # state between batches
        for number, k in batches:
            yield number * 10 + k + before - before
            before += len(number)

    return rows(spark).select(through(counted)("id", "k").alias("counted"))


@form
def pandas_udf_aggregates(spark: Any, through: Through) -> Any:
    @F.pandas_udf("double")
    def mean(values: pd.Series) -> float:
        return float(values.mean())

    agg = through(mean)
    return (
        rows(spark)
        .groupBy("k")
        .agg(agg("id").alias("mean"), agg(F.col("id") * 2).alias("twice"))
        .orderBy("k")
    )


@form
def pandas_udf_aggregates_iterators(spark: Any, through: Through) -> Any:
    @F.pandas_udf("long")
    def total(batches: Iterator[pd.Series]) -> int:
        return int(sum(each.sum() for each in batches))

    return rows(spark).groupBy("k").agg(through(total)("id").alias("total")).orderBy("k")


@form
def pandas_udf_over_windows(spark: Any, through: Through) -> Any:
    @F.pandas_udf("double")
    def mean(values: pd.Series) -> float:
        return float(values.mean())

    mean = through(mean)
    bounded = Window.partitionBy("k").orderBy("id").rowsBetween(-1, 1)
    return (
        rows(spark)
        .select(
            "id",
            mean("id").over(bounded).alias("near"),
            mean("id").over(Window.partitionBy("k")).alias("all"),
        )
        .orderBy("id")
    )


# --- Arrow UDFs


@form
def arrow_udf_of_arrays(spark: Any, through: Through) -> Any:
    @F.arrow_udf("long")
    def added(one: pa.Array, other: pa.Array) -> pa.Array:
        return pc.add(one, other)

    return rows(spark).select(through(added)("id", other="k").alias("added"))


@form
def arrow_udf_of_iterators(spark: Any, through: Through) -> Any:
    @F.arrow_udf("long")
    def added(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        for one, other in batches:
            yield pc.add(one, other)

    return rows(spark).select(through(added)("id", "k").alias("added"))


@form
def arrow_udf_aggregates(spark: Any, through: Through) -> Any:
    @F.arrow_udf("long")
    def total(values: pa.Array) -> pa.Scalar:
        return pc.sum(values)

    return rows(spark).groupBy("k").agg(through(total)("id").alias("total")).orderBy("k")


@form
def arrow_udf_over_windows(spark: Any, through: Through) -> Any:
    @F.arrow_udf("long")
    def total(values: pa.Array) -> pa.Scalar:
        return pc.sum(values)

    window = Window.partitionBy("k").orderBy("id").rowsBetween(-1, 1)
    return rows(spark).select("id", through(total)("id").over(window).alias("near")).orderBy("id")


# --- partitions


@form
def map_in_pandas(spark: Any, through: Through) -> Any:
    def numbered(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        before = 0
        for frame in frames:
            yield frame[["id", "word"]].assign(n=range(before, before + len(frame)))
            before += len(frame)
        yield pd.DataFrame({"id": [-1], "word": ["end"], "n": [before]})

    return rows(spark).mapInPandas(through(numbered), "id long, word string, n long")


@form
def map_in_arrow(spark: Any, through: Through) -> Any:
    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in batches:
            before += batch.num_rows
            yield pa.record_batch({"n": batch["id"]})
        yield pa.record_batch({"n": [-before]})

    return rows(spark).mapInArrow(through(counted), "n long")


@form
def map_in_arrow_of_no_rows(spark: Any, through: Through) -> Any:
    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [sum(batch.num_rows for batch in batches)]})

    return rows(spark).where("id < 0").mapInArrow(through(counted), "n long")


# --- groups


@form
def apply_in_pandas_with_keys(spark: Any, through: Through) -> Any:
    def summed(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": [key[0]], "n": [len(frame)], "first": [frame["at"].min()]})

    return (
        rows(spark)
        .groupBy("k")
        .applyInPandas(through(summed), "k long, n long, first timestamp")
        .orderBy("k")
    )


@form
def apply_in_pandas_of_iterators(spark: Any, through: Through) -> Any:
    def counted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[["k", "id"]]

    return rows(spark).groupBy("k").applyInPandas(through(counted), "k long, id long").orderBy("id")


@form
def apply_in_arrow_with_keys(spark: Any, through: Through) -> Any:
    def summed(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        return pa.table({"k": pa.array([key[0].as_py()]), "n": pa.array([table.num_rows], pa.int64())})

    return rows(spark).groupBy("k").applyInArrow(through(summed), "k long, n long").orderBy("k")


@form
def apply_in_arrow_of_iterators(spark: Any, through: Through) -> Any:
    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["k", "id"])

    return rows(spark).groupBy("k").applyInArrow(through(counted), "k long, id long").orderBy("id")


def _cogroups(spark: Any) -> Any:
    left = rows(spark).where("k < 4").select("k", "id").groupBy("k")
    return left.cogroup(rows(spark).where("k > 0").select("k", "word").groupBy("k"))


@form
def cogroup_in_pandas(spark: Any, through: Through) -> Any:
    def counted(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": [key[0]], "left": [len(left)], "right": [right["word"].count()]})

    return _cogroups(spark).applyInPandas(through(counted), "k long, left long, right long").orderBy("k")


@form
def cogroup_in_arrow(spark: Any, through: Through) -> Any:
    def counted(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.table({"n": pa.array([left.num_rows * 100 + right.num_rows], pa.int64())})

    return _cogroups(spark).applyInArrow(through(counted), "n long").orderBy("n")


# --- table functions


class Repeated:
    """Each word as often as its number says, and how many rows there were."""

    def __init__(self) -> None:
        self._count = 0

    def eval(self, word: str, times: int) -> Iterator[tuple[str, int]]:
        self._count += 1
        for number in range(times):
            yield word, number

    def terminate(self) -> Iterator[tuple[str, int]]:
        yield "rows", self._count


class Grouped:
    """The number of rows of each group of a table."""

    def __init__(self) -> None:
        self._key: Any = None
        self._count = 0

    def eval(self, row: Row) -> None:
        self._key = row["k"]
        self._count += 1

    def terminate(self) -> Iterator[tuple[int, int]]:
        yield self._key, self._count


class Analyzed:
    """Columns that are known when the call is."""

    @staticmethod
    def analyze(count: Any) -> Any:
        from pyspark.sql.udtf import AnalyzeResult

        schema = StructType()
        for number in range(count.value):
            schema = schema.add(f"c{number}", IntegerType())
        return AnalyzeResult(schema=schema)

    def eval(self, count: int) -> Iterator[tuple[int, ...]]:
        yield tuple(range(count))


@form
def udtf_of_values(spark: Any, through: Through) -> Any:
    return through(F.udtf(Repeated, returnType="word string, number int"))(F.lit("a"), times=F.lit(3))


@form
def udtf_without_arrow(spark: Any, through: Through) -> Any:
    repeated = F.udtf(Repeated, returnType="word string, number int", useArrow=False)
    return through(repeated)(F.lit("a"), F.lit(3))


@form
def udtf_beside_a_table(spark: Any, through: Through) -> Any:
    spark.udtf.register("offloaded_repeated", through(F.udtf(Repeated, returnType="word string, number int")))
    rows(spark).createOrReplaceTempView("offloaded_rows")
    return spark.sql(
        "select id, r.* from offloaded_rows o, lateral offloaded_repeated(o.word, int(k)) r"
    ).orderBy("id", "number", "word")


@form
def udtf_of_a_table_in_groups(spark: Any, through: Through) -> Any:
    grouped = through(F.udtf(Grouped, returnType="k long, n long"))
    return grouped(rows(spark).select("k", "id").asTable().partitionBy("k")).orderBy("k")


@form
def udtf_that_analyzes_its_call(spark: Any, through: Through) -> Any:
    return through(F.udtf(Analyzed))(F.lit(3))


class Doubled:
    """Arrow batches in and out."""

    def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        yield pa.table({"twice": pc.multiply(batch.column("id"), 2)})


@form
def arrow_udtf_of_a_table(spark: Any, through: Through) -> Any:
    doubled = through(F.arrow_udtf(Doubled, returnType="twice long"))
    return doubled(rows(spark).select("id").asTable()).orderBy("twice")
