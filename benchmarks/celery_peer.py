"""Celery: a prefork worker, Redis as broker and as result backend, defaults otherwise.

The redis-server is started here, on loopback and without persistence.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.contender import ALL_ROWS, CLIENT_ROWS, Futures, Pending, Sizes, Work
from benchmarks.rates import RATE, RATE_ROWS
from benchmarks.redis_server import SYNC, RedisServer
from benchmarks.redis_server import program as redis_program
from benchmarks.taskmesh_remote import end_all

ROOT = Path(__file__).resolve().parents[1]
READY_S = 20.0


class CeleryPending:
    """An AsyncResult under the names of a future."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def done(self) -> bool:
        """See Pending."""
        return bool(self._result.ready())

    def result(self, timeout: float | None = None) -> Any:
        """See Pending."""
        return self._result.get(timeout=timeout)


class CeleryPeer(Futures):
    """redis-server, `celery worker --concurrency 2` and this process as the client."""

    sizes = Sizes(noops=5_000, mapped=5_000, trips=500)
    rows = ALL_ROWS | CLIENT_ROWS | RATE_ROWS
    bulk = "task.chunks(.., 100)"
    redis_options: Sequence[str] = ()

    def __init__(self) -> None:
        self._redis: RedisServer | None = None
        self._programs: list[subprocess.Popen[bytes]] = []

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        if not find_spec("celery") or not find_spec("redis"):
            return "the packages celery and redis are not both installed"
        return "" if redis_program() else "no redis-server program (apt install redis-server)"

    def open(self, workers: int) -> None:
        """Start Redis and the worker, and wait for a first result."""
        self._redis = RedisServer(Path(tempfile.mkdtemp(prefix="redis")), *self.redis_options)
        self._redis.open()
        self.join(self._redis.url)
        os.environ["C_FORCE_ROOT"] = (
            "1"  # as root its worker refuses pickles, here it is on loopback and alone
        )
        celery = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "benchmarks.celery_app",
            "worker",
            "--loglevel",
            "ERROR",
        ]
        self._start([*celery, "--concurrency", str(workers)])
        self._call.delay(abs, -1).get(timeout=READY_S)

    def join(self, address: str) -> None:
        """See SharedContender; the application, of which the worker is too, reads where Redis is."""
        self.address = os.environ["BENCHMARK_REDIS"] = address
        from benchmarks.celery_app import call, call_limited

        self._call = call
        self._call_limited = call_limited

    def close(self) -> None:
        """End the worker, then Redis, if they were started here."""
        end_all(self._programs)
        if self._redis is not None:
            self._redis.close()

    def submit(self, work: Work, argument: Any) -> Pending:
        """Send one message."""
        return CeleryPending(self._call.delay(work, argument))

    def submit_limited(self, work: Work, argument: Any, rate: int) -> Pending:
        """See RateContender: Celery's limit holds for each worker, and there is one."""
        if rate != RATE:
            raise ValueError(f"the task is declared with {RATE}/s")
        return CeleryPending(self._call_limited.delay(work, argument))

    def run_chunked(self, work: Work, arguments: Sequence[Any], chunk: int) -> list[Any]:
        """See Contender."""
        chunks = self._call.chunks(((work, argument) for argument in arguments), chunk)()
        return [value for values in chunks.get() for value in values]

    def _start(self, command: list[str]) -> None:
        sink = subprocess.DEVNULL
        self._programs.append(subprocess.Popen(command, cwd=ROOT, stdin=sink, stdout=sink))


class CeleryDurable(CeleryPeer):
    """A task stays with Redis, which syncs in each second, until it has run (`acks_late`)."""

    rows = frozenset({"noop", "roundtrip"})
    redis_options = SYNC["everysec"]

    def open(self, workers: int) -> None:
        """See Contender."""
        os.environ["BENCHMARK_ACKS_LATE"] = "1"
        super().open(workers)
