"""Reports the beginnings and ends of a pool's sessions with its hubs to the people who run it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from taskmesh.core.pool.machine import PoolMachine
from taskmesh.core.pool.membership import Membership
from taskmesh.net.pool.sockets import PoolSockets

News = Callable[[str, str], None]

UNANSWERED = 3.0
"""Seconds without a session after which a pool reports it."""
NO_HUB = "no hub answers at {0}; start one with `taskmesh hub --bind {0}`. Still asking"
NO_SESSION = (
    "the hub at {0} gives this pool no session; `taskmesh status --address {0}` says why. Still asking"
)
REFUSED = "the hub at {0} refuses this pool, which asks again in a while: {1}"
SERVED = "; served meanwhile: {0}"
STATES = {
    "paused": "no new work until `taskmesh resume`",
    "draining": "running tasks may finish, the others go back; a second signal ends it at once",
}


class HubSession:
    """The state of a pool's sessions with one hub.

    Attributes:
        member: the pool's membership with the hub.
        sockets: the sockets to it.
        number: the session that was seen last, 0 for none.
        was_open: True once there has been a session.
        since: when a session began or ended, or the pool started.
        seen_up: when the hub was reached last.
        reached_since: when it was reached again after a while.
        reported: the reason for having no session that was reported last, "" once there is one.
    """

    def __init__(self, member: Membership, sockets: PoolSockets) -> None:
        self.member = member
        self.sockets = sockets
        self.number = 0
        self.was_open = False
        self.since = time.monotonic()
        self.seen_up = self.reached_since = -math.inf
        self.reported = ""


class SessionMonitor:
    """Reports changes of a pool's sessions, and of its state.

    Args:
        machine: the pool's machine.
        sockets: to each hub, in the order of the machine's memberships.
        ready: called with the pool's name and the hub's address when the first session of all opens.
        news: reports anything else, as a kind and a sentence.
    """

    def __init__(
        self,
        machine: PoolMachine,
        sockets: Sequence[PoolSockets],
        ready: Callable[[str, str], None],
        news: News,
    ) -> None:
        self._machine = machine
        self._ready = ready
        self._news = news
        self._was_open = False
        self._state = "ready"
        self._hubs = list(map(HubSession, machine.members, sockets))

    def check(self, now: float) -> None:
        """Report what has changed."""
        machine = self._machine
        for hub in self._hubs:
            if hub.member.session != hub.number:
                hub.number, hub.since = hub.member.session, now
                if hub.number:
                    self._opened(hub)
            elif not hub.number:
                self._wait(hub, now)
        if machine.state != self._state:
            self._state = machine.state
            self._news(self._state, f"{self._state}: {STATES.get(self._state, 'takes work')}")

    def _opened(self, hub: HubSession) -> None:
        address = hub.sockets.address
        if not self._was_open:
            self._was_open = True
            self._ready(self._machine.config.pool, address)
        elif hub.was_open and hub.reported:
            self._news("rejoined", f"the hub at {address} is back")
        elif not hub.was_open and len(self._hubs) > 1:
            self._news("joined", f"serves the hub at {address} as well")
        hub.was_open = True
        hub.reported = ""

    def _wait(self, hub: HubSession, now: float) -> None:
        """Report why there is no session: no hub, or one that is full and gives no answer."""
        if hub.member.refused:
            self._report(hub, REFUSED)
            return
        if hub.sockets.is_up:
            if now - hub.seen_up >= UNANSWERED:
                hub.reached_since = now
            hub.seen_up = now
        is_reached = now - hub.seen_up < UNANSWERED
        since = max(hub.since, hub.reached_since) if is_reached else hub.since
        if now - since >= UNANSWERED and (is_reached or not hub.reported):
            self._report(hub, NO_SESSION if is_reached else NO_HUB)

    def _report(self, hub: HubSession, text: str) -> None:
        if text == hub.reported:
            return
        hub.reported = text
        served = ", ".join(other.sockets.address for other in self._hubs if other.member.session)
        text = text.format(hub.sockets.address, hub.member.refused)
        self._news("waiting", text + (SERVED.format(served) if served else ""))
