"""Counts of rows, bytes and pieces on the mesh: made in Spark's workers, added up on the driver."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from pyspark.accumulators import AccumulatorParam

from taskmesh.errors import ConfigError


@dataclasses.dataclass
class Tally:
    """Sums over pieces.

    Attributes:
        rows_in: rows that tasks received.
        rows_out: rows that tasks returned.
        pieces: number of tasks.
        bytes_in: encoded bytes that tasks received.
        bytes_out: encoded bytes that tasks returned; not counted for RDDs.
        again: pieces whose result comes from a second or later attempt on the mesh.
        waited: seconds that Spark's worker did nothing but wait for the mesh.
        worked: seconds that the tasks themselves took, on the pools.
    """

    rows_in: int = 0
    rows_out: int = 0
    pieces: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    again: int = 0
    waited: float = 0.0
    worked: float = 0.0

    def __iadd__(self, other: Tally) -> Self:
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self


class _Sum(AccumulatorParam[Tally]):  # type: ignore[misc]
    """The rule by which Spark's accumulator adds tallies."""

    def zero(self, value: Tally) -> Tally:
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:  # noqa: N802  Spark's name
        value1 += value2
        return value1


class Counts:
    """A job's figures, for classic Spark: `mesh = mesh.counting(spark)`, then `mesh.counts.value`.

    An action that runs a plan twice counts twice; executions of a Spark task that failed do not count.

    Raises:
        ConfigError: the session is of Spark Connect, which has no accumulators.
    """

    def __init__(self, spark: Any) -> None:
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            raise ConfigError("Spark Connect has no accumulators: look at the hub, `taskmesh status`")
        self._sum = spark.sparkContext.accumulator(Tally(), _Sum())

    @property
    def value(self) -> Tally:
        """The counts so far; on the driver only."""
        return self._sum.value  # type: ignore[no-any-return]

    def add(self, tally: Tally) -> None:
        """Add a partition's figures; in Spark's workers."""
        self._sum.add(tally)
