"""Parsl's HighThroughputExecutor: interchange, manager and workers on this machine, defaults otherwise."""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.contender import ALL_ROWS, Futures, Pending, Sizes, Work

ROOT = Path(__file__).resolve().parents[1]


class ParslPeer(Futures):
    """The nearest relative by design: ZeroMQ and a process pool."""

    sizes = Sizes(noops=5_000, mapped=0, trips=1_000)
    rows = ALL_ROWS - {"map"}
    bulk = "none"

    def __init__(self) -> None:
        self._apps: dict[Work, Any] = {}

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        return "" if find_spec("parsl") else "the package parsl is not installed"

    def open(self, workers: int) -> None:
        """Load the configuration and start its one block."""
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        programs = str(Path(sys.executable).parent)  # it starts its interchange by name
        os.environ["PATH"] = os.pathsep.join((programs, os.environ["PATH"]))
        import parsl
        from parsl.providers import LocalProvider

        executor = parsl.HighThroughputExecutor(
            label="htex",
            address="127.0.0.1",
            max_workers_per_node=workers,
            provider=LocalProvider(init_blocks=1, max_blocks=1),
        )
        self._parsl = parsl
        parsl.load(parsl.Config(executors=[executor], run_dir=tempfile.mkdtemp(prefix="parsl")))

    def close(self) -> None:
        """End everything."""
        self._parsl.dfk().cleanup()
        self._parsl.clear()

    def submit(self, work: Work, argument: Any) -> Pending:
        """Call the function's app, made once."""
        if work not in self._apps:
            self._apps[work] = self._parsl.python_app(work)
        future: Pending = self._apps[work](argument)
        return future
