"""RQ: a pool of workers, and a Redis that syncs in each second; a worker forks for each job."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.contender import Futures, Pending, Sizes, Work
from benchmarks.redis_server import SYNC, RedisServer
from benchmarks.redis_server import program as redis_program
from benchmarks.taskmesh_remote import end_all

ROOT = Path(__file__).resolve().parents[1]
READY_S = 30.0


class RqPending:
    """A job under the names of a future."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def done(self) -> bool:
        """See Pending."""
        return bool(self._job.is_finished or self._job.is_failed)

    def result(self, timeout: float | None = None) -> Any:
        """See Pending."""
        deadline = time.monotonic() + (timeout or READY_S)
        while time.monotonic() < deadline:
            found = self._job.latest_result(timeout=1)
            if found is not None:
                return found.return_value
        raise TimeoutError(f"no result of {self._job.id}")


class RqPeer(Futures):
    """redis-server, `rq worker-pool` and this process as the client."""

    sizes = Sizes(noops=300, mapped=300, trips=50)
    rows = frozenset({"noop", "roundtrip"})
    bulk = "enqueue"

    def __init__(self) -> None:
        self._programs: list[subprocess.Popen[bytes]] = []

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        if not find_spec("rq"):
            return "the package rq is not installed"
        return "" if redis_program() else "no redis-server program (apt install redis-server)"

    def open(self, workers: int) -> None:
        """Start Redis and the workers, and wait for a first result."""
        from redis import Redis
        from rq import Queue

        self._redis = RedisServer(Path(tempfile.mkdtemp(prefix="redis")), *SYNC["everysec"])
        self._redis.open()
        url = f"{self._redis.url}/0"
        pool = ["worker-pool", "default", "-n", str(workers), "-u", url, "-l", "ERROR", "-q"]
        sink = subprocess.DEVNULL
        command = [str(Path(sys.executable).parent / "rq"), *pool]
        self._programs.append(subprocess.Popen(command, cwd=ROOT, stdin=sink, stdout=sink, stderr=sink))
        self._queue = Queue(connection=Redis.from_url(url))
        RqPending(self._queue.enqueue(abs, -1)).result(READY_S)

    def close(self) -> None:
        """End the workers, then Redis."""
        end_all(self._programs)
        self._redis.close()

    def submit(self, work: Work, argument: Any) -> Pending:
        """Send one job."""
        return RqPending(self._queue.enqueue(work, argument))
