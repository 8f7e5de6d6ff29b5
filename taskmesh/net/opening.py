"""Which port a mesh's settings ask for."""

from __future__ import annotations

from taskmesh.config import Config
from taskmesh.ports import OutcomeSink, SubmitPort


def open_port(sink: OutcomeSink, config: Config) -> SubmitPort:
    """Makes the port; opens nothing. ZeroMQ is imported only where sockets are needed."""
    if config.mesh.address:
        from taskmesh.net.remote import RemotePort

        return RemotePort(sink, config)
    if config.mesh.hub == "process":
        from taskmesh.net.launch import LaunchedPort

        return LaunchedPort(sink, config)
    from taskmesh.net.embedded import EmbeddedPort

    return EmbeddedPort(sink, config)
