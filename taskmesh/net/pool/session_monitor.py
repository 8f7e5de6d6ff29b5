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
        pairs = zip(machine.members, sockets, strict=True)
        self._hubs = [HubMonitor(member, links, self._opened, self._away) for member, links in pairs]

    def check(self, now: float) -> None:
        """Report what has changed."""
        machine = self._machine
        for hub in self._hubs:
            hub.check(now)
        if machine.state != self._state:
            self._state = machine.state
            self._news(self._state, f"{self._state}: {STATES.get(self._state, 'takes work')}")

    def _opened(self, address: str, *, again: bool) -> None:
        if not self._was_open:
            self._was_open = True
            self._ready(self._machine.config.pool, address)
        elif again:
            self._news("rejoined", f"the hub at {address} is back")
        elif len(self._hubs) > 1:
            self._news("joined", f"serves the hub at {address} as well")

    def _away(self, text: str) -> None:
        served = [hub.address for hub in self._hubs if hub.is_served]
        self._news("waiting", text + (SERVED.format(", ".join(served)) if served else ""))


class HubMonitor:
    """Follows a pool's sessions with one hub.

    Args:
        member: the pool's membership with the hub.
        sockets: the sockets to it.
        opened: called with the address when a session opens for the first time, and, with `again`, after it
            had been reported that there is none.
        away: called with the reason why there is no session.
    """

    def __init__(
        self,
        member: Membership,
        sockets: PoolSockets,
        opened: Callable[..., None],
        away: Callable[[str], None],
    ) -> None:
        self._member = member
        self._sockets = sockets
        self._opened = opened
        self._away = away
        self._session = 0
        self._was_open = False
        self._since = time.monotonic()
        self._seen_up = self._reached_since = -math.inf
        self._reported = ""

    @property
    def address(self) -> str:
        """The hub's address."""
        return self._sockets.address

    @property
    def is_served(self) -> bool:
        """True while there is a session."""
        return bool(self._member.session)

    def check(self, now: float) -> None:
        """Report what has changed."""
        session = self._member.session
        if session != self._session:
            self._on_change(session, now)
        elif not session:
            self._wait(now)

    def _wait(self, now: float) -> None:
        """Report why there is no session: no hub, or one that is full and gives no answer."""
        if self._member.refused:
            self._report(REFUSED)
            return
        if self._sockets.is_up:
            if now - self._seen_up >= UNANSWERED:
                self._reached_since = now
            self._seen_up = now
        is_reached = now - self._seen_up < UNANSWERED
        since = max(self._since, self._reached_since) if is_reached else self._since
        if now - since >= UNANSWERED and (is_reached or not self._reported):
            self._report(NO_SESSION if is_reached else NO_HUB)

    def _report(self, text: str) -> None:
        if text != self._reported:
            self._reported = text
            self._away(text.format(self.address, self._member.refused))

    def _on_change(self, session: int, now: float) -> None:
        self._session = session
        self._since = now
        if session and (self._reported or not self._was_open):
            self._opened(self.address, again=bool(self._reported) and self._was_open)
            self._was_open = True
            self._reported = ""
