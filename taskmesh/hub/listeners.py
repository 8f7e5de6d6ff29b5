"""The sockets that peers of a hub dial: they can be cut off, bound again, and shut while files are short."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket as sockets
import struct

from taskmesh.link.endpoints import tcp_parts
from taskmesh.link.socket_profiles import BACKLOG
from taskmesh.sockets import EndpointError, Socket

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""Linux: SO_ATTACH_FILTER, SO_DETACH_FILTER."""
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter of one instruction, which drops every packet."""


class Listeners:
    """Bound sockets, and those whose address the kernel has not given back yet.

    libzmq gives no access to the listening descriptors, and would end every connection of a socket that it
    unbinds. So the listeners are shut by a packet filter, set over descriptors of our own.

    Attributes:
        are_shut: True while programs that dial over tcp get no answer; their kernel tries again by itself.
    """

    def __init__(self) -> None:
        self.are_shut = False
        self._queue = BACKLOG
        self._endpoints: dict[Socket, str] = {}
        self._waiting: dict[Socket, str] = {}
        self._descriptors: dict[Socket, sockets.socket] = {}

    @property
    def waiting(self) -> bool:
        """True if a socket that was cut off does not listen yet."""
        return bool(self._waiting)

    def bind(self, socket: Socket, endpoint: str) -> None:
        """Listen.

        Raises:
            EndpointError: the endpoint is taken.
        """
        self._endpoints[socket] = socket.bind(endpoint)
        self._find_descriptor(socket)

    def cut_off(self, socket: Socket) -> None:
        """Close every connection that came in, and listen again as soon as that is possible."""
        endpoint = self._endpoints[socket]
        if socket not in self._waiting:
            if (descriptor := self._descriptors.pop(socket, None)) is not None:
                descriptor.close()
            socket.unbind(endpoint)
            self._waiting[socket] = endpoint
        self.listen_again()

    def listen_again(self) -> None:
        """Bind the sockets that were cut off. libzmq closes the former listener in its own time."""
        for socket, endpoint in list(self._waiting.items()):
            with contextlib.suppress(EndpointError):
                socket.bind(endpoint)
                del self._waiting[socket]
                self._find_descriptor(socket)

    # --- the kernel's listening sockets ---------------------------------------------------------------------

    def limit_queue(self, connections: int) -> None:
        """Let at most so many connections wait to be accepted at each listener."""
        self._queue = connections
        for descriptor in self._descriptors.values():
            self._prepare(descriptor)

    def shut(self) -> None:
        """Have the kernel drop whatever comes to the listeners. Connections are not affected."""
        self.are_shut = True
        for descriptor in self._descriptors.values():
            _drop_all(descriptor)

    def open(self) -> None:
        self.are_shut = False
        for descriptor in self._descriptors.values():
            with contextlib.suppress(OSError):
                descriptor.setsockopt(sockets.SOL_SOCKET, _DETACH_FILTER, 0)

    def _find_descriptor(self, socket: Socket) -> None:
        endpoint = self._endpoints[socket]
        if not endpoint.startswith("tcp://"):
            return
        descriptor = _listening_at(tcp_parts(endpoint)[1])
        if descriptor is not None:
            self._descriptors[socket] = descriptor
            self._prepare(descriptor)

    def _prepare(self, descriptor: sockets.socket) -> None:
        if self._queue < BACKLOG:
            descriptor.listen(self._queue)
        if self.are_shut:
            _drop_all(descriptor)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            descriptor.close()
        self._descriptors.clear()


def _drop_all(descriptor: sockets.socket) -> None:
    steps = ctypes.create_string_buffer(_DROP)
    with contextlib.suppress(OSError):  # no such filter in this kernel: then the shortage is only logged
        descriptor.setsockopt(
            sockets.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(steps))
        )


def _listening_at(port: int) -> sockets.socket | None:
    """Return the socket of this process that listens at a port, with a descriptor of its own."""
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
