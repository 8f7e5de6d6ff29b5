"""A hub in a loop: its machine, and its links to a client and a pool in the same loop and to own processes.

Nothing listens for others until it is given sockets, as a `taskmesh.hub.listening_hub.ListeningHub` is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from taskmesh.core.actions import Publish, PushTasks, SendClient
from taskmesh.core.events import FromHub, FromHubToClient
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.private_gateway import PrivateGateway
from taskmesh.hub.shell import HubShell, WallClock
from taskmesh.security.payload_signing import ClientSigner, PayloadSigner
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop

if TYPE_CHECKING:
    from taskmesh.hub.journal.journal import HubJournal
    from taskmesh.hub.sockets import HubSockets

Record = Callable[[str, dict[str, object]], None]


class Intake(Protocol):
    """The events of a machine, to which a link appends."""

    def append(self, event: object, /) -> None: ...


class OwnClient(NamedTuple):
    """A client in the hub's own loop: its id, its events, and its signatures where a mesh key is in use."""

    client: int
    events: Intake
    signer: ClientSigner | None


class OwnPool(NamedTuple):
    """A pool in the hub's own loop: its name, its events, and its signatures where a mesh key is in use."""

    name: str
    events: Intake
    signer: PayloadSigner | None


class LocalLinks:
    """HubLinks to a client and a pool in the hub's own loop, by its private gateway, and over its sockets.

    What comes is appended to `events`, and messages to client and pool in the loop to theirs: by reference.

    Args:
        loop: the hub's loop.
        record: logs events.
        private: the address of the private gateway, which opens at once; by default when it is asked for.

    Attributes:
        events: what comes to the hub.
        private: the gateway for own processes.
        client: the client in the same loop, once there is one.
        pool: the pool in the same loop, once there is one.
        sockets: the links to everybody else; None while nothing listens.
    """

    def __init__(self, loop: Loop, record: Record, private: str = "") -> None:
        self.events: deque[object] = deque()
        self.record = record
        self.private = PrivateGateway(loop, self, private)
        self.client: OwnClient | None = None
        self.pool: OwnPool | None = None
        self.sockets: HubSockets | None = None
        self._sessions: set[int] = set()  # of the pool in the same loop

    @property
    def signer(self) -> PayloadSigner | None:
        """Verifies tasks and signs results of the pool in the same loop, where keys are in use."""
        return None if self.sockets is None else self.sockets.signer

    def is_taken(self, client: int, sockets: object) -> bool:
        if self.client is not None and client == self.client.client:
            return True
        return sockets is self.sockets and self.private.knows(client)

    def has_pool(self, name: str) -> bool:
        return self.pool is not None and name == self.pool.name

    def has_session(self, session: int) -> bool:
        return session in self._sessions

    def push(self, action: PushTasks) -> None:
        pool, message = self.pool, action.message
        if pool is not None and action.session in self._sessions:
            pool.events.append(FromHub(message if pool.signer is None else pool.signer.tasks(message)))
        elif self.sockets is not None:
            self.sockets.push(action)

    def publish(self, action: Publish) -> None:
        own = self.pool
        if own is not None and action.pool in ("", own.name):
            own.events.append(FromHub(action.message))
            if action.pool:
                return
        if self.sockets is not None:
            self.sockets.publish(action)

    def send_client(self, action: SendClient) -> None:
        own, client, message = self.client, action.client, action.message
        if own is not None and client == own.client:
            own.events.append(
                FromHubToClient(message if own.signer is None else own.signer.verified(message))
            )
        elif self.private.knows(client):
            self.private.send_client(action)
        elif self.sockets is not None:
            self.sockets.send_client(action)

    def open_lane(self, session: int, pool: str, key: bytes) -> str:
        """Bind a lane; one to the pool in the same loop is a queue, and its endpoint says so."""
        if self.has_pool(pool):
            self._sessions.add(session)
            return "local"
        return "" if self.sockets is None else self.sockets.open_lane(session, pool, key)

    def close_lane(self, session: int) -> None:
        self._sessions.discard(session)
        if self.sockets is not None:
            self.sockets.close_lane(session)


class EmbeddedHub:
    """A hub that has added its parts and timers to a loop.

    Args:
        loop: the loop.
        links: its links.
        settings: the hub machine's.
        journal: where tasks are written down, if there is one.

    Attributes:
        links: as given.
        machine: its machine.
        shell: its shell, in the loop.
    """

    def __init__(
        self, loop: Loop, links: LocalLinks, settings: HubSettings, journal: HubJournal | None
    ) -> None:
        self.links = links
        self.machine = HubMachine(replace(settings, journaled=journal is not None), monotonic())
        self.shell = HubShell(self.machine, links, journal)
        loop.parts.append(self.shell)
        loop.timers.append(WallClock(links.events))
        if journal is not None:
            journal.start(loop, self.shell)

    def close(self) -> None:
        self.links.private.close()
