"""A client's link to a hub: one DEALER, dialled anew when the hub is lost."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
from collections import deque
from collections.abc import Sequence

from taskmesh.core.events import FromHubToClient, LinkCut, LinkLost
from taskmesh.errors import RemoteProtocolError
from taskmesh.framing.fragments import Assembler, Cutter
from taskmesh.framing.frames import encode, to_client
from taskmesh.net import socket_profiles as profiles
from taskmesh.net.endpoints import Target, targets
from taskmesh.net.handshake import Handshakes
from taskmesh.net.socket_profiles import BATCH
from taskmesh.security.keys import Credentials
from taskmesh.security.payload_signing import Lookup, PayloadSigner
from taskmesh.sockets import Context, Dealer, SocketError
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.wire import messages as m

_log = logging.getLogger("taskmesh")

HELLOS = 2
"""Unanswered Hellos after which the next address is dialled: where nobody answers they only gather."""


class GatewayLink:
    """The way to the hub. Addresses are dialled in turn, in order; a move to another is logged.

    Where no socket is to be had, what is sent goes nowhere until the machine says Hello again.

    Args:
        events: the client shell's. client: the session's number. specs_of: specs that travelled before.
        credentials: a client's or an operator's, where keys are in use.

    Raises:
        SocketError: no socket is to be had at the start.
    """

    def __init__(
        self,
        context: Context,
        loop: Loop,
        addresses: Sequence[str],
        events: deque[object],
        *,
        client: int,
        specs_of: Lookup,
        credentials: Credentials | None = None,
    ) -> None:
        self._context = context
        self._loop = loop
        self._targets = targets(addresses, credentials)
        self._credentials = credentials
        self._seal = PayloadSigner(credentials.mesh_keys) if credentials is not None else None
        self._client = client
        self._specs_of = specs_of
        self._handshakes = Handshakes(loop, credentials, len(self._targets), self._refused, self._cut)
        self._events = events
        self._turn = 0
        self._unanswered = 0
        self._dial_at = 0.0
        self._welcomed_by = ""
        self.refused = 0
        self._cutter = Cutter(secrets.randbits(63))
        self._assembler = Assembler()
        self._socket: Dealer | None = self._new_socket()
        self._dial()

    @property
    def _target(self) -> Target:
        return self._targets[self._turn % len(self._targets)]

    def _new_socket(self) -> Dealer:
        pair = self._credentials.pair if self._credentials is not None else None
        socket = Dealer(self._context, self._target.options(profiles.TO_GATEWAY, pair))
        try:
            self._handshakes.watch(socket, self._target)
        except BaseException:
            socket.close(linger_ms=0)
            raise
        self._loop.watch(socket.raw, self._arrived)
        return socket

    def _dial(self) -> None:
        """Connects, unless there is to be a rest first: what is sent until then goes nowhere."""
        if self._socket is not None and monotonic() >= self._dial_at:
            self._dial_at = 0.0
            self._socket.connect(self._target.hub.gateway)

    def _refused(self, dead: bool) -> None:
        """A handshake has failed: another way is tried, or this one anew, or there is none."""
        if self._handshakes.rejection:
            self._dial_at = math.inf
            self._renew()
            self._events.append(FromHubToClient(m.ClientRefused(self._handshakes.rejection)))
        elif dead or len(self._targets) > 1 or self._handshakes.backoff:
            self._dial_at = monotonic() + self._handshakes.backoff
            self._renew()
            self._events.append(LinkLost())

    def _cut(self) -> None:
        self._events.append(LinkCut())

    def send(self, message: m.ClientMessage) -> None:
        """To the hub, or into the link's queue while it is being made."""
        if self._dial_at:
            self._dial()
        if isinstance(message, m.ClientHello):
            if self._unanswered >= HELLOS:
                self.reconnect()
            elif self._socket is None:
                self._renew()
                self._dial()
            self._unanswered += not self._dial_at
        elif self._seal is not None and isinstance(message, m.Submit):
            message = self._seal.submit(message, self._client, self._specs_of)
        if self._socket is not None:
            for frames in self._cutter.cut(encode(message)):
                if not self._socket.try_send_parts(frames):
                    return

    def reconnect(self) -> None:
        """Drops the link with all that waits in it, and dials the next address."""
        self._turn += 1
        self._renew()
        self._dial()

    def _renew(self) -> None:
        self.close(linger_ms=0)
        self._unanswered = 0
        with contextlib.suppress(SocketError):
            self._socket = self._new_socket()

    def _arrived(self) -> None:
        self._unanswered = 0
        for frames in self._socket.recv_parts_many(BATCH) if self._socket is not None else ():
            try:
                whole = self._assembler.whole(frames, monotonic())
                if whole is None:
                    continue
                message = to_client.decode(whole)
            except RemoteProtocolError:
                self.refused += 1
                continue
            if self._seal is not None and isinstance(message, m.Deliver):
                message = self._seal.deliver(message)
            if type(message) is m.ClientWelcome:
                self._welcomed(self._target.hub.gateway)
            self._events.append(FromHubToClient(message))

    def _welcomed(self, address: str) -> None:
        """Tells when it is another hub than before: what has not ended there is submitted again."""
        if self._welcomed_by not in ("", address):
            _log.warning(
                "the hub at %s does not answer: this client has moved to %s and submits again there what has "
                "not ended",
                self._welcomed_by,
                address,
            )
        self._welcomed_by = address

    def close(self, linger_ms: int | None = None) -> None:
        """Closes the link; what was just sent has a second to leave, unless `linger_ms` says otherwise."""
        self._handshakes.unwatch()
        self._assembler = Assembler()
        socket, self._socket = self._socket, None
        if socket is not None:
            self._loop.unwatch(socket.raw)
            socket.close(linger_ms)
