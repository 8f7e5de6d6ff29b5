"""Huey: worker processes, queue and results in an SQLite file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.contender import Futures, Pending, Sizes, Work
from benchmarks.taskmesh_remote import end_all

ROOT = Path(__file__).resolve().parents[1]
READY_S = 30.0


class HueyPending:
    """A result handle under the names of a future."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def done(self) -> bool:
        """See Pending."""
        return self._result.get(preserve=True) is not None

    def result(self, timeout: float | None = None) -> Any:
        """See Pending."""
        return self._result.get(blocking=True, timeout=timeout or READY_S, backoff=1.0, max_delay=0.005)


class HueyPeer(Futures):
    """`huey_consumer -w 2 -k process` and this process as the client."""

    sizes = Sizes(noops=1_000, mapped=1_000, trips=100)
    rows = frozenset({"noop", "roundtrip"})
    bulk = "a call"

    def __init__(self) -> None:
        self._programs: list[subprocess.Popen[bytes]] = []

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        return "" if find_spec("huey") else "the package huey is not installed"

    def open(self, workers: int) -> None:
        """Start the consumer, and wait for a first result."""
        os.environ["BENCHMARK_FILE"] = str(Path(tempfile.mkdtemp(prefix="huey")) / "queue.db")
        from benchmarks.huey_app import call

        command = [sys.executable, "-m", "huey.bin.huey_consumer", "benchmarks.huey_app.huey"]
        command += ["-w", str(workers), "-k", "process", "-d", "0.005", "-m", "0.005", "-n", "-q"]
        sink = subprocess.DEVNULL
        self._programs.append(subprocess.Popen(command, cwd=ROOT, stdin=sink, stdout=sink, stderr=sink))
        self._call = call
        HueyPending(call(abs, -1)).result(READY_S)

    def close(self) -> None:
        """End the consumer."""
        end_all(self._programs)

    def submit(self, work: Work, argument: Any) -> Pending:
        """Queue one call."""
        return HueyPending(self._call(work, argument))
