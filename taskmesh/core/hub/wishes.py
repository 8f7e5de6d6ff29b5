"""What operators want of pools whose sessions ended before they had heard it."""

from __future__ import annotations

from taskmesh.core.hub.lanes import Lane

MOST = 1000
"""Pools that are waited for: most come back within minutes, or never."""


class Wishes:
    """A wish for each process that was a pool; one that takes its name meanwhile does not obey it."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], str] = {}

    def keep(self, lane: Lane) -> None:
        """A session is over. What its pool has not obeyed yet is said again should it come back."""
        if lane.wished:
            self._of[lane.pool, lane.instance] = lane.wished
            if len(self._of) > MOST:
                del self._of[next(iter(self._of))]

    def take(self, pool: str, instance: int) -> str:
        """A pool has a session again: what is still wanted of it, or empty."""
        return self._of.pop((pool, instance), "")
