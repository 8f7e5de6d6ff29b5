"""taskmesh with a journal: hub and pool as processes of their own, over tcp on loopback."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.redis_server import SYNC, RedisServer, program
from benchmarks.taskmesh_remote import TaskmeshRemote


class TaskmeshFile(TaskmeshRemote):
    """The journal is a file; it is synced in each second."""

    rows = frozenset({"noop", "roundtrip"})

    def open(self, workers: int) -> None:
        """Start hub and pool."""
        self.hub_options = ("--journal", str(Path(tempfile.mkdtemp(prefix="journal")) / "journal"))
        super().open(workers)


class TaskmeshRedis(TaskmeshRemote):
    """The journal is in a redis-server, which syncs in each second."""

    rows = TaskmeshFile.rows

    @classmethod
    def missing(cls) -> str:
        """See Contender."""
        if not find_spec("redis"):
            return "the package redis is not installed"
        return "" if program() else "no redis-server program (apt install redis-server)"

    def open(self, workers: int) -> None:
        """Start Redis, hub and pool."""
        self._redis = RedisServer(Path(tempfile.mkdtemp(prefix="redis")), *SYNC["everysec"])
        self._redis.open()
        self.hub_options = ("--journal", f"{self._redis.url}/0")
        try:
            super().open(workers)
        except BaseException:
            self._redis.close()
            raise

    def close(self) -> None:
        """End pool and hub, then Redis."""
        try:
            super().close()
        finally:
            self._redis.close()
