"""A client's link to a hub: one DEALER, dialled anew when the hub is lost."""

from __future__ import annotations

import secrets
from collections import deque

from taskmesh.core.events import FromHubToClient, LinkCut, LinkLost
from taskmesh.errors import RemoteProtocolError
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.dialer import Dialer
from taskmesh.link.endpoints import Endpoints, Target
from taskmesh.link.socket_profiles import BATCH
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.fragments import Assembler, Cutter
from taskmesh.messages.frames import encode, to_client
from taskmesh.security.keys import Credentials
from taskmesh.security.payload_signing import ClientSigner
from taskmesh.sockets import Context, Dealer, Socket
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop

HELLOS = 2
"""Unanswered Hellos, one a second, after which the hub is dialled anew, with its next key."""


class GatewayLink:
    """The link to the hub.

    Args:
        context: makes the socket.
        loop: watches it.
        address: the hub's gateway.
        events: the client shell's.
        credentials: a client's or an operator's, where keys are in use.
        signer: signs calls and verifies outcomes, where keys are in use.

    Attributes:
        refused: number of messages that could not be decoded.

    Raises:
        SocketError: no socket can be made at the start.
    """

    def __init__(
        self,
        context: Context,
        loop: Loop,
        address: str,
        events: deque[object],
        *,
        credentials: Credentials | None = None,
        signer: ClientSigner | None = None,
    ) -> None:
        self.refused = 0
        self._context = context
        self._loop = loop
        self._signer = signer
        self._events = events
        self._cutter = Cutter(secrets.randbits(63))
        self._assembler = Assembler()
        self._socket: Dealer | None = None
        self._dialer = Dialer(loop, address, credentials, self, hellos=HELLOS, most_hellos=HELLOS, final=True)
        self._dialer.start()

    @property
    def refused_since(self) -> float:
        return self._dialer.refused_since

    # --- the dialer's sockets -------------------------------------------------------------------------------

    def open_sockets(self, target: Target) -> Socket:
        socket = self._socket = Dealer(self._context, self._dialer.options(profiles.TO_GATEWAY))
        self._loop.watch(socket.raw, self._arrived)
        return socket

    def connect(self, hub: Endpoints) -> None:
        if self._socket is not None:
            self._socket.connect(hub.gateway)

    def close_sockets(self, linger_ms: int | None) -> None:
        self._assembler = Assembler()
        socket, self._socket = self._socket, None
        if socket is not None:
            self._loop.unwatch(socket.raw)
            socket.close(linger_ms)

    def on_lost(self) -> None:
        rejection = self._dialer.rejection
        self._events.append(FromHubToClient(m.ClientRefused(rejection)) if rejection else LinkLost())

    def on_cut(self) -> None:
        self._events.append(LinkCut())

    # --- the shell's link -----------------------------------------------------------------------------------

    def send(self, message: m.ClientMessage) -> None:
        """Send a message to the hub, or put it into the link's queue while the link is being made."""
        if isinstance(message, m.ClientHello):
            self._dialer.hello()
        elif self._signer is not None:
            message = self._signer.signed(message)
        if self._socket is not None:
            for frames in self._cutter.cut(encode(message)):
                if not self._socket.try_send_parts(frames):
                    return

    def reconnect(self) -> None:
        """Drop the link with all that waits in it, and dial the hub anew, with its next key."""
        self._dialer.reconnect()

    def _arrived(self) -> None:
        self._dialer.is_heard = True
        for frames in self._socket.recv_parts_many(BATCH) if self._socket is not None else ():
            try:
                whole = self._assembler.whole(frames, monotonic())
                if whole is None:
                    continue
                message = to_client.decode(whole)
            except RemoteProtocolError:
                self.refused += 1
                continue
            if self._signer is not None:
                message = self._signer.verified(message)
            self._events.append(FromHubToClient(message))

    def close(self, linger_ms: int | None = None) -> None:
        """Close the link; the last messages have a second to leave, unless `linger_ms` says otherwise."""
        self._dialer.close(linger_ms)
