"""The dialer of a client or a pool: it decides which target is dialled, and when.

A hub's address is dialled with each key that it may have, in turn: the next one after a handshake that
failed, and after unanswered Hellos, for libzmq gives up a link that has met something else than ZeroMQ,
without a word.
"""

from __future__ import annotations

import contextlib
import math
from typing import Protocol

from taskmesh.link.endpoints import Endpoints, Target, targets
from taskmesh.link.handshake import Handshakes
from taskmesh.security.keys import Credentials
from taskmesh.sockets import Socket, SocketError, SocketOptions
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop


class Sockets(Protocol):
    """The sockets to a hub, which a dialer has opened, connected, and closed again."""

    def open_sockets(self, target: Target) -> Socket:
        """Open the sockets for a target, unconnected; return the one whose handshakes are to be watched.

        Raises:
            SocketError: a socket cannot be made; none is open then.
        """
        ...

    def connect(self, hub: Endpoints) -> None: ...

    def close_sockets(self, linger_ms: int | None) -> None:
        """Close the open sockets; None for the linger of their profiles."""
        ...

    def on_lost(self) -> None:
        """Take note that the link is lost; unless a rejection is final, another one is being dialled."""
        ...

    def on_cut(self) -> None:
        """Take note that the link was interrupted; libzmq dials it again."""
        ...


class Dialer:
    """Dials a hub's targets, with back-off.

    While no socket can be made, or during a back-off, messages go nowhere: the machines repeat them.

    Args:
        loop: watches the sockets' monitors.
        address: the hub's gateway.
        credentials: the program's, where keys are in use.
        sockets: the sockets that are dialled with.
        hellos: number of unanswered Hellos after which the next target is dialled.
        most_hellos: bound of that number, which doubles each time; where a message takes 300 ms, a link is up
            only after two seconds.
        final: True if a rejection is final: nothing is dialled after it.

    Attributes:
        is_heard: to be set whenever the hub has answered (a call would be one of a lone trip's hundred).
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        credentials: Credentials | None,
        sockets: Sockets,
        *,
        hellos: int,
        most_hellos: int,
        final: bool = False,
    ) -> None:
        self._targets = targets(address, credentials)
        self._pair = credentials.pair if credentials is not None else None
        self._handshakes = Handshakes(loop, credentials, len(self._targets), self._on_failure, sockets.on_cut)
        self._sockets = sockets
        self._hellos = self._patience = hellos
        self._most_hellos = most_hellos
        self._final = final
        self._turn = 0
        self._dial_at = 0.0  # 0: it is dialled
        self._unanswered = 0
        self._is_open = self._is_asked = False
        self.is_heard = False

    @property
    def target(self) -> Target:
        return self._targets[self._turn % len(self._targets)]

    @property
    def is_up(self) -> bool:
        return self._handshakes.is_up

    @property
    def refused_since(self) -> float:
        """The time since which connections are refused; infinite if the last one came about."""
        return self._handshakes.refused_since

    @property
    def rejection(self) -> str:
        """The reason why every target rejects this program, or ""."""
        return self._handshakes.rejection

    def options(self, profile: SocketOptions) -> SocketOptions:
        return self.target.options(profile, self._pair)

    def start(self) -> None:
        """Open the sockets and dial the first target.

        Raises:
            SocketError: a socket cannot be made.
        """
        self._open()
        self._dial()

    def hello(self) -> None:
        """Prepare the link for a Hello; to be called before each of them is sent."""
        if self.is_heard:
            self.is_heard, self._unanswered, self._patience = False, 0, self._hellos
        if not self._is_open:
            self._reopen()
        elif self._dial_at:
            self._dial()
        elif self._unanswered >= self._patience:
            self._patience = min(2 * self._patience, self._most_hellos)
            self.redial()
        self._unanswered += not self._dial_at
        self._is_asked = True

    def reconnect(self) -> None:
        """Dial the next target, unless this link is so new that no Hello was sent over it."""
        if self._is_asked:
            self.redial()

    def redial(self, *, move: bool = True, at: float = 0.0) -> None:
        """Drop the link with all that waits in it, and dial anew.

        Args:
            move: True to dial the next target.
            at: the earliest time for it.
        """
        self._turn += move
        self._dial_at = at
        self.close(linger_ms=0)
        self._reopen()

    def close(self, linger_ms: int | None = None) -> None:
        self._handshakes.unwatch()
        if self._is_open:
            self._is_open = False
            self._sockets.close_sockets(linger_ms)

    def _open(self) -> None:
        self._unanswered, self._is_asked = 0, False
        watched = self._sockets.open_sockets(self.target)
        self._is_open = True
        try:
            self._handshakes.watch(watched, self.target)
        except BaseException:
            self.close(linger_ms=0)
            raise

    def _reopen(self) -> None:
        with contextlib.suppress(SocketError):  # the next Hello tries again
            self._open()
        self._dial()

    def _dial(self) -> None:
        """Connect, unless there is a back-off."""
        if self._is_open and monotonic() >= self._dial_at:
            self._dial_at = 0.0
            self._sockets.connect(self.target.hub)

    def _on_failure(self, dead: bool) -> None:
        """Dial another target after a failed handshake, or this one anew; stop after a final rejection."""
        if self._final and self._handshakes.rejection:
            self._dial_at = math.inf
            self.close(linger_ms=0)
        elif dead or len(self._targets) > 1 or self._handshakes.backoff:
            self.redial(at=monotonic() + self._handshakes.backoff)
        else:
            return  # libzmq dials again
        self._sockets.on_lost()
