"""Ray: its head and two worker processes on this machine, defaults otherwise."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.contender import ALL_ROWS, CLIENT_ROWS, Sizes, Work
from benchmarks.graphs import GRAPH_ROWS

ROOT = Path(__file__).resolve().parents[1]


class RayPeer:
    """ray.init with as many processors as workers; each function is a remote function of its own."""

    sizes = Sizes(noops=10_000, mapped=200_000, trips=1_000)
    nodes = 10_000
    rows = ALL_ROWS | CLIENT_ROWS | GRAPH_ROWS
    bulk = "ray.util.multiprocessing.Pool.map, its own chunks"

    def __init__(self) -> None:
        self._remote: dict[Work, Any] = {}

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        return "" if find_spec("ray") else "the package ray is not installed"

    def open(self, workers: int) -> None:
        """Start the head; its processes find the benchmarks' modules by PYTHONPATH."""
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self._workers = workers
        self._init(num_cpus=workers, include_dashboard=False, _temp_dir=tempfile.gettempdir())
        self.address = self._ray.get_runtime_context().gcs_address

    def join(self, address: str) -> None:
        """See SharedContender."""
        self._init(address=address)

    def _init(self, **settings: Any) -> None:
        import ray

        self._ray = ray
        ray.init(log_to_driver=False, logging_level="ERROR", **settings)

    def close(self) -> None:
        """End everything."""
        self._ray.shutdown()

    def submit_call(self, work: Work, *arguments: Any) -> Any:
        """See GraphContender; a list of references is no argument of Ray's, so it travels as several."""
        if arguments and isinstance(arguments[0], list):
            return self._function(gathered).remote(work, *arguments[0])
        return self._function(work).remote(*arguments)

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """See GraphContender."""
        return list(self._ray.get(list(futures)))

    def failures(self, futures: Sequence[Any]) -> int:
        """See GraphContender."""
        failed = 0
        for reference in futures:
            try:
                self._ray.get(reference)
            except self._ray.exceptions.RayTaskError:
                failed += 1
        return failed

    def run_each(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        """See Contender."""
        results: list[Any] = self._ray.get(self._submit(work, arguments))
        return results

    def run_chunked(self, work: Work, arguments: Sequence[Any], chunk: int) -> list[Any]:
        """See Contender; the pool's own chunk size, an eighth of the whole, is the quickest."""
        from ray.util.multiprocessing import Pool

        with Pool(self._workers) as pool:
            results: list[Any] = pool.map(work, arguments)
        return results

    def round_trip(self, work: Work, argument: Any) -> Any:
        """See Contender."""
        return self._ray.get(self._function(work).remote(argument))

    def run_until(self, work: Work, arguments: Sequence[Any], timeout_s: float) -> list[Any]:
        """See Contender."""
        deadline = time.monotonic() + timeout_s
        outcomes: list[Any] = []
        for reference in self._submit(work, arguments):
            try:
                outcomes.append(self._ray.get(reference, timeout=max(0.0, deadline - time.monotonic())))
            except Exception as error:  # noqa: BLE001 (whatever it raises is counted)
                outcomes.append(error)
        return outcomes

    def run_beside(self, work: Work, arguments: Sequence[Any], compute: Callable[[], None]) -> list[Any]:
        """See Contender."""
        references = self._submit(work, arguments)
        waiting = references
        while waiting:
            compute()
            _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
        results: list[Any] = self._ray.get(references)
        return results

    def _function(self, work: Work) -> Any:
        if work not in self._remote:
            self._remote[work] = self._ray.remote(work)
        return self._remote[work]

    def _submit(self, work: Work, arguments: Sequence[Any]) -> list[Any]:
        function = self._function(work)
        return [function.remote(argument) for argument in arguments]


def gathered(work: Work, *values: Any) -> Any:
    """Call a function of a list."""
    return work(list(values))
