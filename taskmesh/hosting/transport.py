"""The transport of a mesh: the port that its settings ask for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from taskmesh.config import Config
from taskmesh.errors import TaskMeshError
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor, SlotSettings

if TYPE_CHECKING:
    from taskmesh.client.port.port import SubmitPort
    from taskmesh.client.port.shell import OpenTasks

_SELF = "/proc/self/exe"


def open_port(open_tasks: OpenTasks, config: Config, role: str = "client", slot: str = "") -> SubmitPort:
    """Make the port, to be started at once. ZeroMQ is imported only where sockets are needed.

    Args:
        open_tasks: the client's pending table.
        config: the user's settings.
        role: the role whose key is shown to a hub at an address.
        slot: pool and process of the slot in which this runs, for a task that submits tasks.

    Raises:
        TaskMeshError: the port must start processes and knows no interpreter.
    """
    if config.mesh.address:
        from taskmesh.client.port.remote_port import RemotePort

        return RemotePort(open_tasks, config, role=role, slot=slot)
    _refuse_without_interpreter()
    if config.mesh.hub == "process":
        from taskmesh.hosting.child_hub import ChildHubPort

        return ChildHubPort(open_tasks, config)
    fork_server = None
    if config.mesh.local_pool:  # comes up while the rest is imported
        fork_server = ForkServerSupervisor(SlotSettings.of(config.pool, "local"))
    try:
        from taskmesh.hosting.embedded import EmbeddedPort

        return EmbeddedPort(open_tasks, config, fork_server)
    except BaseException:
        if fork_server is not None:
            fork_server.reap()
        raise


def _refuse_without_interpreter() -> None:
    """Refuse a program whose executable is no interpreter.

    A frozen one (PyInstaller) would start itself instead of a slot, which opens a mesh, and so on.
    """
    known = sys.executable
    if not known or (getattr(sys, "frozen", False) and os.path.realpath(known) == os.path.realpath(_SELF)):
        raise TaskMeshError(
            f"a mesh cannot be opened here: sys.executable is {known!r}, which is no Python interpreter, and "
            "tasks run in interpreters. Set sys.executable to one that has this program's modules, or "
            "use the address of a hub"
        )
