"""Redis's seat in the simulated world: outcomes that outlive a hub, when their writes get there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskmesh.wire.runs import Kept
from tests.simulation.setting import Setting

Key = tuple[str, str]
LOST, LATE, EDITED, CUT = 0.1, 0.2, 0.3, 0.15
"""How likely a write is lost or late, and a reading meets entries edited by hand, or is cut short."""
ON_ITS_WAY = 0.002
"""Seconds for which a write may be in the kernel: it arrives though its hub is killed."""
AGAIN = 0.2
"""Seconds between two tries to reach a store that is away."""


class Shelf:
    """The stored outcomes, of every writer.

    Attributes:
        entries: until when in the world's time, and what. away_until: nobody reaches it before.
    """

    def __init__(self) -> None:
        self.entries: dict[Key, tuple[float, Kept]] = {}
        self.away_until = 0.0


class SimulatedStore:
    """`ports.Store` of one life of a hub, with writes that are lost, late, or find nobody there.

    Args:
        clock: the hub's. alive: whether this life still goes on.
    """

    def __init__(
        self, setting: Setting, shelf: Shelf, clock: Callable[[], float], alive: Callable[[], bool]
    ) -> None:
        self.changed = True
        self._setting = setting
        self._shelf = shelf
        self._offset = clock() - setting.timetable.now
        self._alive = alive
        self._counts = dict.fromkeys(("stored", "dropped", "loaded"), 0)
        self._state = "connected"

    def load(self, limit: int, timeout: float) -> list[tuple[float, Kept]]:
        """Return the stored outcomes; some of them if that takes too long, none while the store is away."""
        chance, now = self._setting.chance, self._setting.timetable.now
        if now < self._shelf.away_until:
            self._away()
            return []
        found = list(self._shelf.entries.values())
        if found and chance.random() < EDITED:  # by hand, so that nothing expires
            self._count("edited")
            found = [(until + 1000.0, kept) for until, kept in found]
        found = [(until, kept) for until, kept in found if until > now]
        if found and chance.random() < CUT:
            del found[chance.randrange(len(found)) :]
        self._counts["loaded"] = len(found)
        return sorted([(until + self._offset, kept) for until, kept in found], key=lambda entry: entry[0])

    def put(self, entries: Sequence[tuple[float, Kept]]) -> None:
        """Takes outcomes over: most are written at once."""
        chance, calm = self._setting.chance, self._setting.calm
        for until, kept in entries:
            roll, delay = 1.0 if calm else chance.random(), 2 * ON_ITS_WAY * chance.random()
            if roll < LOST:
                self._drop("lost")
                continue
            if roll < LOST + LATE:
                self._count("late")
                delay = 2.0 * chance.random()
            self._setting.timetable.after(delay, self._write, until - self._offset, kept, delay)

    def _write(self, until: float, kept: Kept, delay: float) -> None:
        if not self._alive() and delay > ON_ITS_WAY:
            self._drop("lost")
        elif self._setting.timetable.now < self._shelf.away_until:
            self._away()
            self._setting.timetable.after(AGAIN, self._write, until, kept, AGAIN)
        else:
            self._shelf.entries[kept.name, kept.key] = until, kept
            self._counts["stored"] += 1
            self._state, self.changed = "connected", True

    def status(self) -> tuple[dict[str, object], list[tuple[str, dict[str, object]]]]:
        """State and counts; what is worth telling is nothing new here."""
        self.changed = False
        return {"store": "simulated", "state": self._state, **self._counts}, []

    def close(self, timeout: float) -> None:
        """A simulated hub is killed, never closed."""

    def _away(self) -> None:
        self._count("away")
        self._state, self.changed = "away", True

    def _drop(self, why: str) -> None:
        self._count(why)
        self._counts["dropped"] += 1
        self.changed = True

    def _count(self, what: str) -> None:
        self._setting.audit.faults[what, "store"] += 1
