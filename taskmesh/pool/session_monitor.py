"""Reports the beginnings and ends of a pool's sessions with its hub to the people who run it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.sockets import PoolSockets

News = Callable[[str, str], None]

UNANSWERED = 3.0
"""Seconds without a session after which a pool reports it."""
NO_HUB = "no hub answers at {0}; start one with `taskmesh hub --bind {0}`. Still asking"
NO_SESSION = (
    "the hub at {0} gives this pool no session; `taskmesh status --address {0}` says why. Still asking"
)
STATES = {
    "paused": "no new work until `taskmesh pool resume`",
    "draining": "running tasks may finish, the others go back; a second signal ends it at once",
}


class SessionMonitor:
    """Reports changes of a pool's session, and of its state.

    Args:
        machine: the pool's machine.
        sockets: to the hub.
        ready: called with the pool's name and the hub's address when the first session opens.
        news: reports anything else, as a kind and a sentence.
    """

    def __init__(
        self, machine: PoolMachine, sockets: PoolSockets, ready: Callable[[str, str], None], news: News
    ) -> None:
        self._machine = machine
        self._sockets = sockets
        self._ready = ready
        self._news = news
        self._state = "ready"
        self._session = 0  # that was seen last
        self._was_open = False
        self._since = time.monotonic()  # a session began or ended, or the pool started
        self._seen_up = self._reached_since = -math.inf
        self._reported = ""  # the reason for having no session, until there is one

    def check(self, now: float) -> None:
        machine = self._machine
        if machine.session != self._session:
            self._session, self._since = machine.session, now
            if self._session:
                self._opened()
        elif not self._session:
            self._wait(now)
        if machine.state != self._state:
            self._state = machine.state
            self._news(self._state, f"{self._state}: {STATES.get(self._state, 'takes work')}")

    def _opened(self) -> None:
        if not self._was_open:
            self._was_open = True
            self._ready(self._machine.config.pool, self._sockets.address)
        elif self._reported:
            self._news("rejoined", f"the hub at {self._sockets.address} is back")
        self._reported = ""

    def _wait(self, now: float) -> None:
        """Report why there is no session: no hub, or one that is full and gives no answer."""
        if self._sockets.is_up:
            if now - self._seen_up >= UNANSWERED:
                self._reached_since = now
            self._seen_up = now
        is_reached = now - self._seen_up < UNANSWERED
        since = max(self._since, self._reached_since) if is_reached else self._since
        text = NO_SESSION if is_reached else NO_HUB
        if now - since >= UNANSWERED and (is_reached or not self._reported) and text != self._reported:
            self._reported = text
            self._news("waiting", text.format(self._sockets.address))
