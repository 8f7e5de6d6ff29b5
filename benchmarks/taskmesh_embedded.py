"""taskmesh in its default shape: the hub is a thread of this process, the slots are its children."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.contender import ALL_ROWS, FUTURE_ROWS, Futures, Pending, Sizes, Work
from benchmarks.graphs import GRAPH_ROWS
from benchmarks.rates import RATE_ROWS


class TaskmeshEmbedded(Futures):
    """`with Mesh(workers=2) as mesh`, nothing tuned."""

    sizes = Sizes(noops=100_000, mapped=1_000_000, trips=1_000)
    nodes = 100_000
    rows = ALL_ROWS | FUTURE_ROWS | GRAPH_ROWS | RATE_ROWS
    bulk = "Mesh.map(chunksize=100)"

    @classmethod
    def missing(cls) -> str:
        """Never: it is what is measured."""
        return ""

    def open(self, workers: int) -> None:
        """Open a mesh of its own, whatever the environment says of other meshes."""
        from taskmesh import Mesh

        for name in [name for name in os.environ if name.startswith("TASKMESH_")]:
            del os.environ[name]
        self._mesh = Mesh(workers=workers)
        self._mesh.__enter__()
        self.submit = self._mesh.submit

    def close(self) -> None:
        """Leave the mesh as a with block does."""
        self._mesh.__exit__(None, None, None)

    def submit_call(self, work: Work, *arguments: Any) -> Any:
        """See GraphContender."""
        return self.submit(work, *arguments)

    def submit_limited(self, work: Work, argument: Any, rate: int) -> Pending:
        """See RateContender."""
        return self._mesh.with_options(limit=f"api:{rate}/s").submit(work, argument)

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """See GraphContender."""
        return [future.result() for future in futures]

    def failures(self, futures: Sequence[Any]) -> int:
        """See GraphContender."""
        return sum(future.exception() is not None for future in futures)

    def run_chunked(self, work: Work, arguments: Sequence[Any], chunk: int) -> list[Any]:
        """See Contender."""
        return list(self._mesh.map(work, arguments, chunksize=chunk))
