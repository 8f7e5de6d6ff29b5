"""RDDs on a mesh: classic Spark only. Items travel pickled; DataFrames' batches do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import RDD
from pyspark.core.rdd import PipelinedRDD
from pyspark.serializers import (
    AutoBatchedSerializer,
    BatchedSerializer,
    CPickleSerializer,
    NoOpSerializer,
)

from taskmesh.client.options import Chunksize, fixed_chunksize
from taskmesh.errors import ConfigError
from taskmesh.messages.runs import PICKLE
from taskmesh.spark.jobs.batch_size import FIXED
from taskmesh.spark.jobs.pickled_batch import ChunkPartition, PickledPartition
from taskmesh.spark.jobs.remote_task import RemoteTask, function_bytes
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.steps.chunks import ChunkForm, ChunkStep


class MeshRDD:
    """An RDD whose functions run on the mesh.

    `chunksize` is the number of items that travel together. "auto", the default, is as many as take a
    twentieth of a second, measured as the job runs; with dedupe="result", which needs equal chunks for equal
    input, 2000.

    Args:
        settings: of the job.
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

    def map(
        self, task: Callable[[Any], Any], *, chunksize: Chunksize = "auto", keeps_partitioning: bool = False
    ) -> Any:
        """An RDD of `task(item)` for each item, in order."""
        return self._through(task, "map", chunksize, keeps_partitioning=keeps_partitioning)

    def flat_map(
        self, task: Callable[[Any], Any], *, chunksize: Chunksize = "auto", keeps_partitioning: bool = False
    ) -> Any:
        """An RDD of all items of `task(item)` for each item, in order."""
        return self._through(task, "flat_map", chunksize, keeps_partitioning=keeps_partitioning)

    def map_partitions(
        self,
        task: Callable[[list[Any]], Any],
        *,
        chunksize: Chunksize = FIXED,
        keeps_partitioning: bool = False,
    ) -> Any:
        """An RDD of all items of `task(items)`, called with one chunk at a time, not a whole partition."""
        return self._through(task, "partition", chunksize, keeps_partitioning=keeps_partitioning)

    def foreach(self, task: Callable[[Any], object], *, chunksize: Chunksize = "auto") -> None:
        """Call `task(item)` for each item: at least once."""
        self._through(task, "foreach", chunksize, keeps_partitioning=False).count()

    def _through(
        self, task: Callable[..., Any], form: ChunkForm, chunksize: Chunksize, *, keeps_partitioning: bool
    ) -> Any:
        size = fixed_chunksize(chunksize)
        step = ChunkStep(function_bytes(task), form)
        remote_task = RemoteTask.of(self._settings, task, step, PICKLE)
        if not size and self._settings.dedupe == "result":
            size = FIXED
        rdd = self._rdd
        partition = ChunkPartition(self._settings, remote_task, size)
        if not size and self._settings.engine == "mesh" and _is_pickled(rdd):
            rdd = _as_bytes(rdd)
            partition = PickledPartition(self._settings, remote_task)
        return rdd.mapPartitions(partition.run, keeps_partitioning)


def _is_pickled(rdd: RDD[Any]) -> bool:
    """True if Spark hands its Python workers this RDD as plain pickles of lists.

    It does not for the result of a Python function that is nowhere kept: Spark then runs that function and
    the next one in the same worker, and pickles nothing in between.
    """
    if isinstance(rdd, PipelinedRDD) and rdd._is_pipelinable():
        return False
    serializer = rdd._jrdd and rdd._jrdd_deserializer  # reading _jrdd may replace it
    if type(serializer) not in (BatchedSerializer, AutoBatchedSerializer):
        return False
    inner = serializer.serializer
    return isinstance(inner, CPickleSerializer) and getattr(inner, "allowed_names", None) is None


def _as_bytes(rdd: RDD[Any]) -> RDD[bytes]:
    """The same RDD, of its batches' bytes."""
    batches: RDD[bytes] = RDD(rdd._jrdd, rdd.ctx, NoOpSerializer())
    batches.partitioner = rdd.partitioner
    return batches
