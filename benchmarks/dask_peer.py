"""Dask distributed: a scheduler and worker processes of one thread on this machine, defaults otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.contender import ALL_ROWS, CLIENT_ROWS, Futures, Pending, Sizes, Work
from benchmarks.graphs import GRAPH_ROWS


class DaskPeer(Futures):
    """A local cluster, without its dashboard."""

    sizes = Sizes(noops=3_000, mapped=3_000, trips=300)
    nodes = 3_000
    rows = ALL_ROWS | CLIENT_ROWS | GRAPH_ROWS
    bulk = "Client.map, its own batches"

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        return "" if find_spec("distributed") else "the package distributed is not installed"

    def open(self, workers: int) -> None:
        """Start scheduler and workers."""
        from distributed import Client

        self._client = Client(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
        self.address = self._client.scheduler.address

    def join(self, address: str) -> None:
        """See SharedContender."""
        from distributed import Client

        self._client = Client(address)

    def close(self) -> None:
        """End the cluster, if it was opened here."""
        cluster = self._client.cluster
        self._client.close()
        if cluster is not None:
            cluster.close()

    def submit(self, work: Work, argument: Any) -> Pending:
        """Submit one; pure=False, as equal tasks are to be run each."""
        future: Pending = self._client.submit(work, argument, pure=False)
        return future

    def submit_call(self, work: Work, *arguments: Any) -> Any:
        """See GraphContender."""
        return self._client.submit(work, *arguments, pure=False)

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """See GraphContender."""
        return list(self._client.gather(list(futures)))

    def failures(self, futures: Sequence[Any]) -> int:
        """See GraphContender."""
        return sum(future.exception() is not None for future in futures)

    def run_each(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        """See Contender; gathered by Dask's own call."""
        results: list[Any] = self._client.gather([self.submit(work, argument) for argument in arguments])
        return results

    def run_chunked(self, work: Work, arguments: Sequence[Any], chunk: int) -> list[Any]:
        """See Contender; it takes all in one message."""
        results: list[Any] = self._client.gather(self._client.map(work, arguments, pure=False))
        return results
