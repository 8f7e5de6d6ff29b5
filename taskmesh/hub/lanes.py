"""The hub's ends of lanes: a bound PUSH for each session of a pool, and the ports for them."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence

from taskmesh.errors import ConfigError
from taskmesh.link.endpoints import is_local, refuse_taken, tcp_parts
from taskmesh.sockets import EndpointError, Push, Sendable, Socket

LANE_PORTS = (5600, 6799)
"""Ports of lanes beyond loopback, so that a firewall can be configured for them."""


class LaneLink:
    """One lane: a bound PUSH whose only peer is the pool's PULL; keeps messages until the pool has dialled.

    Attributes:
        socket: the PUSH.
        pool: the pool's name.
        waiting: messages that are kept.
        linked: True once the pool has dialled.
        lost: True once the pool's link has gone.
    """

    def __init__(self, socket: Push, pool: str) -> None:
        self.socket = socket
        self.pool = pool
        self.waiting: deque[Sequence[Sendable]] = deque()
        self.linked = False
        self.lost = False

    def push(self, frames: Sequence[Sendable]) -> bool:
        """Send a message, or keep it where nobody is there; return False when it was kept."""
        if not self.waiting and self.socket.try_send_parts(frames):
            return True
        self.waiting.append(frames)
        return False

    def flush(self) -> bool:
        """Send the messages that were kept; return True when none is left."""
        self.linked = True
        while self.waiting:
            if not self.socket.try_send_parts(self.waiting[0]):
                return False
            self.waiting.popleft()
        return True


class LanePorts:
    """Ports for lanes; the one that has been free longest is used first.

    Args:
        text: "5600-6799"; empty for any port on loopback, and LANE_PORTS elsewhere.

    Raises:
        ConfigError: the text is no range.
    """

    def __init__(self, text: str = "") -> None:
        self._given = bool(text)
        first, last = parse_range(text) if text else LANE_PORTS
        self._free = deque(range(first, last + 1))
        self._taken: dict[int, int] = {}

    def bind(self, socket: Socket, session: int, gateway: str) -> str:
        """Bind the socket on the gateway's host; return the port.

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
        """Free the port of a lane that was closed; it comes last in the queue."""
        port = self._taken.pop(session, None)
        if port is not None:
            self._free.append(port)


def bind_path(socket: Socket, endpoint: str) -> str:
    """Listen at an ipc endpoint; return it.

    Raises:
        EndpointError: somebody listens there, or the path is no socket.
    """
    refuse_taken(endpoint)
    return socket.bind(endpoint)


def parse_range(text: str) -> tuple[int, int]:
    """Return first and last port of a range.

    Raises:
        ConfigError: the text is no range of ports.
    """
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdecimal() and last.strip().isdecimal()):
        raise ConfigError(f"{text!r} is no range of ports: write it like 5600-6799")
    if not 1 <= int(first) <= int(last) <= 65535:
        raise ConfigError(f"{text!r}: ports go from 1 to 65535, the smaller one first")
    return int(first), int(last)
