"""The simulation's time: what happens when, in one order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Entry = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class Timetable:
    """A virtual clock with what is to happen. `now` is in seconds; `steps` counts what has happened."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._entries: list[Entry] = []
        self._count = 0

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        """Has `what(*arguments)` called at a time; of what is due at once, the first asked for is first."""
        self._count += 1
        heapq.heappush(self._entries, (when, self._count, what, arguments))

    def after(self, delay: float, what: Callable[..., None], *arguments: Any) -> None:
        """The same, `delay` seconds from now."""
        self.at(self.now + delay, what, *arguments)

    def step(self) -> bool:
        """Lets the next thing happen; False when nothing is left."""
        if not self._entries:
            return False
        when, _, what, arguments = heapq.heappop(self._entries)
        self.now = max(self.now, when)
        self.steps += 1
        what(*arguments)
        return True
