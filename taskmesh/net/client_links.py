"""A client's link to a hub: one DEALER, dialled anew when the hub is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from taskmesh.core.events import FromHubToClient
from taskmesh.errors import RemoteProtocolError
from taskmesh.net import wires
from taskmesh.net.hub_links import BATCH
from taskmesh.net.loop import Loop
from taskmesh.sockets import Context, Dealer
from taskmesh.wire import messages as m
from taskmesh.wire.frames import encode, to_client

HELLOS = 2
"""Unanswered Hellos after which the next address is dialled: where nobody answers they only gather."""


class GatewayLink:
    """The way to the hub. `events`: the client shell's. Addresses are dialled in turn, in order."""

    def __init__(self, context: Context, loop: Loop, addresses: Sequence[str], events: deque[object]) -> None:
        self._context = context
        self._loop = loop
        self._addresses = list(addresses)
        self._events = events
        self._turn = 0
        self._unanswered = 0
        self.refused = 0
        self._socket = self._dial()

    def _dial(self) -> Dealer:
        socket = Dealer(self._context, wires.TO_GATEWAY)
        socket.connect(self._addresses[self._turn % len(self._addresses)])
        self._loop.watch(socket.raw, self._arrived)
        return socket

    def send(self, message: m.ClientMessage) -> None:
        """To the hub, or into the link's queue while it is being made."""
        if isinstance(message, m.ClientHello):
            if self._unanswered >= HELLOS:
                self.reconnect()
            self._unanswered += 1
        self._socket.try_send_parts(encode(message))

    def reconnect(self) -> None:
        """Drops the link with all that waits in it, and dials the next address."""
        self._loop.unwatch(self._socket.raw)
        self._socket.close(linger_ms=0)
        self._turn += 1
        self._unanswered = 0
        self._socket = self._dial()

    def _arrived(self) -> None:
        self._unanswered = 0
        for frames in self._socket.recv_parts_many(BATCH):
            try:
                self._events.append(FromHubToClient(to_client.decode(frames)))
            except RemoteProtocolError:
                self.refused += 1

    def close(self, linger_ms: int | None = None) -> None:
        """Closes the link; what was just sent has a second to leave, unless `linger_ms` says otherwise."""
        self._loop.unwatch(self._socket.raw)
        self._socket.close(linger_ms)
