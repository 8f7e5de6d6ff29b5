"""A Spark job with one step on the mesh: it squares a million numbers and prints their sum."""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from taskmesh.spark import MeshSpark


def square(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Square the column id."""
    return pa.RecordBatch.from_arrays([pc.multiply(batch["id"], batch["id"])], names=["square"])


def main() -> None:
    """Run the job."""
    with SparkSession.builder.appName("squares").getOrCreate() as spark:
        mesh = MeshSpark.from_conf(spark)
        squares = mesh.map_arrow(spark.range(1_000_000), square, "square long")
        print(squares.agg({"square": "sum"}).first()[0])


if __name__ == "__main__":
    main()
