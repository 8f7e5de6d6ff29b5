"""Where sockets of a hub listen: cut off all that came in and listen again; ports for lanes."""

from __future__ import annotations

import contextlib
import errno
from collections import deque

from taskmesh.errors import ConfigError
from taskmesh.net.endpoints import is_local, refuse_taken, tcp_parts
from taskmesh.sockets import EndpointError, Socket

LANES = (5600, 6799)
"""Ports of lanes beyond loopback, so that a firewall can be told of them."""


class Listeners:
    """Bound sockets, and those whose address is on its way back from the kernel."""

    def __init__(self) -> None:
        self._at: dict[Socket, str] = {}
        self._waiting: dict[Socket, str] = {}

    @property
    def waiting(self) -> bool:
        """Whether a socket does not listen yet that should."""
        return bool(self._waiting)

    def bind(self, socket: Socket, endpoint: str) -> None:
        """Listens.

        Raises:
            EndpointError: the endpoint is taken.
        """
        self._at[socket] = socket.bind(endpoint)

    def cut_off(self, socket: Socket) -> None:
        """Closes every connection that came in, and listens again as soon as that is possible."""
        endpoint = self._at[socket]
        if socket not in self._waiting:
            socket.unbind(endpoint)
            self._waiting[socket] = endpoint
        self.listen_again()

    def listen_again(self) -> None:
        """Binds what was cut off. libzmq closes the former listener in its own time."""
        for socket, endpoint in list(self._waiting.items()):
            with contextlib.suppress(EndpointError):
                socket.bind(endpoint)
                del self._waiting[socket]


class PortRange:
    """Ports for lanes, the one that has been free longest first.

    Args:
        text: "5600-6799"; empty for any port on loopback, and LANES elsewhere.

    Raises:
        ConfigError: the text is no range.
    """

    def __init__(self, text: str = "") -> None:
        self._given = bool(text)
        first, last = parsed(text) if text else LANES
        self._free = deque(range(first, last + 1))
        self._taken: dict[int, int] = {}

    def bind(self, socket: Socket, session: int, gateway: str) -> str:
        """Binds the socket on the gateway's host; returns the port.

        Raises:
            EndpointError: every port is taken.
        """
        host, _ = tcp_parts(gateway)
        if not self._given and is_local(gateway):
            return str(tcp_parts(socket.bind(f"tcp://{host}:*"))[1])
        for _ in range(len(self._free)):
            port = self._free.popleft()
            try:
                socket.bind(f"tcp://{host}:{port}")
            except EndpointError as error:
                self._free.append(port)
                if error.number != errno.EADDRINUSE:
                    raise
            else:
                self._taken[session] = port
                return str(port)
        raise EndpointError(
            "every port for lanes is taken: give more with --lanes FIRST-LAST", errno.EADDRINUSE
        )

    def release(self, session: int) -> None:
        """A lane is closed; its port comes last in the queue."""
        port = self._taken.pop(session, None)
        if port is not None:
            self._free.append(port)


def bind_path(socket: Socket, endpoint: str) -> str:
    """Listens at an ipc endpoint; returns it.

    Raises:
        EndpointError: somebody listens there, or the path is no socket's.
    """
    refuse_taken(endpoint)
    return socket.bind(endpoint)


def parsed(text: str) -> tuple[int, int]:
    """First and last port of a range.

    Raises:
        ConfigError: it is none.
    """
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdecimal() and last.strip().isdecimal()):
        raise ConfigError(f"{text!r} is no range of ports: write it like 5600-6799")
    if not 1 <= int(first) <= int(last) <= 65535:
        raise ConfigError(f"{text!r}: ports go from 1 to 65535, the smaller one first")
    return int(first), int(last)
