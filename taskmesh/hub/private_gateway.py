"""The gateway of a hub for this user's own processes: for tasks in slots that submit tasks, and for a parent.

It is opened when it is first asked for: that of an embedded hub when the first task in a slot submits tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmesh.core.actions import SendClient
from taskmesh.system.loop import Loop

if TYPE_CHECKING:
    from taskmesh.hub.shell import OwnPeers
    from taskmesh.hub.sockets import HubSockets
    from taskmesh.sockets import Context


class PrivateGateway:
    """A gateway that only this user's processes can reach, without keys: ipc, in a folder of mode 0700.

    Args:
        loop: the hub's loop.
        own: the client and the pool in the same loop.
        address: its address, in a folder that its maker removes; by default in one of its own.
    """

    def __init__(self, loop: Loop, own: OwnPeers, address: str = "") -> None:
        self._loop = loop
        self._own = own
        self._address = address
        self._context: Context | None = None
        self._sockets: HubSockets | None = None
        self._folder = ""

    def address(self) -> str:
        """Return the address at which own processes reach the hub; open the sockets at the first call.

        Raises:
            ConfigError: there is no folder for the sockets.
            SocketError: they cannot be made.
        """
        if self._sockets is None:
            try:
                self._sockets = self._open()
            except BaseException:
                self.close()
                raise
        return self._sockets.endpoints.gateway

    def _open(self) -> HubSockets:
        from taskmesh.hub.sockets import HubSockets
        from taskmesh.link.endpoints import Endpoints, private_folder
        from taskmesh.sockets import Context

        if self._address:
            endpoints = Endpoints.of(self._address)
        else:
            self._folder, endpoints = private_folder()
        self._context = Context()
        sockets = HubSockets(self._context, self._loop, self._own)
        sockets.bind(endpoints)
        return sockets

    def knows(self, client: int) -> bool:
        return self._sockets is not None and self._sockets.knows(client)

    def send_client(self, action: SendClient) -> None:
        if self._sockets is not None:
            self._sockets.send_client(action)

    def close(self) -> None:
        """Close the sockets, and remove their folder."""
        sockets, self._sockets = self._sockets, None
        context, self._context = self._context, None
        folder, self._folder = self._folder, ""
        if sockets is not None:
            sockets.close()
        if context is not None:
            context.close(force=True)
        if folder:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
