"""One mesh client for each Spark worker process and hub that it prefers, kept open for later tasks."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from taskmesh.client.submitter import client_of
from taskmesh.mesh import Mesh
from taskmesh.spark.jobs.settings import Settings

MOST_FREEZES: Final = 3
MANY_OBJECTS: Final = 10_000

FIRST_RETURN_S: Final = 30.0
"""Seconds at a stand-in after which a client dials the hub that it prefers; twice as many each further time.

A hub that is still away costs a Spark task two seconds.
"""
LAST_RETURN_S: Final = 1000.0
"""Seconds between two of these attempts, at most."""


@dataclass
class _Connection:
    """A client, and its way back from a stand-in.

    Attributes:
        mesh: the client's.
        pause: seconds between being seen at a stand-in and dialling the hub that it prefers.
        return_at: the time for it; 0 if it is there, as far as is known.
    """

    mesh: Mesh
    pause: float
    return_at: float = 0.0

    def is_broken(self) -> bool:
        """Return True if nothing can be submitted any more."""
        client = client_of(self.mesh)
        return client.closed or client.table.refusal is not None

    def is_to_return(self) -> bool:
        """Return True if it is time to dial the hub that it prefers, and nothing is under way."""
        client, now = client_of(self.mesh), time.monotonic()
        if not client.is_at_stand_in:
            self.return_at, self.pause = 0.0, FIRST_RETURN_S
        elif not self.return_at:
            self.return_at = now + self.pause
        return 0.0 < self.return_at <= now and not client.table.unended


_Key = tuple[int, tuple[str, ...], str]
_open: dict[_Key, _Connection] = {}
_lock = threading.Lock()
_freezes = 0


def mesh_of(settings: Settings, speed_up: float = 1.0, partition: int = 0) -> Mesh:
    """Return this process's open mesh for a partition.

    Several hubs share the partitions: each prefers one, and the others stand in for it, in their order, until
    it is back. Its next try finds the same one, which remembers failures and results. A forked child gets a
    mesh of its own; one that broke is replaced.

    Args:
        settings: of the job.
        speed_up: divides the time-out.
        partition: the partition's number.

    Raises:
        HubUnreachable: no hub answers within `connect_timeout` seconds.
        ConfigError: the address cannot be used.
    """
    first = partition % max(1, len(settings.address))
    address = (*settings.address[first:], *settings.address[:first])
    key = (os.getpid(), address, settings.keys)
    with _lock:
        connection = _open.get(key)
        if connection is None or connection.is_broken() or connection.is_to_return():
            pause = FIRST_RETURN_S
            if connection is not None:
                pause = min(2 * connection.pause, LAST_RETURN_S)
                connection.mesh.close(cancel=True)  # a refused client keeps its thread and sockets until then
            more: dict[str, Any] = {"keys": settings.keys} if settings.keys else {}
            mesh = Mesh(address, mesh__open_timeout=settings.connect_timeout / speed_up, **more)
            client_of(mesh).open()
            connection = _open[key] = _Connection(mesh, pause)
        _freeze_modules()
        return connection.mesh


def _freeze_modules() -> None:
    """Exempt the objects of imported modules from garbage collection, in Spark's Python worker.

    Spark collects garbage there after every task. With PySpark, Arrow and taskmesh imported that takes 10 to
    20 ms, several times as long as a small partition's way over the mesh; 0.05 ms after `gc.freeze()`. Frozen
    cycles that become garbage later are never freed: so it is called between tasks only, and three times at
    most.
    """
    global _freezes  # noqa: PLW0603
    if _freezes < MOST_FREEZES and "pyspark.worker" in sys.modules and len(gc.get_objects()) > MANY_OBJECTS:
        _freezes += 1
        gc.collect()
        gc.freeze()


def _close_all() -> None:
    """Close this process's meshes, at its end."""
    for (pid, *_), connection in list(_open.items()):
        if pid == os.getpid():
            connection.mesh.close(cancel=True)
    _open.clear()


def _forget() -> None:
    """Replace the lock in a forked child: another thread may have held it."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget)
