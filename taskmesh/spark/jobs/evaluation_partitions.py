"""A partition of an operator with Spark's own functions: pieces of it go to slots, where PySpark runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from taskmesh.spark.evaluation import piece
from taskmesh.spark.evaluation.evaluation import LOGGED, WITH_LOCALS, local_zone
from taskmesh.spark.evaluation.piece import EvaluationContext, Group
from taskmesh.spark.jobs.batch_size import BatchSizer
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.partitions import MOST_BYTES, Encoded, Partition, gathered
from taskmesh.spark.steps.errors import MeshSchemaError

_EXECUTOR_ENV: Final = "spark.executorEnv."
_OF_SPARK: Final = (LOGGED, WITH_LOCALS, "SPARK_PIPELINED_UDF")
_OF_HOST: Final = frozenset({"PATH", "HOME", "USER", "TMPDIR", "JAVA_HOME"})
_ABOUT_HOST: Final = ("LD_", "PYTHON", "PYSPARK_", "SPARK_", "TASKMESH_")
"""Variables that say where a host has its programs, libraries and files: a pool has its own."""


@dataclass(frozen=True)
class EvaluatedPartition(Partition):
    """Batches in any cut, each of which gives a batch of as many rows."""

    def run(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Run the partition: PySpark's worker calls it, with the batches or groups that it has read."""
        tally = Tally()
        for data in self._results(partial(self._encoded, rows, here()), tally):
            yield from checked(data, tally)

    def _encoded(
        self, rows: Iterable[Any], context: EvaluationContext, sizer: BatchSizer
    ) -> Iterator[Encoded]:
        for batches in gathered(rows, sizer, self._most):
            data = piece.encode(context, batches)
            yield data, sum(batch.num_rows for batch in batches), data.size


@dataclass(frozen=True)
class GroupedPartition(EvaluatedPartition):
    """Groups, as many in a piece as are soon done; a group is never cut."""

    def _encoded(
        self, rows: Iterable[Any], context: EvaluationContext, sizer: BatchSizer
    ) -> Iterator[Encoded]:
        held: list[Group] = []
        count = size = 0
        for group in map(_sides, rows):
            batches = [batch for side in group for batch in side]
            own = sum(batch.num_rows for batch in batches)
            weight = sum(batch.nbytes for batch in batches)
            if held and (count + own > sizer.rows or size + weight > MOST_BYTES):
                yield _encoded(context, held, count)
                held, count, size = [], 0, 0
            held.append(group)
            count += own
            size += weight
        if held:
            yield _encoded(context, held, count)


def here() -> EvaluationContext:
    """The Spark task that runs in this process."""
    context = TaskContext.get()
    if context is None:
        return EvaluationContext()
    return EvaluationContext(
        context.stageId(),
        context.partitionId(),
        context.attemptNumber(),
        context.taskAttemptId(),
        context.cpus(),
        str(context.cpuAmount()),
        local_zone(),
        (time.timezone, time.altzone),
        dict(_environment(context)),
    )


def _environment(context: Any) -> Iterator[tuple[str, str]]:
    """The variables that Spark gives its Python workers, without those that are about their host."""
    for name in _OF_SPARK:
        if name in os.environ:
            yield name, os.environ[name]
    for name, value in (context._localProperties or {}).items():
        variable = name.removeprefix(_EXECUTOR_ENV)
        if variable != name and variable not in _OF_HOST and not variable.startswith(_ABOUT_HOST):
            yield variable, value


def checked(data: Any, tally: Tally) -> Iterator[pa.RecordBatch]:
    """The batches that a slot sent.

    Raises:
        MeshSchemaError: they are invalid.
    """
    tally.bytes_out += len(data)
    try:
        batches, logs = piece.decode_results(data)
        relay(logs)
        for batch in batches:
            tally.rows_out += batch.num_rows
            yield batch
    except pa.ArrowException as error:
        raise MeshSchemaError(f"a pool sent an invalid batch: {error}") from error


def relay(logs: list[str]) -> None:
    """Hand lines that functions have logged to Spark's JVM, as PySpark's own worker does."""
    if sys.__stdout__ is not None:
        sys.__stdout__.writelines(f"PYTHON_WORKER_LOGGING:{os.getpid()}:{line}\n" for line in logs)
        sys.__stdout__.flush()


def _sides(group: Any) -> Group:
    """The batches of a group: PySpark reads an iterator of them, or for a cogroup a pair of lists."""
    return tuple(group) if isinstance(group, tuple) else (list(group),)


def _encoded(context: EvaluationContext, groups: list[Group], rows: int) -> Encoded:
    data = piece.encode_groups(context, groups)
    return data, rows, data.size
