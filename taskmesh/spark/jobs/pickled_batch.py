"""An RDD's partition in Spark's Python worker: its items become chunks.

Where Spark has pickled the items already (a cached RDD, a shuffle, a file), its batches travel as they are,
as long as they are quickly done: they are unpickled once, on the pool, and never in Spark's worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from taskmesh.spark.jobs.batch_size import BatchSizer, sizer_of
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.partitions import MOST_BYTES, Partition
from taskmesh.spark.steps.chunks import items_of

Chunk = tuple[list[Any] | tuple[bytes, ...], int, int]
"""Items, their number (0: nobody has counted them) and their bytes (0: not known before they are pickled)."""


@dataclass(frozen=True)
class ChunkPartition(Partition):
    """Objects in and out, in lists."""

    def run(self, items: Iterable[Any]) -> Iterator[Any]:
        """Run the partition: `mapPartitions` calls it."""
        return self._through(lambda sizer: _chunks(items, sizer))

    def _through(self, cut: Callable[[BatchSizer], Iterator[Chunk]]) -> Iterator[Any]:
        return chain.from_iterable(self._lists(cut))  # no Python code runs for an item

    def _lists(self, cut: Callable[[BatchSizer], Iterator[Chunk]]) -> Iterator[list[Any]]:
        tally = Tally()
        for _, returned in self._results(cut, tally, rows_of=itemgetter(0)):
            for items in map(items_of, returned) if isinstance(returned, tuple) else (returned,):
                tally.rows_out += len(items)
                yield items

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
    """Joins pickled batches to pieces of as many items as the sizer says.

    A batch's bytes tell how many items it has, once the first batch has been opened and counted. Every later
    one with more items than fit into a piece is opened and cut. So is every batch with items that only a pool
    with PySpark could rebuild: PySpark's pickler needs PySpark to rebuild what it took by value.
    """

    def __init__(self, sizer: BatchSizer) -> None:
        self._sizer = sizer
        self._item = 0.0  # bytes, as a mean; 0 before the first batch was opened

    def pieces(self, batches: Iterable[bytes]) -> Iterator[Chunk]:
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
        """True if so many bytes of batches make one piece."""
        return 0 < size <= self._sizer.rows * self._item and size <= MOST_BYTES

    def _opened(self, batch: bytes) -> Iterator[Chunk]:
        items = items_of(batch)
        mean = len(batch) / max(1, len(items))
        self._item = self._item + 0.5 * (mean - self._item) if self._item else mean
        return _chunks(items, self._sizer)


def _chunks(items: Iterable[Any], sizer: BatchSizer) -> Iterator[Chunk]:
    """Lists of as many items as the sizer says."""
    rest = iter(items)
    while chunk := list(islice(rest, sizer.rows)):
        yield chunk, len(chunk), 0
