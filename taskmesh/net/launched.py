"""The child process of a launched mesh: a hub with a pool, until its parent ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

from taskmesh.config import load
from taskmesh.errors import TaskMeshError
from taskmesh.net.endpoints import Endpoints
from taskmesh.net.programs import run_hub


def serve(
    settings: dict[str, dict[str, object]], bind: str, folder: str, parent: int, report: int = -1
) -> None:
    """Runs a hub with a pool.

    Args:
        settings: sections of the configuration. bind: the gateway.
        folder: removed in the end, because the parent may be gone by then.
        parent: the process that this one ends with.
        report: a descriptor that tells the parent why this process ends, by being closed if not in words.
    """
    if report >= 0:
        os.set_inheritable(report, False)
    config = load(settings, environ={})

    def ready(endpoints: Endpoints) -> None:
        """The parent's client finds out by itself."""

    def record(kind: str, fields: dict[str, object]) -> None:
        """The hub keeps its events for those who ask."""

    slots = config.pool.slots
    try:
        run_hub(config, bind, slots=slots, name="local", ready=ready, record=record, parent=parent)
    except TaskMeshError as error:
        if report >= 0:
            with contextlib.suppress(OSError):  # the parent is gone
                os.write(report, str(error).encode(errors="backslashreplace"))
        sys.exit(f"taskmesh: the hub process of a mesh cannot go on: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
