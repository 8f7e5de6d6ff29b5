"""An RDD's partition in Spark's Python worker: its items become chunks.

Where Spark has pickled the items already (a cached RDD, a shuffle, a file), its batches travel as they are,
as long as they are quickly done: they are unpickled once, on the pool, and never in Spark's worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from taskmesh.spark.jobs.batch_size import BatchSizer, sizer_of
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.partitions import MOST_BYTES, Partition
from taskmesh.spark.steps.chunks import items_of

RowBatch = tuple[list[Any] | tuple[bytes, ...], int, int]
"""A chunk, its items' number (0: nobody has counted them) and its bytes (0: they are not known either)."""


@dataclass(frozen=True)
class ChunkPartition(Partition):
    """Objects in and out, in lists."""

    def run(self, items: Iterable[Any]) -> Iterator[Any]:
        """Run the partition: `mapPartitions` calls it."""
        return self._through(lambda sizer: _chunks(items, sizer))

    def _through(self, cut: Callable[[BatchSizer], Iterator[RowBatch]]) -> Iterator[Any]:
        tally, sizer = Tally(), self._new_sizer()
        try:
            for _, returned in self._stream(sizer, tally, rows_of=itemgetter(0)).run(cut(sizer)):
                for items in map(items_of, returned) if isinstance(returned, tuple) else (returned,):
                    tally.rows_out += len(items)
                    yield from items
        finally:
            self._tell(tally)

    def _new_sizer(self) -> BatchSizer:
        """Of one item at first: that may be the path of a file that takes a minute."""
        if self.rows:
            return BatchSizer(self.rows)
        return sizer_of(self.remote_task.function, 1, MOST_BYTES, by_item=True)


@dataclass(frozen=True)
class PickledPartition(ChunkPartition):
    """Batches of objects in, as Spark has pickled them; objects out."""

    def run(self, items: Iterable[bytes]) -> Iterator[Any]:
        """Run the partition of an RDD that is read as bytes: `mapPartitions` calls it."""
        return self._through(lambda sizer: PickledBatcher(sizer).pieces(items))


class PickledBatcher:
    """Puts pickled batches together to pieces that take as long as the sizer says.

    The number of items in a batch is estimated from its bytes: the first one is opened, and so is every later
    one with more items than go into a piece. So are those with items that only a pool with PySpark could
    rebuild: what PySpark's pickler takes by value, it takes by means of PySpark.
    """

    def __init__(self, sizer: BatchSizer) -> None:
        self._sizer = sizer
        self._item = 0.0  # bytes, as a mean; 0 before the first batch was opened

    def pieces(self, batches: Iterable[bytes]) -> Iterator[RowBatch]:
        """Every item once, in order."""
        held: list[bytes] = []
        size = 0
        for batch in batches:
            travels = self._fits(len(batch)) and b"pyspark" not in batch
            if held and not (travels and self._fits(size + len(batch))):
                yield tuple(held), 0, size
                held, size = [], 0
            if travels:
                held.append(batch)
                size += len(batch)
            else:
                yield from self._opened(batch)
        if held:
            yield tuple(held), 0, size

    def _fits(self, size: int) -> bool:
        """Return whether so many bytes of batches make one piece."""
        return 0 < size <= self._sizer.rows * self._item and size <= MOST_BYTES

    def _opened(self, batch: bytes) -> Iterator[RowBatch]:
        items = items_of(batch)
        mean = len(batch) / max(1, len(items))
        self._item = self._item + 0.5 * (mean - self._item) if self._item else mean
        return _chunks(items, self._sizer)


def _chunks(items: Iterable[Any], sizer: BatchSizer) -> Iterator[RowBatch]:
    """Lists of as many items as the sizer says. Their bytes are not known before they are pickled."""
    rest = iter(items)
    while chunk := list(islice(rest, sizer.rows)):
        yield chunk, len(chunk), 0
