"""The jobs that tests have other drivers run. Functions of this module that pools call travel by value."""

import importlib
import operator
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions

from taskmesh.serialize.code import register_by_value
from taskmesh.spark import MeshSpark
from tests.spark import forms, tasks
from tests.spark.jobs import note, noting

register_by_value(sys.modules[__name__])
WAIT_S = 60.0


def same(spark: Any, address: str) -> dict[str, Any]:
    """One job in all its forms, on the mesh and inside Spark."""
    found = {}
    for engine in ("mesh", "local"):
        bridge = MeshSpark(address, engine=engine)
        df = spark.range(0, 1000, numPartitions=4)
        doubled = bridge.map_arrow(df, tasks.double, "id long, twice long")
        framed = bridge.map_batches(df, tasks.frame, "id long, twice long", format="pandas")
        lengths = bridge.udf("int")(tasks.lengths)
        found[engine] = [
            [tuple(row) for row in doubled.collect()],
            [tuple(row) for row in framed.collect()],
            [tuple(row) for row in df.select(lengths(df.id.cast("string"))).collect()],
        ]
    return {"equal": found["mesh"] == found["local"], "rows": len(found["mesh"][0])}


def served(spark: Any, path: str, more: dict[str, Any]) -> list[int]:
    """Ids through a mesh in the driver, whose address goes into a file."""
    with MeshSpark.serve(spark, **more) as bridge:
        note(path, bridge.address[0])
        found = bridge.map_arrow(spark.range(0, 1000, numPartitions=8), tasks.same, "id long").collect()
    return [row.id for row in found]


def rdd(spark: Any, address: str) -> Any:
    """RDDs, where there are any."""
    bridge = MeshSpark(address)
    if not hasattr(spark, "_jsparkSession"):
        return bridge.rdd(spark.range(3)).map(str).collect()
    return bridge.rdd(spark.sparkContext.parallelize(range(100), 4)).map(str).collect()


def counted(spark: Any, address: str) -> Any:
    """Asks for accumulators."""
    return str(MeshSpark(address).counting(spark).counts)


def noted(
    spark: Any, address: str, path: str, seconds: float, rows: int, batch: int, more: dict[str, Any]
) -> list[int]:
    """Ids through a task that notes what it is called with."""
    bridge = MeshSpark(address, **more)
    df = spark.range(0, rows, numPartitions=4)
    found = bridge.map_arrow(df, noting(path, seconds), "id long", chunksize=batch).collect()
    return [row.id for row in found]


def straggling(spark: Any, address: str, path: str, seconds: float, more: dict[str, Any]) -> list[int]:
    """As `noted`; the first execution of the last piece takes very long."""

    def straggle(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch["id"][0].as_py()
        seen = note(path, first)
        if first == 30 and seen == 0:
            threading.Event().wait(seconds)
        return batch

    df = spark.range(0, 40, numPartitions=4)
    return [row.id for row in MeshSpark(address, **more).map_arrow(df, straggle, "id long").collect()]


def reduced(spark: Any, address: str, executions: str, begun: str, go: str) -> list[tuple[int, int]]:
    """A mesh step, a shuffle, and a step after it that waits for a file."""

    def tell(batches: Any) -> Any:
        here = TaskContext.get()
        note(
            executions, f"{here.stageId()} {here.partitionId()} {here.attemptNumber()} {here.taskAttemptId()}"
        )
        yield from batches

    def hold(batches: Any) -> Any:
        import os

        note(begun, os.getpid())
        tick, gone = threading.Event(), 0.0
        while not Path(go).exists() and gone < WAIT_S:
            tick.wait(0.05)
            gone += 0.05
        yield from batches

    df = spark.range(0, 400, numPartitions=4).mapInArrow(tell, "id long")
    mapped = MeshSpark(address).map_arrow(df, tasks.double, "id long, twice long")
    held = mapped.groupBy((mapped.id % 7).alias("rest")).sum("twice").mapInArrow(hold, "rest long, sum long")
    return sorted(tuple(row) for row in held.collect())


def into_sink(spark: Any, address: str, source: str, checkpoint: str, sink: str) -> int:
    """A stream into a mesh sink: as Connect runs it."""

    def keep(batch: pa.RecordBatch, delivery: Any) -> None:
        for number in batch["id"].to_pylist():
            note(sink, f"{delivery.query}/{delivery.batch}/{number}")

    stream = spark.readStream.schema("id long").parquet(source)
    query = (
        stream.writeStream.foreachBatch(MeshSpark(address).foreach_batch(keep, query="q"))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return len(Path(sink).read_text().splitlines())


def offloaded(spark: Any, address: str) -> dict[str, Any]:
    """Spark's own functions, in Spark and on the mesh."""
    bridge = MeshSpark(address)
    names = (
        "udf_sees_rows_dicts_and_naive_times",
        "pandas_udf_of_series",
        "pandas_udf_of_iterators",
        "pandas_udf_aggregates",
        "map_in_pandas",
        "apply_in_pandas_with_keys",
        "cogroup_in_arrow",
        "udtf_of_values",
    )
    jobs = {name: forms.FORMS[name] for name in names}
    plain = {name: build(spark, lambda function: function).collect() for name, build in jobs.items()}
    found = {name: build(spark, bridge.offload).collect() for name, build in jobs.items()}
    groups = bridge.group(spark.range(10), "id").apply_in_arrow(lambda table: table, "id long")
    return {"equal": found == plain, "jobs": len(found), "groups": len(groups.collect())}


def offloaded_udf(spark: Any, address: str) -> int:
    """A UDF of Spark's own on the mesh."""
    plus = MeshSpark(address).offload(functions.udf(lambda number: number + 1, "long"))
    return len(spark.range(3).select(plus("id")).collect())


def with_module(spark: Any, address: str, path: str) -> list[int]:
    """A UDF on the mesh that imports a module of the session's."""
    spark.addArtifacts(path, pyfile=True)

    def plus(number: int) -> int:
        module: Any = importlib.import_module(Path(path).stem)
        return int(module.plus(number))

    found = spark.range(3).select(MeshSpark(address).offload(functions.udf(plus, "long"))("id"))
    return [row[0] for row in found.collect()]


def grouped(spark: Any, address: str) -> int:
    """A grouped map on the mesh."""
    groups = MeshSpark(address).group(spark.range(3), "id")
    return len(groups.apply_in_arrow(lambda table: table, "id long").collect())


def crowded(spark: Any, address: str, slots: int) -> int:
    """Rows through three steps of one stage, all on the mesh, of which the last one has tasks of its own."""
    bridge = MeshSpark(address, window=1)
    rows = 5 * slots
    parsed = bridge.offload(functions.udf(lambda number: number + 1, "long"))
    first = spark.range(0, rows, numPartitions=slots).select(parsed("id").alias("id"))
    second = bridge.map_in_pandas(first, lambda frames: (frame + 1 for frame in frames), "id long")

    def with_children(batches: Any) -> Any:
        from taskmesh import task

        for batch in batches:
            children = [task(operator.add).submit(number, 1) for number in batch["id"].to_pylist()]
            yield pa.record_batch({"id": pa.array([child.result() for child in children], pa.int64())})

    third = bridge.map_in_arrow(second, with_children, "id long")
    return int(third.selectExpr("sum(id)").first()[0]) - sum(range(rows)) - 3 * rows
