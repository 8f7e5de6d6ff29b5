"""concurrent.futures.ProcessPoolExecutor with its defaults."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.contender import ALL_ROWS, FUTURE_ROWS, Futures, Sizes, Work


class ProcessPool(Futures):
    """The pool of the standard library."""

    sizes = Sizes(noops=20_000, mapped=400_000, trips=1_000)
    rows = ALL_ROWS | FUTURE_ROWS
    bulk = "Executor.map(chunksize=100)"

    @classmethod
    def missing(cls) -> str:
        """Never."""
        return ""

    def open(self, workers: int) -> None:
        """Start the pool; its processes come with the first tasks."""
        self._pool = ProcessPoolExecutor(workers)
        self.submit = self._pool.submit

    def close(self) -> None:
        """Wait for the processes to end."""
        self._pool.shutdown()

    def run_chunked(self, work: Work, arguments: Sequence[Any], chunk: int) -> list[Any]:
        """See Contender."""
        return list(self._pool.map(work, arguments, chunksize=chunk))
