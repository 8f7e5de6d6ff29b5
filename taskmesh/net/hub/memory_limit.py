"""A hub near the limit of its memory drops what peers have half said, before the kernel kills it."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable

from taskmesh.system.cgroups import memory_limit

SHARE = 0.75
"""Of the memory that the hub may take. Its payloads take half, and what is on its way an eighth: beyond this
somebody fills libzmq's buffers, with frames that never end or faster than the hub can take them in."""
FASTEST = float(4 << 30)
"""Bytes a second that are reckoned with between two looks."""
SHORTEST, LONGEST = 0.05, 1.0
"""Seconds between two looks."""
REST = 5.0
"""Seconds in which peers can dial anew, and honest ones say again what was dropped."""


class MemoryLimit:
    """A part of the hub's loop.

    Args:
        cut_off: ends every connection over which payloads come. record: told of it.
        limit: bytes that the hub may take, by default what its control groups leave it.
        resident: how many it takes now.
    """

    pending = False

    def __init__(
        self,
        cut_off: Callable[[], None],
        record: Callable[[str, dict[str, object]], None],
        *,
        limit: int = 0,
        resident: Callable[[], int] | None = None,
    ) -> None:
        self.events: deque[object] = deque()
        self.deadline = 0.0
        self._cut_off = cut_off
        self._record = record
        self._most = int(SHARE * (limit or memory_limit()))
        self._resident = resident or resident_bytes
        self._rests_until = 0.0

    def turn(self, now: float) -> None:
        """Looks how much memory the hub takes."""
        resident = self._resident()
        if resident > self._most and now >= self._rests_until:
            self._rests_until = now + REST
            self._cut_off()
            cure = (
                "all clients and pools were cut off and dial anew: what they send takes too much memory. "
                "Cure: give the hub more, lower its pool.max_payload, or revoke the key of who sends so much"
            )
            self._record("memory.short", {"resident": resident, "most": self._most, "cure": cure})
        self.deadline = now + min(LONGEST, max(SHORTEST, (self._most - resident) / FASTEST))


def resident_bytes() -> int:
    """Bytes of memory that this process takes; 0 where nobody can tell."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="utf-8") as facts:
        return int(facts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
