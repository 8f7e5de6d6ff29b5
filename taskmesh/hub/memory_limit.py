"""A hub near the limit of its memory cuts its peers off, before the kernel kills it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from taskmesh.hub.machine.views.quantities import Bytes
from taskmesh.system.cgroups import memory_limit

SHARE = 0.75
"""Share of the memory that the hub may take. Its payloads take half, messages on their way an eighth:
beyond this a peer fills libzmq's buffers, with endless frames or faster than the hub takes them in."""
FASTEST = float(4 << 30)
"""Bytes a second that are expected between two looks, at most."""
SHORTEST, LONGEST = 0.05, 1.0
"""Seconds between two looks."""
PAUSE = 5.0
"""Seconds in which peers can dial anew, and honest ones can repeat what was dropped."""


class MemoryLimit:
    """A part of the hub's loop that cuts peers off when memory runs short.

    Args:
        cut_off: ends every connection over which payloads come.
        record: logs it.
        limit: bytes that the hub may take; by default the limit of its control groups.
        resident: returns the bytes that it takes now.
    """

    def __init__(
        self,
        cut_off: Callable[[], None],
        record: Callable[[str, dict[str, object]], None],
        *,
        limit: int = 0,
        resident: Callable[[], int] | None = None,
    ) -> None:
        self.deadline = 0.0
        self._cut_off = cut_off
        self._record = record
        self._most = int(SHARE * (limit or memory_limit()))
        self._resident = resident or resident_bytes
        self._pause_until = 0.0

    def turn(self, now: float) -> None:
        resident = self._resident()
        if resident > self._most and now >= self._pause_until:
            self._pause_until = now + PAUSE
            self._cut_off()
            text = (
                "all clients and pools were cut off and dial anew: their messages take too much memory. "
                "Give the hub more, lower its pool.max_payload, or revoke the key of who sends so much"
            )
            self._record(
                "memory.short", {"resident": Bytes(resident), "most": Bytes(self._most), "text": text}
            )
        self.deadline = now + min(LONGEST, max(SHORTEST, (self._most - resident) / FASTEST))


def resident_bytes() -> int:
    """Return the bytes of memory that this process takes; 0 if the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="utf-8") as facts:
        return int(facts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
