"""The limits of a hub in its journal: the rules of operators, and the starts in long windows."""

from __future__ import annotations

from collections.abc import Iterable

from taskmesh.core.hub.journal_entries import JournalEntries
from taskmesh.core.hub.limits import Limits
from taskmesh.wire.journal import LIMIT, WINDOW, JournalWindow
from taskmesh.wire.runs import LimitRule


class LimitEntries:
    """Writes limits down now and then, and takes them in again.

    Windows no longer than a lease are not written: the next hub takes them as full for as long.

    Args:
        limits: the limits.
        journal: the journal.
        lease: seconds.
    """

    def __init__(self, limits: Limits, journal: JournalEntries, lease: float) -> None:
        self._limits = limits
        self._journal = journal
        self._lease = lease
        self._rules: dict[str, LimitRule] = {}
        self._started: set[tuple[str, str]] = set()
        self._written: set[tuple[str, str]] = set()
        limits.started = self._started

    def write(self, offset: float) -> None:
        """Write down what has changed.

        Args:
            offset: the time on the wall less the hub's own.
        """
        started, fixed = self._started.copy(), self._limits.fixed
        self._started.clear()
        for key in started:
            self._write_window(key, offset)
        if fixed == self._rules:
            return
        for name in self._rules.keys() | fixed.keys():
            if self._rules.get(name) != fixed.get(name):
                self._journal.put_named(LIMIT, (name,), fixed.get(name))
        self._rules = dict(fixed)

    def _write_window(self, key: tuple[str, str], offset: float) -> None:
        counter = self._limits.counters.get(key)
        if counter is not None and counter.window is not None and counter.rule.window > self._lease:
            starts = [(when + offset, count) for when, count in counter.window.starts]
            self._journal.put_named(WINDOW, key, JournalWindow(counter.rule, key[1], starts))
            self._written.add(key)
        elif key in self._written:
            self._journal.put_named(WINDOW, key, None)
            self._written.discard(key)

    def rewrite(self) -> None:
        self._rules = {}
        self._started.update(self._limits.counters)

    def restore(self, fixed: Iterable[LimitRule], windows: Iterable[JournalWindow], offset: float) -> None:
        """Take in what a journal has.

        Args:
            fixed: the rules of operators.
            windows: the starts.
            offset: as in `write`.
        """
        limits = self._limits
        limits.fixed.update((rule.name, rule) for rule in fixed)
        self._rules = dict(limits.fixed)
        for entry in windows:
            counter = limits.counter(entry.rule, entry.part)
            if counter.window is not None:
                for when, count in entry.starts:
                    counter.window.add(min(limits.now, when - offset), count)
            self._started.add(counter.key)
            self._written.add(counter.key)
            limits.release(counter)
