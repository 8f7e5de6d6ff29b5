"""The transport of a mesh: the port that its settings ask for, and its middleware on the way into slots."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskmesh.config import Config
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.pool.slots.fork_server_client import NO_OPTIONS, ForkServerSupervisor, SlotOptions, SlotSettings
from taskmesh.pool.slots.middleware import BY_VALUE
from taskmesh.serialize.code import dump_function

if TYPE_CHECKING:
    from taskmesh.client.port.port import SubmitPort
    from taskmesh.client.port.shell import OpenTasks

MOST_BYTES: Final = 100_000
"""Of the references of a mesh's middleware: they are words of a command line, which may have 128 KiB."""
_SELF: Final = "/proc/self/exe"


def open_port(
    open_tasks: OpenTasks,
    config: Config,
    role: str = "client",
    slot: str = "",
    *,
    options: SlotOptions = NO_OPTIONS,
) -> SubmitPort:
    """Make the port, to be started at once. ZeroMQ is imported only where sockets are needed.

    Args:
        open_tasks: the client's pending table.
        config: the user's settings.
        role: the role whose key is shown to a hub at an address.
        slot: pool and process of the slot in which this runs, for a task that submits tasks.
        options: of the slots, if they are children of this process.

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
        fork_server = ForkServerSupervisor(SlotSettings.of(config.pool, "local", options))
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


def with_middleware(config: Config, middleware: Sequence[object]) -> Config:
    """Return the settings of a mesh with this middleware in the slots of its own.

    Raises:
        ConfigError: it is too large to be handed to processes as they start.
        SerializationError: it cannot travel.
    """
    if not middleware or config.mesh.address:
        return config
    references = tuple(_reference(each) for each in middleware)
    size = sum(map(len, references))
    if size > MOST_BYTES:
        raise ConfigError(
            f"the middleware of a mesh has {size:,} bytes as text, and {MOST_BYTES:,} is the most: load what "
            "is large in process_start()"
        )
    pool = replace(config.pool, middleware=(*config.pool.middleware, *references))
    return replace(config, pool=pool)


def _reference(middleware: object) -> str:
    """Return text that leads a slot to a middleware, which travels by value."""
    return BY_VALUE + b64encode(dump_function(lambda: middleware)).decode()
