"""Run the pipeline with two pools, then wholly inside Spark, and compare: content, times, rows per second.

    python examples/spark_pipeline/demo.py [--kill-every 5] [--keep FOLDER]

A hub and two pools are started on this machine. With --kill-every a pool is killed (SIGKILL) and
replaced every so many seconds while the job runs; the content has to be the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import pipeline  # noqa: E402  the folder is put on the path first

from taskmesh import Mesh  # noqa: E402
from taskmesh.spark import MeshSpark  # noqa: E402

TABLES = {"flown": ["flight"], "report": ["carrier", "month"], "signed": ["path"], "twins": ["path", "other"]}


@dataclass
class Cluster:
    """A hub and two pools as processes."""

    folder: Path
    killed: int = 0
    pools: list[Any] = field(default_factory=list)

    def __enter__(self) -> "Cluster":
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        }
        self.hub = self.start("hub", "--bind", "tcp://127.0.0.1:0")
        assert self.hub.stdout
        self.address = json.loads(self.hub.stdout.readline())["gateway"]
        self.pools = [self.pool(), self.pool()]
        for pool in self.pools:
            pool.stdout.readline()  # it is ready
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.pools, self.hub]:
            process.terminate()
        for process in [*self.pools, self.hub]:
            process.wait(30)
            process.stdout.close()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of taskmesh's."""
        command = [sys.executable, "-m", "taskmesh", *arguments, "--json"]
        with (self.folder / "programs.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=log
            )

    def pool(self) -> subprocess.Popen[bytes]:
        """Start a pool of one slot."""
        return self.start("worker", "--address", self.address, "--concurrency", "1")

    def kill_one(self) -> None:
        """Kill the older pool, and wait for another in its place."""
        victim = self.pools.pop(0)
        victim.kill()
        victim.wait()
        victim.stdout.close()
        self.killed += 1
        self.pools.append(self.pool())
        self.pools[-1].stdout.readline()

    def finished(self) -> int:
        """Return the number of tasks that have ended."""
        with Mesh(self.address) as mesh:
            return int(mesh.status()["finished"])


def main() -> int:
    """Run everything; the exit code says whether both ways gave the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where Parquet files and plot go")
    parser.add_argument("--flights", type=int, default=336_776, help="only the first ones of the year")
    parser.add_argument("--files", type=int, default=10_000, help="at most so many source files")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="taskmesh-spark-"))
    spark = session()
    try:
        pipeline.unpacked(folder / "csv", options.flights)
        with Cluster(folder) as cluster:
            print(f"hub at {cluster.address}, two pools of one slot; Spark with two slots")
            mesh = MeshSpark(cluster.address)
            warm(spark, mesh)
            seconds = timed("on the mesh", spark, mesh, folder, cluster, options)
            again = pq.read_table(folder / "mesh" / "flown", columns=["attempt"]).to_pydict()["attempt"]
            print(
                f"    {cluster.finished():,} pieces; {cluster.killed} pools killed, "
                f"{sum(attempt > 1 for attempt in again):,} flights flown by another attempt"
            )
        inside = timed("in Spark", spark, mesh.local(), folder, None, options)
        print(f"the mesh took {seconds / inside:.2f} times as long")
        same = all(compared(folder, name, keys) for name, keys in TABLES.items())
        keep(folder, options.keep)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if same else 1


def session() -> SparkSession:
    """Open Spark with two slots."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.master("local[2]").appName("flights").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def warm(spark: SparkSession, mesh: MeshSpark) -> None:
    """Let Spark's workers and the pools import their modules, so that neither run pays for the other."""
    frame = spark.createDataFrame([("a b c",)] * 8, "text string").repartition(2)
    for bridge in (mesh, mesh.local()):
        frame.select(bridge.udf("array<bigint>")(pipeline.tasks.signature)("text")).collect()


def timed(
    name: str, spark: SparkSession, mesh: MeshSpark, folder: Path, cluster: Cluster | None, options: Any
) -> float:
    """Run the pipeline and tell how long it took."""
    over = threading.Event()
    killer = threading.Thread(target=kill_on, args=(cluster, options.kill_every, over))
    if cluster is not None and options.kill_every:
        killer.start()
    began = time.perf_counter()
    try:
        rows = pipeline.run(spark, mesh, folder / "csv", folder / mesh.engine, options.files)
    finally:
        over.set()
        if killer.is_alive():
            killer.join()
    seconds = time.perf_counter() - began
    print(
        f"{name}: {rows['flights']:,} flights and {rows['files']:,} files in {seconds:.1f} s, "
        f"{sum(rows.values()) / seconds:,.0f} rows/s"
    )
    return seconds


def kill_on(cluster: Cluster, every: float, over: threading.Event) -> None:
    """Kill a pool every so many seconds, until it is over."""
    while not over.wait(every):
        cluster.kill_one()


def compared(folder: Path, name: str, keys: list[str]) -> bool:
    """Return True if both ways wrote the same rows."""
    order = [(key, "ascending") for key in keys]
    tables = (pq.read_table(folder / way / name).sort_by(order) for way in ("mesh", "local"))
    there, here = (table.drop_columns(["attempt"] if name == "flown" else []) for table in tables)
    same = there.equals(here)
    print(f"    {name}: {there.num_rows:,} rows, {'equal' if same else 'NOT EQUAL'}")
    return bool(same)


def keep(folder: Path, where: Path | None) -> None:
    """Draw the plot, and keep it with the tables if that is asked for."""
    import plot

    for line in plot.draw(folder / "mesh", folder / "flights.png"):
        print(line)
    if where is not None:
        shutil.copytree(folder / "mesh", where, dirs_exist_ok=True)
        shutil.copy(folder / "flights.png", where)
        print(f"kept in {where}")


if __name__ == "__main__":
    sys.exit(main())
