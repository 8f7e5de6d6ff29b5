"""The cost of a Spark step on a mesh: rows of docs/explanation/spark.md about time, beside plain Spark.

`python -m benchmarks.spark`. The same step runs on the mesh, inside Spark's own Python workers through the
bridge (`mesh.local()`), and as a plain `mapInArrow` or RDD `map`, in turns; a ratio compares neighbours. Two
pools of one slot, Spark with two slots, all on this machine. Nothing is asserted about time.

Processor time is that of all programs together: on a busy machine it says more than seconds, for a mesh has
more processes than Spark alone, and so gets more of a processor that others want as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import machine

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("mesh", "local", "plain")
HEAVY_STEPS = 200

Run = Callable[[], Any]
Row = dict[str, Run]


@dataclasses.dataclass(frozen=True)
class Goal:
    """The ratio that a row should reach, and the way that it is compared with."""

    text: str
    of: str = "plain"


GOALS = {
    "2 a million rows, cheap": Goal(">= 0.8"),
    "3 a million tuples, cheap": Goal(">= 0.45"),
    "3 the same, 2,000 a chunk": Goal(">= 0.45"),
    "4 heavy, one partition": Goal(">= 1.5"),
    "4 heavy, four partitions": Goal(">= 0.9"),
    "5 heavy, skewed": Goal(""),
    "6 60 ms a call": Goal(">= 0.77"),
    "6 0.1 s a call": Goal(">= 0.77"),
    "text, 80 MB in": Goal(">= 0.67"),
    "text, 80 MB in and out": Goal(">= 0.67"),
    "pandas UDF, a million": Goal(">= 0.77"),
    "scalar UDF, a million": Goal(">= 0.83"),
    "RDD, 300,000 tuples": Goal(">= 0.71"),
}
SLOTS = 2


# --- the steps --------------------------------------------------------------------------------------------


def cheap(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pc.add(batch["id"], 1), batch["half"], batch["name"]], names=["id", "half", "name"]
    )


def cheap_tuple(row: tuple[int, float, str]) -> tuple[int, float, str]:
    return row[0] + 1, row[1], row[2]


def heavy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """About 17 us a row of Python."""
    return pa.RecordBatch.from_arrays([pa.array([churn(n) for n in batch["id"].to_pylist()])], names=["id"])


def costs_60_ms(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A call with a fixed cost, whatever its rows: a model's server, a database's commit."""
    time.sleep(0.06)
    return batch


def costs_100_ms(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.1)
    return batch


def heavy_where(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As `heavy`, and gives the pool that computed it."""
    done = [churn(n) for n in batch["id"].to_pylist()]
    return pa.RecordBatch.from_arrays([pa.array([os.getppid()] * len(done), pa.int64())], names=["pool"])


def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.binary_length(batch["text"])], names=["length"])


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def plus_one(value: Any) -> Any:
    return value + 1


def churn(number: int) -> int:
    for step in range(HEAVY_STEPS):
        number = (number * 31 + step) & 0xFFFF
    return number


def plain(step: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The step as `mapInArrow` wants it."""

    def mapped(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield step(batch)

    return mapped


# --- programs and session ---------------------------------------------------------------------------------


@contextmanager
def pools(count: int) -> Iterator[str]:
    """A hub and pools of one slot; gives the address."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    programs: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "taskmesh", *arguments, "--json"]
        programs.append(
            subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        )
        ready = programs[-1].stdout
        assert ready
        return dict(json.loads(ready.readline()))

    try:
        address = str(start("hub", "--bind", "tcp://127.0.0.1:0")["gateway"])
        for _ in range(count):
            start("worker", "--address", address, "--concurrency", "1")
        yield address
    finally:
        for program in reversed(programs):
            program.terminate()
            program.wait(30)
            if program.stdout:
                program.stdout.close()


def session() -> Any:
    """Spark with two slots on this machine."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName("benchmark")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def into_nothing(df: Any) -> None:
    df.write.format("noop").mode("overwrite").save()


# --- the rows ---------------------------------------------------------------------------------------------


def rows_of(spark: Any, mesh: Any, scale: float) -> dict[str, Row]:
    """Every row in its three ways; the input is cached."""
    million, hundred = int(1_000_000 * scale), int(100_000 * scale)
    wide = spark.range(0, million, numPartitions=4).selectExpr(
        "id", "id * 0.5d as half", "concat('n', id) as name"
    )
    inputs = {
        "2 a million rows, cheap": wide.cache(),
        "4 heavy, one partition": spark.range(0, hundred, numPartitions=1).cache(),
        "4 heavy, four partitions": spark.range(0, hundred, numPartitions=4).cache(),
        "5 heavy, skewed": skewed(spark, hundred).cache(),
        "6 60 ms a call": spark.range(0, hundred, numPartitions=2).cache(),
    }
    inputs["6 0.1 s a call"] = inputs["6 60 ms a call"]
    steps = {"2 a million rows, cheap": cheap, "6 60 ms a call": costs_60_ms, "6 0.1 s a call": costs_100_ms}
    found = {name: three_ways(mesh, df, steps.get(name, heavy)) for name, df in inputs.items()}
    for df in inputs.values():
        df.count()
    tuples = spark.sparkContext.parallelize(range(million), 4).map(lambda n: (n, n * 0.5, f"n{n}")).cache()
    tuples.count()
    found["3 a million tuples, cheap"] = of_tuples(mesh, tuples, "auto")
    found["3 the same, 2,000 a chunk"] = of_tuples(mesh, tuples, 2000)
    return {**dict(sorted(found.items())), **forms(spark, mesh, scale)}


def forms(spark: Any, mesh: Any, scale: float) -> dict[str, Row]:
    """Rows for forms of input and output; the functions do next to nothing."""
    from pyspark.sql.functions import pandas_udf, udf

    million = spark.range(0, int(1_000_000 * scale), numPartitions=4).cache()
    text = spark.range(0, int(80_000 * scale), numPartitions=4).selectExpr(
        "rpad(cast(id as string), 1000, 'taskmesh') as text"
    )
    text = text.cache()
    tuples = spark.sparkContext.parallelize(range(int(300_000 * scale)), 4)
    tuples = tuples.map(lambda n: (n, n * 0.5, f"n{n}")).cache()
    for kept in (million, text, tuples):
        kept.count()

    def of_udf(takes: str, plain_udf: Any) -> Row:
        udfs = {
            "mesh": mesh.udf("long", input=takes)(plus_one),
            "local": mesh.local().udf("long", input=takes)(plus_one),
            "plain": plain_udf(plus_one, "long"),
        }
        return {
            way: lambda found=found: into_nothing(million.select(found("id"))) for way, found in udfs.items()
        }

    return {
        "text, 80 MB in": three_ways(mesh, text, lengths, "length int"),
        "text, 80 MB in and out": three_ways(mesh, text, same),
        "pandas UDF, a million": of_udf("pandas", _typed(pandas_udf)),
        "scalar UDF, a million": of_udf("scalar", udf),
        "RDD, 300,000 tuples": of_tuples(mesh, tuples, "auto"),
    }


def _typed(pandas_udf: Any) -> Callable[[Any, str], Any]:
    """`pandas_udf` for a function without annotations."""
    import pandas as pd

    def made(function: Callable[[Any], Any], returns: str) -> Any:
        def series(values: pd.Series) -> pd.Series:
            return function(values)

        series.__annotations__ = {"values": pd.Series, "return": pd.Series}
        return pandas_udf(series, returns)

    return made


def of_tuples(mesh: Any, tuples: Any, chunksize: int | str) -> Row:
    return {
        "mesh": lambda: mesh.rdd(tuples).map(cheap_tuple, chunksize=chunksize).count(),
        "local": lambda: mesh.local().rdd(tuples).map(cheap_tuple, chunksize=chunksize).count(),
        "plain": lambda: tuples.map(cheap_tuple).count(),
    }


def three_ways(
    mesh: Any, df: Any, step: Callable[[pa.RecordBatch], pa.RecordBatch], schema: Any = None
) -> Row:
    schema = schema or df.schema
    return {
        "mesh": lambda: into_nothing(mesh.map_arrow(df, step, schema)),
        "local": lambda: into_nothing(mesh.local().map_arrow(df, step, schema)),
        "plain": lambda: into_nothing(df.mapInArrow(plain(step), schema)),
    }


def skewed(spark: Any, count: int) -> Any:
    """One partition with nine tenths of the rows, seven small ones."""
    small = count // 70
    sizes = [count - 7 * small, *[small] * 7]
    rdd = spark.sparkContext.parallelize(range(8), 8).flatMap(lambda n: ((m,) for m in range(sizes[n])))
    return spark.createDataFrame(rdd, "id long")


def measure(rows: dict[str, Row], repeats: int) -> list[dict[str, Any]]:
    """Takes the turns; prints a line for each row."""
    print(
        f"{'row':28}{'mesh s':>9}{'local s':>9}{'plain s':>9}{'to local':>10}{'to plain':>10}{'cpu':>6}  goal"
    )
    return [measured(name, ways, repeats) for name, ways in rows.items()]


def measured(name: str, ways: Row, repeats: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    processor: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(-1, repeats):  # the first only warms up
        for way in WAYS:
            before = processor_time()
            began = time.perf_counter()
            ways[way]()
            if turn >= 0:
                times[way].append(time.perf_counter() - began)
                processor[way].append(processor_time() - before)
    cpu = statistics.median(processor["mesh"]) / statistics.median(processor["plain"])
    medians = {way: statistics.median(found) for way, found in times.items()}
    ratios = {
        other: statistics.median(its / mine for mine, its in zip(times["mesh"], times[other], strict=True))
        for other in ("local", "plain")
    }
    line = f"{name:28}" + "".join(f"{medians[way]:9.2f}" for way in WAYS)
    print(f"{line}{ratios['local']:10.2f}{ratios['plain']:10.2f}{cpu:6.2f}  {GOALS[name].text}", flush=True)
    return {
        "row": name,
        "seconds": medians,
        "ratio_to_local": ratios["local"],
        "ratio_to_plain": ratios["plain"],
        "processor_mesh_to_plain": cpu,
        "goal": GOALS[name].text,
        "all": times,
    }


def processor_time() -> float:
    """Seconds of processor time of this program and all that it has started."""
    total = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):
            its = process.cpu_times()
            total += its.user + its.system
    return total


def shares(spark: Any, mesh: Any, count: int) -> dict[str, Any]:
    """Row 5: how the pools share a skewed input's work."""
    found = mesh.map_arrow(skewed(spark, count), heavy_where, "pool long").groupBy("pool").count().collect()
    by_pool = Counter({row.pool: row["count"] for row in found})
    largest = max(by_pool.values()) / sum(by_pool.values())
    print(f"5 share of the busier pool: {largest:.2f}  goal <= 0.60", flush=True)
    return {"row": "5 share of the busier pool", "share": largest, "goal": "<= 0.60"}


def added_ms(spark: Any, mesh: Any, jobs: int, partitions: int) -> list[tuple[float, float]]:
    """The milliseconds, and those of processors, that the mesh adds to a tiny partition of a plain job."""
    df = spark.range(0, partitions, numPartitions=partitions)
    schema = df.schema
    added = []
    for number in range(-3, jobs):
        times, processor = [], []
        for job in (mesh.map_arrow(df, heavy, schema), df.mapInArrow(plain(heavy), schema)):
            before, began = processor_time(), time.perf_counter()
            into_nothing(job)
            times.append(time.perf_counter() - began)
            processor.append(processor_time() - before)
        if number >= 0:
            added.append(tuple((mine - its) / partitions * 1e3 for mine, its in (times, processor)))
    return added


def small_jobs(spark: Any, mesh: Any, jobs: int) -> dict[str, Any]:
    """Row 33: many jobs of twenty tiny partitions."""
    added = [ms for ms, _ in added_ms(spark, mesh, jobs, 20)]
    p50, p95 = statistics.median(added), statistics.quantiles(added, n=20)[-1]
    print(f"33 added to a tiny partition: p50 {p50:.1f} ms, p95 {p95:.1f} ms  goal p95 < 10 ms", flush=True)
    return {"row": "33 added to a tiny partition", "p50_ms": p50, "p95_ms": p95, "goal": "p95 < 10 ms"}


def tiny_partitions(spark: Any, mesh: Any, jobs: int) -> dict[str, Any]:
    """A hundred tiny partitions: what each of them holds its Spark slot for, beside a plain one."""
    added, processor = zip(*added_ms(spark, mesh, jobs, 100), strict=True)
    p50, cpu = statistics.median(added) * SLOTS, statistics.median(processor)
    name = "slot time added to each of 100 tiny partitions"
    print(f"{name}: {p50:.1f} ms, processor {cpu:.1f} ms  goal <= 3 ms", flush=True)
    return {"row": name, "p50_ms": p50, "processor_ms": cpu, "goal": "<= 3 ms"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=200, help="for row 33")
    parser.add_argument("--scale", type=float, default=1.0, help="of the inputs")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose names contain one of these")
    parser.add_argument(
        "--out", type=Path, help="a JSON file for the figures; with --only, others in it stay"
    )
    options = parser.parse_args()
    from taskmesh.spark import MeshSpark

    def chosen(name: str) -> bool:
        return any(part in name for part in options.only)

    spark = session()
    try:
        with pools(2) as address:
            mesh = MeshSpark(address)
            rows = rows_of(spark, mesh, options.scale)
            results = measure({k: v for k, v in rows.items() if chosen(k)}, options.repeats)
            if chosen("5 share"):
                results.append(shares(spark, mesh, int(100_000 * options.scale)))
            if chosen("33 small"):
                results.append(small_jobs(spark, mesh, options.jobs))
            if chosen("100 tiny"):
                results.append(tiny_partitions(spark, mesh, max(3, options.jobs // 5)))
    finally:
        spark.stop()
    if options.out:
        facts = {
            "taken": machine.now(),
            "workers": 2,
            "repeats": options.repeats,
            "machine": machine.describe(),
            "rows": results,
        }
        if any(options.only) and options.out.exists():
            facts = with_rows(json.loads(options.out.read_text()), facts)
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


def with_rows(earlier: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The earlier figures with these rows, which say when they were taken and how busy the machine was."""
    load = f"{os.getloadavg()[1]:.0f}"
    rows = {row["row"]: row for row in earlier["rows"]}
    for row in facts["rows"]:
        rows[row["row"]] = {**row, "taken": facts["taken"], "load": load}
    return {**earlier, "rows": list(rows.values())}


if __name__ == "__main__":
    main()
