"""The shell of a hub machine: performs its actions on lanes and links, and tells it the clock on the wall."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from taskmesh.core import actions as act
from taskmesh.core.events import Clock, LaneOpened
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.link.shell import Shell
from taskmesh.system.clock import monotonic, wall

EVERY = 1.0
"""Seconds between two looks."""
MOVED = 0.05
"""Seconds by which the clock has to be off before the hub's machine is told."""


class HubLinks(Protocol):
    """A hub's links to its pools and clients.

    Attributes:
        events: what comes from them, for the hub's machine.
    """

    events: deque[object]

    def push(self, action: act.PushTasks) -> None:
        """Send tasks on the session's lane; the ledger finds those that could not be sent."""
        ...

    def publish(self, action: act.Publish) -> None:
        """Send on the control channel, to one pool or to all."""
        ...

    def send_client(self, action: act.SendClient) -> None: ...

    def open_lane(self, session: int, pool: str, key: bytes) -> str:
        """Bind a lane for the holder of `key`; return the endpoint that the pool is to dial."""
        ...

    def close_lane(self, session: int) -> None:
        """Close a lane and destroy its queue."""
        ...

    def record(self, kind: str, fields: dict[str, object], /) -> None: ...


class OwnPeers(Protocol):
    """The client and the pool in a hub's own loop, as sockets know them: nobody else may be them.

    Attributes:
        events: what comes to the hub.
    """

    events: deque[object]

    def record(self, kind: str, fields: dict[str, object], /) -> None: ...

    def is_taken(self, client: int, sockets: object) -> bool:
        """Return True if a client's id is one that nobody may have who comes by these sockets."""
        ...

    def has_pool(self, name: str) -> bool:
        """Return True if the pool in the hub's loop has this name."""
        ...

    def has_session(self, session: int) -> bool:
        """Return True if this is a session of the pool in the hub's loop."""
        ...


class JournalLink(Protocol):
    """The way to a hub's journal."""

    def write(self, action: act.WriteJournal) -> None:
        """Have changes written, and the machine told when they are."""
        ...


class HubShell(Shell[HubMachine]):
    """One hub in a loop.

    Args:
        machine: the hub's machine.
        links: the links to pools and clients.
        journal: where tasks are written down, if there is one (the machine's settings say so, too).
    """

    def __init__(
        self,
        machine: HubMachine,
        links: HubLinks,
        journal: JournalLink | None = None,
    ) -> None:
        perform: dict[type, Callable[[Any], object]] = {
            act.PushTasks: links.push,
            act.SendClient: links.send_client,
            act.Publish: links.publish,
            act.OpenLane: self._open_lane,
            act.CloseLane: lambda action: links.close_lane(action.session),
            act.LogEvent: lambda action: links.record(action.kind, action.fields),
        }
        if journal is not None:
            perform[act.WriteJournal] = journal.write
        super().__init__(machine, perform, links.events)
        self._links = links

    def _open_lane(self, action: act.OpenLane) -> None:
        endpoint = self._links.open_lane(action.session, action.pool, action.key)
        self.events.append(LaneOpened(action.session, endpoint))


class WallClock:
    """A timer of a hub's loop that tells its machine how far the clock on the wall is ahead of its own.

    Args:
        events: the machine's events. It is told at once.
        read: returns the seconds since the epoch.
    """

    def __init__(self, events: deque[object], read: Callable[[], float] | None = None) -> None:
        self._events = events
        self._read = read
        self._offset = float("-inf")
        self.deadline = 0.0
        self.turn(monotonic())

    def turn(self, now: float) -> None:
        """Look at the clock.

        Its time is read between two looks at the hub's own: a process that was stopped between looks again
        later.
        """
        before = monotonic()
        offset = (self._read or wall)() - before
        if abs(offset - self._offset) > MOVED and monotonic() - before < MOVED / 2:
            self._offset = offset
            self._events.append(Clock(offset))
        self.deadline = now + EVERY
