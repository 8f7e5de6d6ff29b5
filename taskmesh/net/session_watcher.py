"""What people are told of a pool's sessions with its hub."""

from __future__ import annotations

import math
from collections.abc import Callable

from taskmesh.clock import monotonic
from taskmesh.core.pool import PoolMachine
from taskmesh.net.pool_links import PoolSockets

News = Callable[[str, str], None]

UNANSWERED = 3.0
"""Seconds without a hub after which a pool says so."""
NO_HUB = "no hub answers at {0}; start one with `taskmesh hub --bind {0}`. Still asking"
NO_PLACE = "the hub at {0} gives this pool no session; `taskmesh status --address {0}` says why. Still asking"
TOLD = {
    "paused": "no new work until `taskmesh resume`",
    "draining": "running tasks may finish, the others go back; a second signal ends it at once",
}


class SessionWatcher:
    """Tells people what becomes of a pool's sessions."""

    def __init__(
        self, machine: PoolMachine, sockets: PoolSockets, ready: Callable[[str, str], None], news: News
    ) -> None:
        self._machine = machine
        self._sockets = sockets
        self._ready = ready
        self._news = news
        self._session = 0
        self._was_open = False
        self._state = "ready"
        self._since = monotonic()
        self._seen_up = self._reached_since = -math.inf
        self._told = ""

    def look(self, now: float) -> None:
        """Looks whether something has changed."""
        machine = self._machine
        session = machine.session
        if session != self._session:
            self._changed(session, now)
        elif not session:
            self._wait(now)
        if machine.state != self._state:
            self._state = machine.state
            self._news(self._state, f"{self._state}: {TOLD.get(self._state, 'takes work')}")

    def _wait(self, now: float) -> None:
        """Tells why there is no session: no hub, or one that has no place for this pool and says nothing."""
        if self._sockets.is_up:
            if now - self._seen_up >= UNANSWERED:
                self._reached_since = now
            self._seen_up = now
        is_reached = now - self._seen_up < UNANSWERED
        since = max(self._since, self._reached_since) if is_reached else self._since
        if now - since >= UNANSWERED and self._told != NO_PLACE and (is_reached or not self._told):
            self._told = NO_PLACE if is_reached else NO_HUB
            self._news("waiting", self._told.format(self._sockets.address))

    def _changed(self, session: int, now: float) -> None:
        self._session = session
        self._since = now
        if not session:
            return
        if not self._was_open:
            self._was_open = True
            self._ready(self._machine.config.pool, self._sockets.address)
        elif self._told:
            self._news("rejoined", f"the hub at {self._sockets.address} is back")
        self._told = ""
