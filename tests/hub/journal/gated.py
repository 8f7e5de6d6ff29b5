"""A store whose calls wait at a gate, and the loop that writes to it."""

import threading
from collections.abc import Mapping

from taskmesh.hub.journal.store import Changes, JournalStore
from taskmesh.hub.journal.writer import JournalState, JournalWriter
from taskmesh.system.wakeup import Wakeup
from tests.harness.waiting import wait_until
from tests.simulation.memory_journal import MemoryDisk, MemoryJournal


class Gated(MemoryJournal):
    """A store whose calls wait at a gate, and are counted."""

    def __init__(self, disk: MemoryDisk, strict: bool = False) -> None:
        super().__init__(disk, strict)
        self.gate, self.inside = threading.Event(), threading.Event()
        self.gate.set()
        self.writes: list[Changes] = []
        self.syncs = self.replacements = 0
        self.closed = threading.Event()

    def hold(self) -> None:
        self.inside.clear()
        self.gate.clear()

    def _pass(self) -> None:
        self.inside.set()
        assert self.gate.wait(30)

    def write(self, number: int, changes: Changes) -> None:
        self._pass()
        super().write(number, changes)
        self.writes.append(changes)

    def replace(self, number: int, puts: Mapping[bytes, bytes]) -> None:
        self._pass()
        super().replace(number, puts)
        self.replacements += 1

    def sync(self) -> None:
        super().sync()
        self.syncs += 1

    def close(self) -> None:
        self.closed.set()


class Loop:
    """A hub's loop: it hands over, and answers a journal that has regressed with all it has."""

    def __init__(self, store: JournalStore, strict: bool = False) -> None:
        self.bell = Wakeup()
        self.writer = JournalWriter(store, store.open(), strict=strict, wake=self.bell.set)
        self.writer.start()
        self.has: dict[bytes, bytes] = {}
        self.news: list[str] = []

    def put(self, puts: Mapping[bytes, bytes] | None = None, drops: set[bytes] | None = None) -> int:
        changes = Changes(puts, drops)
        for key in changes.drops:
            self.has.pop(key, None)
        self.has.update(changes.puts)
        return self.writer.put(changes)

    def listen(self) -> Mapping[str, object]:
        view, news = self.writer.status()
        self.news += [kind for kind, _ in news]
        return view

    def close(self, timeout: float) -> bool:
        self.bell.close()
        return self.writer.close(timeout)

    def becomes(self, state: JournalState) -> None:
        wait_until(lambda: self.writer.state is state, 10, f"it is {state}")

    def confirmed(self, position: int) -> None:
        wait_until(lambda: self.writer.confirmed >= position, 10, f"{position} is confirmed")
