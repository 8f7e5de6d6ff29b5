"""Which port a mesh's settings ask for."""

from __future__ import annotations

import sys

from taskmesh.config import Config
from taskmesh.pool.nursery import Nursery
from taskmesh.pool.platforms import here
from taskmesh.ports import OutcomeSink, SubmitPort


def open_port(sink: OutcomeSink, config: Config) -> SubmitPort:
    """Makes the port, to be started at once. ZeroMQ is imported only where sockets are needed."""
    if config.mesh.address:
        from taskmesh.net.remote import RemotePort

        return RemotePort(sink, config)
    if config.mesh.hub == "process":
        from taskmesh.net.launch import LaunchedPort

        return LaunchedPort(sink, config)
    only = config.pool.only_registered
    nursery = Nursery(here(), list(sys.path), "local", only, only)  # comes up while the rest is imported
    try:
        from taskmesh.net.embedded import EmbeddedPort

        return EmbeddedPort(sink, config, nursery)
    except BaseException:
        nursery.bury()
        raise
