"""Dramatiq: worker processes of one thread, and a Redis that syncs in each second and keeps results, too."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.contender import Futures, Pending, Sizes, Work
from benchmarks.redis_server import SYNC, RedisServer
from benchmarks.redis_server import program as redis_program
from benchmarks.taskmesh_remote import end_all

ROOT = Path(__file__).resolve().parents[1]
READY_S = 30.0


class DramatiqPending:
    """A message under the names of a future."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def done(self) -> bool:
        """See Pending."""
        from dramatiq.results import ResultMissing

        try:
            self._message.get_result()
        except ResultMissing:
            return False
        return True

    def result(self, timeout: float | None = None) -> Any:
        """See Pending."""
        return self._message.get_result(block=True, timeout=int(1000 * (timeout or READY_S)))


class DramatiqPeer(Futures):
    """redis-server, `dramatiq --processes 2 --threads 1` and this process as the client."""

    sizes = Sizes(noops=3_000, mapped=3_000, trips=300)
    rows = frozenset({"noop", "roundtrip"})
    bulk = "send"

    def __init__(self) -> None:
        self._programs: list[subprocess.Popen[bytes]] = []

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        if not find_spec("dramatiq") or not find_spec("redis"):
            return "the packages dramatiq and redis are not both installed"
        return "" if redis_program() else "no redis-server program (apt install redis-server)"

    def open(self, workers: int) -> None:
        """Start Redis and the workers, and wait for a first result."""
        self._redis = RedisServer(Path(tempfile.mkdtemp(prefix="redis")), *SYNC["everysec"])
        self._redis.open()
        os.environ["BENCHMARK_REDIS"] = self._redis.url
        command = [sys.executable, "-m", "dramatiq", "benchmarks.dramatiq_app"]
        command += ["--processes", str(workers), "--threads", "1"]
        sink = subprocess.DEVNULL
        self._programs.append(subprocess.Popen(command, cwd=ROOT, stdin=sink, stdout=sink, stderr=sink))
        from benchmarks.dramatiq_app import call

        self._call = call
        DramatiqPending(call.send(abs, -1)).result(READY_S)

    def close(self) -> None:
        """End the workers, then Redis."""
        end_all(self._programs)
        self._redis.close()

    def submit(self, work: Work, argument: Any) -> Pending:
        """Send one message."""
        return DramatiqPending(self._call.send(work, argument))
