"""One mesh client for each Spark worker process and mesh, kept open for later tasks."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import Any, Final

from taskmesh.client.submitter import client_of
from taskmesh.errors import ConfigError
from taskmesh.mesh import Mesh
from taskmesh.spark.jobs.settings import Settings

MOST_FREEZES: Final = 3
MANY_OBJECTS: Final = 10_000

_Key = tuple[int, str, str]
_open: dict[_Key, Mesh] = {}
_lock = threading.Lock()
_freezes = 0


def mesh_of(settings: Settings, speed_up: float = 1.0, partition: int = 0) -> Mesh:
    """Return this process's open client of the mesh that a partition is for.

    A partition's next try finds the same mesh, which remembers failures and results. A forked child gets a
    client of its own; one that broke is replaced.

    Args:
        settings: of the job.
        speed_up: divides the time-out.
        partition: the partition's number.

    Raises:
        HubUnreachable: no hub answers within `connect_timeout` seconds.
        ConfigError: the address cannot be used, or text hashes otherwise here than in slots.
    """
    seed = os.environ.get("PYTHONHASHSEED", "0")
    if seed != "0":
        raise ConfigError(
            f"Spark's Python workers have PYTHONHASHSEED={seed}, and slots have 0: hash() of a text would "
            "differ between steps of the job. Unset it where Spark's driver starts; Spark itself sets 0"
        )
    address = settings.address[partition % len(settings.address)]
    key = (os.getpid(), address, settings.keys)
    with _lock:
        mesh = _open.get(key)
        if mesh is None or _is_broken(mesh):
            if mesh is not None:
                mesh.close(cancel=True)  # a refused client keeps its thread and sockets until then
            more: dict[str, Any] = {"keys": settings.keys} if settings.keys else {}
            mesh = Mesh(address, mesh__open_timeout=settings.connect_timeout / speed_up, **more)
            client_of(mesh).open()
            _open[key] = mesh
        _freeze_modules()
        return mesh


def _is_broken(mesh: Mesh) -> bool:
    """Return True if nothing can be submitted any more."""
    client = client_of(mesh)
    return client.closed or client.table.refusal is not None


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
    for (pid, *_), mesh in list(_open.items()):
        if pid == os.getpid():
            mesh.close(cancel=True)
    _open.clear()


def _forget() -> None:
    """Replace the lock in a forked child: another thread may have held it."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget)
