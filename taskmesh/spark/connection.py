"""One mesh client for each Spark worker process and address, kept open for the tasks that come after."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from taskmesh.mesh import Mesh
from taskmesh.spark.settings import Settings

_Key = tuple[int, tuple[str, ...], str]
_open: dict[_Key, Mesh] = {}
_lock = threading.Lock()


def mesh_of(settings: Settings, haste: float = 1.0) -> Mesh:
    """This process's open mesh at the settings' address.

    A forked child gets one of its own; one that broke is replaced. `haste`: what the time-out is divided by.

    Raises:
        HubUnreachable: no hub answers within `connect_timeout` seconds.
        ConfigError: the address cannot be used.
    """
    key = (os.getpid(), settings.address, settings.keys)
    with _lock:
        mesh = _open.get(key)
        if mesh is None or mesh._session.closed or mesh._session.table.refusal is not None:
            more: dict[str, Any] = {"keys": settings.keys} if settings.keys else {}
            mesh = Mesh(settings.address, mesh__open_timeout=settings.connect_timeout / haste, **more)
            mesh._session.open()
            _open[key] = mesh
        return mesh


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
