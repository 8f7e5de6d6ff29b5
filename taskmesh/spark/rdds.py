"""RDDs on a mesh: classic Spark only. Items are pickled on the way; DataFrames' batches are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark import RDD

from taskmesh.errors import ConfigError
from taskmesh.spark.chunks import ChunkForm, ChunkStep
from taskmesh.spark.partitions import ChunkWay
from taskmesh.spark.settings import Settings
from taskmesh.spark.work import Work, function_bytes
from taskmesh.wire.batches import PICKLE

CHUNK = 2000


class MeshRDD:
    """An RDD whose functions run on the mesh.

    `chunk` is how many items travel together; fewer for functions that take long.

    Args:
        rdd: an RDD, or a classic DataFrame.

    Raises:
        ConfigError: it belongs to Spark Connect, which has no RDDs, or is no RDD; or errors= is not "raise".
    """

    def __init__(self, settings: Settings, rdd: Any) -> None:
        if type(rdd).__module__.startswith("pyspark.sql.connect"):
            raise ConfigError("Spark Connect has no RDDs: use map_arrow or map_batches on the DataFrame")
        rdd = rdd if isinstance(rdd, RDD) else getattr(rdd, "rdd", None)
        if not isinstance(rdd, RDD):
            raise ConfigError("rdd() takes an RDD; for a DataFrame use map_arrow or map_batches")
        if settings.errors != "raise":
            raise ConfigError(
                f'errors={settings.errors!r} is for DataFrames and UDFs; an RDD has "raise" only'
            )
        self._settings = settings
        self._rdd = rdd

    def map(self, task: Callable[[Any], Any], *, chunk: int = CHUNK, keeps_partitioning: bool = False) -> Any:
        """An RDD of `task(item)` for each item, in order."""
        return self._through(task, "map", chunk, keeps_partitioning=keeps_partitioning)

    def flat_map(
        self, task: Callable[[Any], Any], *, chunk: int = CHUNK, keeps_partitioning: bool = False
    ) -> Any:
        """An RDD of all that `task(item)` gives for each item, in order."""
        return self._through(task, "flat_map", chunk, keeps_partitioning=keeps_partitioning)

    def map_partitions(
        self, task: Callable[[list[Any]], Any], *, chunk: int = CHUNK, keeps_partitioning: bool = False
    ) -> Any:
        """An RDD of all that `task(items)` gives; it gets one chunk at a time, not a whole partition."""
        return self._through(task, "partition", chunk, keeps_partitioning=keeps_partitioning)

    def foreach(self, task: Callable[[Any], object], *, chunk: int = CHUNK) -> None:
        """Calls `task(item)` for each item: at least once."""
        self._through(task, "foreach", chunk, keeps_partitioning=False).foreach(_ignore)

    def _through(
        self, task: Callable[..., Any], form: ChunkForm, chunk: int, *, keeps_partitioning: bool
    ) -> Any:
        if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
            raise ConfigError(f"chunk has to be a number of items >= 1, not {chunk!r}")
        step = ChunkStep(function_bytes(task), form)
        work = Work.of(self._settings, task, step, PICKLE)
        way = ChunkWay(self._settings, work, chunk)

        def offload(items: Iterator[Any]) -> Iterator[Any]:
            return way.run(items)

        return self._rdd.mapPartitions(offload, keeps_partitioning)


def _ignore(item: object) -> None:
    """Nothing is left to be done with it."""
