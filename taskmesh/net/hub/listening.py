"""Where sockets of a hub listen: cut off all that came in and listen again; ports for lanes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket as sockets
import struct
from collections import deque

from taskmesh.errors import ConfigError
from taskmesh.net.endpoints import is_local, refuse_taken, tcp_parts
from taskmesh.net.wires import BACKLOG
from taskmesh.sockets import EndpointError, Socket

LANES = (5600, 6799)
"""Ports of lanes beyond loopback, so that a firewall can be told of them."""


_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""Linux: SO_ATTACH_FILTER, SO_DETACH_FILTER."""
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A filter of one step, which keeps nothing of a packet."""


class Listeners:
    """Bound sockets, and those whose address is on its way back from the kernel.

    Attributes:
        shut: who dials over tcp is not answered for now; the kernel on the other side tries again by itself.
    """

    def __init__(self) -> None:
        self.shut = False
        self._queue = BACKLOG
        self._at: dict[Socket, str] = {}
        self._waiting: dict[Socket, str] = {}
        self._doors: dict[Socket, sockets.socket] = {}

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
        self._find_door(socket)

    def cut_off(self, socket: Socket) -> None:
        """Closes every connection that came in, and listens again as soon as that is possible."""
        endpoint = self._at[socket]
        if socket not in self._waiting:
            if (door := self._doors.pop(socket, None)) is not None:
                door.close()
            socket.unbind(endpoint)
            self._waiting[socket] = endpoint
        self.listen_again()

    def listen_again(self) -> None:
        """Binds what was cut off. libzmq closes the former listener in its own time."""
        for socket, endpoint in list(self._waiting.items()):
            with contextlib.suppress(EndpointError):
                socket.bind(endpoint)
                del self._waiting[socket]
                self._find_door(socket)

    # --- the door: the kernel's own socket, to which libzmq gives no access --------------------------------

    def let_wait(self, connections: int) -> None:
        """Has at most so many connections wait to be accepted at each listener, unless it has fewer."""
        self._queue = connections
        for door in self._doors.values():
            self._prepare(door)

    def shut_door(self) -> None:
        """Has the kernel drop whatever comes to the listeners. Connections are not affected.

        The listeners stay: libzmq would end every connection of a socket that it unbinds.
        """
        self.shut = True
        for door in self._doors.values():
            _drop_all(door)

    def open_door(self) -> None:
        """Lets in again whoever dials."""
        self.shut = False
        for door in self._doors.values():
            with contextlib.suppress(OSError):
                door.setsockopt(sockets.SOL_SOCKET, _DETACH_FILTER, 0)

    def _find_door(self, socket: Socket) -> None:
        endpoint = self._at[socket]
        if not endpoint.startswith("tcp://"):
            return
        door = _listening(tcp_parts(endpoint)[1])
        if door is not None:
            self._doors[socket] = door
            self._prepare(door)

    def _prepare(self, door: sockets.socket) -> None:
        if self._queue < BACKLOG:
            door.listen(self._queue)
        if self.shut:
            _drop_all(door)

    def close(self) -> None:
        """Lets go of the doors."""
        for door in self._doors.values():
            door.close()
        self._doors.clear()


def _drop_all(door: sockets.socket) -> None:
    steps = ctypes.create_string_buffer(_DROP)
    with contextlib.suppress(OSError):  # there is no such thing here: then it is only said
        door.setsockopt(sockets.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(steps)))


def _listening(port: int) -> sockets.socket | None:
    """The socket of this process that listens at a port, by a descriptor of its own."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    found = sockets.socket(fileno=os.dup(int(name)))
                    if _listens(found, port):
                        return found
                    found.close()
    return None


def _listens(found: sockets.socket, port: int) -> bool:
    with contextlib.suppress(OSError):
        if found.family in (sockets.AF_INET, sockets.AF_INET6) and found.getsockname()[1] == port:
            return bool(found.getsockopt(sockets.SOL_SOCKET, sockets.SO_ACCEPTCONN))
    return False


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
