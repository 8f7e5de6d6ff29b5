"""The memory files of a client whose payloads are told of: kept for later ones, closed when they are idle."""

from __future__ import annotations

import math

from taskmesh.shm import files

LOOK = 1.0
"""Seconds between two looks at files that may be idle."""


class SpareFiles:
    """Keeps files while they can be passed on; a timer of the client's loop closes those that are idle."""

    def __init__(self) -> None:
        self._look_at = 0.0
        self._keeps = False

    def keep(self, wanted: bool) -> None:
        """Keep files from now on, or no more; where a slot or an embedded mesh keeps them, it goes on."""
        if wanted and not files.are_kept():
            self._keeps = True
            files.keep_spares(files.SPARE_BYTES)
        elif not wanted and self._keeps:
            self._keeps = False
            files.keep_spares(0)

    @property
    def deadline(self) -> float:
        """The time of the next look."""
        return self._look_at if files.any_idle() else math.inf

    def turn(self, now: float) -> None:
        """Close what is idle."""
        if now >= self._look_at:
            self._look_at = now + LOOK
            files.close_idle(now)
