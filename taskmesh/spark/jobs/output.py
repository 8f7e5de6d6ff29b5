"""What Spark's Python worker writes to the JVM: nothing of it stays behind in a buffer for long.

PySpark writes batches through a buffer of 64 KiB (`spark.buffer.size`), and the JVM sees none before it is
full: a `limit(5)` over rows of eight bytes would have 8,000 of them computed, and that the JVM has gone is
noticed by a write alone. There is no way to empty the buffer, but there are batches without rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

HELD_S: Final = 0.1
"""Seconds for which a batch may stay in the buffer."""


def pushed(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, held: float = HELD_S
) -> Iterator[pa.RecordBatch]:
    """The batches, and after one that would stay behind as many empty ones as fill the buffer."""
    room = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
    empty = pa.RecordBatch.from_pylist([], schema)
    size = pa.ipc.get_record_batch_size(empty)
    behind, emptied = 0, time.monotonic()
    for batch in batches:
        yield batch
        behind += pa.ipc.get_record_batch_size(batch)
        if behind > room:
            behind, emptied = 0, time.monotonic()
        elif time.monotonic() - emptied > held:
            for _ in range(room // size + 1):
                yield empty
            behind, emptied = 0, time.monotonic()
