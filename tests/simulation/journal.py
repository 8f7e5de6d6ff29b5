"""The journal of one life of a simulated hub: `taskmesh.hub.journal.writer` without its thread.

It writes late, goes away, is full for a while, is emptied or put back under its hub, and taken over by
another one. What is on its way when its hub is killed may get there, and nobody hears of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from taskmesh.core.actions import WriteJournal
from taskmesh.core.events import JournalRead, JournalTold, JournalWritten
from taskmesh.hub.journal.entries import changes_of, decode
from taskmesh.hub.journal.store import Changes, JournalRegressed, JournalSuperseded, JournalUnavailable
from tests.simulation.memory_journal import MemoryDisk, MemoryJournal
from tests.simulation.setting import Setting

QUICK, SLOW, ENDLESS = 0.0005, 0.2, 4.0
"""Seconds that a transaction takes at most: as a rule, now and then, hardly ever."""
ON_ITS_WAY = 0.002
"""Seconds for which a transaction may be in the kernel: it arrives though its hub is killed."""
AGAIN = 0.2
"""Seconds between two tries to reach a journal that is away."""
LOOK = 1.0
"""Seconds between two looks, in which what is written is synced as well."""
FULL = 6
"""Hand-overs that wait, above which the journal calls itself full."""


@dataclass(slots=True)
class _Batch:
    """Changes that were handed over, and become one transaction."""

    number: int
    changes: Changes
    is_whole: bool


class SimulatedJournal:
    """The journal of a hub in one of its lives.

    Args:
        setting: time and chance.
        disk: what outlives hubs.
        strict: a confirmed transaction outlives a loss of power.
        tell: tells the hub's machine.
        alive: whether this life still goes on.
        superseded: called when another hub has the journal: this one is to end.

    Attributes:
        confirmed: the number of the last changes that the hub was told to be written.
        news: what the hub is to read first.
    """

    def __init__(
        self,
        setting: Setting,
        disk: MemoryDisk,
        *,
        strict: bool,
        tell: Callable[[object], None],
        alive: Callable[[], bool],
        superseded: Callable[[], None],
    ) -> None:
        self.confirmed = 0
        self._setting, self._disk = setting, disk
        self._store = MemoryJournal(disk, strict)
        self._tell, self._alive, self._superseded = tell, alive, superseded
        self._waiting: list[_Batch] = []
        self._under_way: list[_Batch] = []
        self._broken = self._lost = self._full = self._over = False
        self._epoch, self._number = self._store.open()
        setting.timetable.after(LOOK, self._look)

    @property
    def is_lost(self) -> bool:
        """True if the disk has less than it had confirmed: the hub's memory alone has the rest."""
        return self._lost or self._disk.epoch < self._epoch or self._disk.number < self._number

    def read(self, wall: float) -> JournalRead:
        """Return what is written, for a hub that starts at this time on the wall."""
        found = {key.decode(): data for portion in self._store.load() for key, data in portion}
        return JournalRead({key: decode(key, data) for key, data in found.items()}, wall)

    def write(self, action: WriteJournal) -> None:
        """Take changes over."""
        if action.is_whole:
            self._waiting.clear()
        self._waiting.append(_Batch(action.number, changes_of(action.changes), action.is_whole))
        self._go_on()
        self._say_if_full()

    def _go_on(self) -> None:
        """Have what waits written, unless something is on its way already."""
        if self._under_way or self._over or not self._waiting:
            return
        if self._lost and not any(batch.is_whole for batch in self._waiting):
            return
        self._under_way, self._waiting = self._waiting, []
        delay = self._delay()
        self._setting.timetable.after(delay, self._write, delay)

    def _delay(self) -> float:
        chance = self._setting.chance
        roll = 1.0 if self._setting.calm else chance.random()
        most = ENDLESS if roll < 0.002 else SLOW if roll < 0.1 else QUICK
        if most > QUICK:
            self._count("late")
        return most * chance.random()

    def _write(self, delay: float) -> None:
        if self._over or not (self._alive() or delay <= ON_ITS_WAY):
            return
        try:
            self._store_all()
        except JournalUnavailable:
            self._broken = True
            self._count("away")
            self._setting.timetable.after(AGAIN, self._write, AGAIN)
        except JournalRegressed:
            self._regress()
        except JournalSuperseded:
            self._end()
        else:
            self._setting.timetable.after(self._delay(), self._settle)

    def _store_all(self) -> None:
        """Store what is on its way as one transaction, unless the store has it already."""
        if self._lost:
            self._epoch, self._number = self._store.open(self._epoch)
            self._lost = self._broken = False
        elif self._broken:
            self._store.rejoin(self._number)
            self._broken = False
        changes, is_whole = Changes(), False
        for batch in self._under_way:
            if batch.is_whole:
                changes, is_whole = Changes(), True
            changes.merge(batch.changes)
        if is_whole:
            self._store.replace(self._number + 1, changes.puts)
        else:
            self._store.write(self._number + 1, changes)
        self._number += 1

    def _settle(self) -> None:
        """The answer has come."""
        if not self._alive() or self._over:
            return
        batches, self._under_way = self._under_way, []
        self.confirmed = batches[-1].number
        self._tell(JournalWritten(self.confirmed))
        self._say_if_full()
        self._go_on()

    def _say_if_full(self) -> None:
        full = len(self._waiting) + len(self._under_way) > FULL
        if full is not self._full:
            self._full = full
            if full:
                self._count("full")
            self._tell(JournalTold(None, full, False, []))

    def _look(self) -> None:
        """Sync, and look at the epoch, as the writer's thread does when it has nothing else to do."""
        if not self._alive() or self._over:
            return
        self._setting.timetable.after(LOOK, self._look)
        if self._lost:
            return
        if self._under_way:  # its own write finds out what is wrong
            with contextlib.suppress(JournalUnavailable, JournalRegressed, JournalSuperseded):
                self._store.sync()
            return
        try:
            if self._broken:
                self._store.rejoin(self._number)
                self._broken = False
            self._store.sync()
        except JournalUnavailable:
            self._broken = True
        except JournalRegressed:
            self._regress()
        except JournalSuperseded:
            self._end()

    def _regress(self) -> None:
        """Lose what was written: the hub has to say all of it again."""
        if not self._alive():
            return
        whole = [batch for batch in self._under_way if batch.is_whole]
        self._lost, self._broken = True, False
        if whole:  # that is still all, with what waits
            self._setting.timetable.after(AGAIN, self._write, AGAIN)
            return
        self._count("regressed")
        self._under_way.clear()
        self._waiting.clear()
        self._tell(JournalTold(None, self._full, True, []))

    def _end(self) -> None:
        if self._alive():
            self._count("superseded")
            self._over = True
            self._setting.timetable.after(0.0, self._superseded)

    def _count(self, what: str) -> None:
        self._setting.audit.faults[what, "journal"] += 1
