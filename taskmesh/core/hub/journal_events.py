"""The events of a hub's journal: it has been read when the hub starts, and it is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, assert_never

from taskmesh.core import events as ev
from taskmesh.core.hub.clients import Clients
from taskmesh.core.hub.collector import Collector, of_task
from taskmesh.core.hub.dependencies import is_bare, value_of
from taskmesh.core.hub.journal import Journal
from taskmesh.core.hub.limit_entries import LimitEntries
from taskmesh.core.hub.schedules import Schedules
from taskmesh.core.hub.spec_entry import SpecEntry
from taskmesh.core.hub.state import HubState
from taskmesh.core.hub.submission import NO_SPEC, Submissions
from taskmesh.core.hub.views import Views
from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.wire import journal as j
from taskmesh.wire.messages import Answer


class JournalEvents:
    """Takes in what a journal has, and has those told who wait for it.

    Args:
        hub: the books of the hub.
        journal: of these, what is written.
        submissions: enters tasks.
        collector: has outcomes wait for clients.
        clients: opens the sessions of their clients.
        schedules: fires.
        views: shows the state of the journal.
    """

    def __init__(
        self,
        hub: HubState,
        journal: Journal,
        submissions: Submissions,
        collector: Collector,
        *,
        clients: Clients,
        schedules: Schedules,
        views: Views,
    ) -> None:
        self._hub = hub
        self._journal = journal
        self._submissions = submissions
        self._collector = collector
        self._clients = clients
        self._schedules = schedules
        self._views = views
        self._limits = LimitEntries(hub.ledger.limits, journal, hub.config.lease)
        self._answers: deque[tuple[int, int, Answer]] = deque()

    @property
    def _offset(self) -> float:
        return self._hub.clock_offset or 0.0

    def on_event(self, event: ev.JournalRead | ev.JournalWritten | ev.JournalTold, now: float) -> None:
        match event:
            case ev.JournalWritten(number=number):
                self._on_written(number)
            case ev.JournalRead(entries=entries, wall=wall):
                self._hub.clock_offset = wall - now
                self._restore(j.by_kind(entries), now)
            case ev.JournalTold():
                self._views.journal, self._journal.is_full = event.view, event.is_full
                for kind, fields in event.news:
                    self._hub.log(kind, fields)
                if event.is_lost:
                    self._rewrite(now)
            case _:
                assert_never(event)

    def answer(self, client: int, answer: Answer) -> None:
        """Answer a client once the journal has what it has asked for, or another has before it."""
        journal = self._journal
        journal.sweep()
        self._limits.write(self._offset)
        after = journal.upcoming if journal.changes else journal.pending(journal.number)
        if after:
            self._answers.append((after, client, answer))
        else:
            self._hub.send(client, answer)

    def sweep(self) -> None:
        self._journal.sweep()
        self._submissions.sweep(self._hub.now)
        self._limits.write(self._offset)

    def _on_written(self, number: int) -> None:
        """The journal has the changes up to a number: what depends on them may leave the hub."""
        self._journal.written = number
        self._hub.out += self._hub.sinks.written(number)
        self._submissions.on_written(number)
        self._schedules.on_written(number)
        while self._answers and self._answers[0][0] <= number:
            _, client, answer = self._answers.popleft()
            self._hub.send(client, answer)

    def _rewrite(self, now: float) -> None:
        """Have all of it written again: it was lost."""
        self._journal.rewrite()
        self._hub.result_cache.rewrite(now, wall=self._hub.wall)
        self._hub.house.rewrite()
        self._hub.letters.rewrite()
        self._limits.rewrite()
        self._schedules.rewrite()

    def _restore(self, found: Mapping[str, Mapping[int, Any]], now: float) -> None:
        """Take up the tasks of the journal; their clients and pools may come back.

        Args:
            found: the entries, by kind and number.
            now: the time.
        """
        hub = self._hub
        for number, spec in found[j.SPEC].items():
            hub.specs[number] = SpecEntry(number, spec)
            hub.ledger.resting.add(hub.specs[number])
        for house in found[j.HOUSE].values():
            hub.house.restore(house)
        self._limits.restore(found[j.LIMIT].values(), found[j.WINDOW].values(), self._offset)
        self._schedules.restore(found[j.SCHEDULE], found[j.CURSOR])
        for number, kept in found[j.KEPT].items():
            hub.result_cache.read(number, kept, now, wall=hub.wall)
        hub.letters.restore(found[j.LETTER])
        self._restore_tasks(found, now)
        hub.dependencies.drop_unused()

    def _restore_tasks(self, found: Mapping[str, Mapping[int, Any]], now: float) -> None:
        """Enter tasks, with the outcomes that others need and those that wait for a client."""
        journal, values, outcomes = self._journal, _by_client(found[j.VALUE]), _by_client(found[j.OUTCOME])
        left = [
            journal.restore(number, chunk, self._over(chunk, found[j.ENDS].get(number)), self._hub.specs)
            for number, chunk in found[j.CHUNK].items()
        ]
        self._submissions.set_aside.wait_from(now, self._hub.config.lease)
        for client, some in values.items():
            self._hub.dependencies.bring(client, journal.restore_values(client, some.values()))
        restored = [chunk for chunk in left if chunk is not None]
        for chunk in restored:
            self._clients.restore(chunk, now)
        for client, waiting in outcomes.items():
            self._restore_outcomes(client, waiting)
        for chunk in restored:
            self._submissions.restore(chunk, now)
            if self._hub.house.is_own(chunk.client):
                self._schedules.restored(chunk)
        for client, some in values.items():
            self._submissions.end_as_told(client, some.values())

    def _restore_outcomes(self, client: int, outcomes: Mapping[int, j.JournalOutcome]) -> None:
        """Have outcomes wait for a client that was away when its tasks ended."""
        hub = self._hub
        for seq in self._journal.restore_outcomes(client, outcomes):
            done, failed = outcomes[seq].done, outcomes[seq].failed
            outcome = done or failed
            if outcome is None:
                continue
            hub.ledger.answered(client, seq)
            self._collector.give(of_task(outcome, client << SEQ_BITS | seq))
            if self._journal.needed(client, seq) and not is_bare(outcome):
                entry = hub.specs.get(done.spec) if done is not None else None
                spec = entry.spec if entry is not None else NO_SPEC
                hub.dependencies.bring(client, [value_of(seq, outcome, spec)])

    def _over(self, chunk: j.JournalChunk, ends: j.Ends | None) -> j.Ends | None:
        """Return the tasks of a chunk that are over, and those whose outcome is kept: it is written first."""
        cache, base = self._hub.result_cache, chunk.client << SEQ_BITS
        seqs = [seq for run in chunk.runs for seq in run.seqs] if len(cache) else []
        kept = [seq for seq in seqs if cache.of_task(base | seq, self._hub.now) is not None]
        return j.Ends([*ends.seqs, *kept] if ends is not None else kept) if kept else ends


def _by_client(entries: Mapping[int, Any]) -> dict[int, dict[int, Any]]:
    """Return entries that have a task's id as their number, by client and counter."""
    found: dict[int, dict[int, Any]] = {}
    for number, entry in entries.items():
        found.setdefault(client_of(number), {})[seq_of(number)] = entry
    return found
