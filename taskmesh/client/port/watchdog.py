"""A client's watchdog for its hub: it warns while the hub is away, and gives up after a time-out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from taskmesh.errors import HubUnreachable

_log = logging.getLogger("taskmesh")

AGAIN = 60.0
"""Seconds between two warnings."""


class HubWatchdog:
    """Checks a client's link each time its loop turns.

    Args:
        where: the hub's address.
        lease: seconds without an answer after which a warning says that the hub is away.
        patience: seconds after which the client gives up, 0 for never.
        give_up: ends everything that waits, with the error.
        now: the time.
    """

    def __init__(
        self, where: str, lease: float, patience: float, give_up: Callable[[BaseException], None], now: float
    ) -> None:
        self._where = where
        self._lease = lease
        self._patience = patience or math.inf
        self._give_up = give_up
        self._warn_at = now + lease
        self._warned = False
        self._given_up = False
        self._heard = now

    def check(self, now: float, *, linked: bool) -> None:
        """Log what has changed.

        Args:
            now: the time.
            linked: True while the client has a session with its hub.
        """
        if linked:
            if self._warned:
                _log.warning("the hub at %s answers again, after %.0f s", self._where, now - self._heard)
            self._heard, self._warned, self._warn_at = now, False, now + self._lease
            return
        away = now - self._heard
        if away >= self._patience and not self._given_up:
            self._given_up = True
            self._give_up(
                HubUnreachable(
                    f"no hub has answered at {self._where} for {away:.0f} s, and client.hub_timeout is "
                    f"{self._patience:g} s: what became of the tasks that were open is not known"
                )
            )
        elif now >= self._warn_at and not self._given_up:
            self._warned, self._warn_at = True, now + AGAIN
            _log.warning(
                "no hub has answered at %s for %.0f s: tasks that are open wait for it. It is asked again "
                "and again; client.hub_timeout bounds that",
                self._where,
                away,
            )
