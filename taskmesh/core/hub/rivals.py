"""Processes that ask for a name which another one has: they wait, and are refused when that one lives."""

from __future__ import annotations

from taskmesh.core.hub.lanes import Lane
from taskmesh.wire.messages import Hello

MOST_RIVALS = 1000
PROOFS = 3
"""So many signs of life, a beat and more apart, show that a pool lives whose name another one asks for."""


class Rivals:
    """Those who ask, by name and instance, and what has been heard of who has the name since."""

    def __init__(self, beat: float) -> None:
        self._beat = beat
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}

    def settled(self, pool: str) -> None:
        """One of them has the name now."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != pool}

    def doubled(self, current: Lane, hello: Hello, now: float) -> str:
        """Two processes use one name: why the newcomer is refused, or "" while it has to wait.

        A pool that was killed and started again is let in as soon as the links of the one before are closed,
        or that one is silent. What it had sent before may be heard late, in a burst: that proves nothing.
        """
        key = (hello.pool, hello.instance)
        if len(self._seen) >= MOST_RIVALS:
            self._seen.clear()
        since, proofs = self._seen.setdefault(key, (now, 0))
        if current.heard < since + self._beat:
            return ""
        self._seen[key] = (current.heard, proofs + 1)
        if proofs + 1 != PROOFS:
            return ""
        other = f"process {current.hello.pid} on {current.hello.host}" if current.hello.pid else "a process"
        return f"{other} is pool {hello.pool} already: start this one with another --name"
