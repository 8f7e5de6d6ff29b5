"""One mesh client for each Spark worker process and address, kept open for the tasks that come after."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import Any, Final

from taskmesh.mesh import Mesh
from taskmesh.spark.jobs.settings import Settings

MOST_SPARINGS: Final = 3
MANY_OBJECTS: Final = 10_000

_Key = tuple[int, tuple[str, ...], str]
_open: dict[_Key, Mesh] = {}
_lock = threading.Lock()
_sparings = 0


def mesh_of(settings: Settings, speed_up: float = 1.0) -> Mesh:
    """This process's open mesh at the settings' address.

    A forked child gets one of its own; one that broke is replaced.

    Args:
        settings: what to open it with.
        speed_up: the time-out is divided by this.

    Raises:
        HubUnreachable: no hub answers within `connect_timeout` seconds.
        ConfigError: the address cannot be used.
    """
    key = (os.getpid(), settings.address, settings.keys)
    with _lock:
        mesh = _open.get(key)
        if mesh is None or mesh._client.closed or mesh._client.table.refusal is not None:
            if mesh is not None:
                mesh.close(cancel=True)  # a client that was refused keeps its thread and sockets until then
            more: dict[str, Any] = {"keys": settings.keys} if settings.keys else {}
            mesh = Mesh(settings.address, mesh__open_timeout=settings.connect_timeout / speed_up, **more)
            mesh._client.open()
            _open[key] = mesh
        _spare_what_stays()
        return mesh


def _spare_what_stays() -> None:
    """Takes what modules have brought out of the garbage collector's sight, in Spark's Python worker.

    Spark has garbage collected there after every task. With PySpark, Arrow and taskmesh imported that takes
    10 to 20 ms, several times as long as a small partition's way over the mesh. What is spared and becomes
    garbage later is not found if it is a cycle: so this is done between tasks only, and a few times at most.
    """
    global _sparings  # noqa: PLW0603
    if _sparings < MOST_SPARINGS and "pyspark.worker" in sys.modules and len(gc.get_objects()) > MANY_OBJECTS:
        _sparings += 1
        gc.collect()
        gc.freeze()


def _close_all() -> None:
    """At the end of the process: what was open for later tasks is not needed any more."""
    for (pid, *_), mesh in list(_open.items()):
        if pid == os.getpid():
            mesh.close(cancel=True)
    _open.clear()


def _forget() -> None:
    """In a forked child: another thread may have held the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget)
