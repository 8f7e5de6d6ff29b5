"""The events of a hub's journal: it has been read when the hub starts, and it is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import assert_never

from taskmesh.core import events as ev
from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.hub.machine.books.dependencies import is_bare, value_of
from taskmesh.hub.machine.books.journal import Journal
from taskmesh.hub.machine.clients import Clients
from taskmesh.hub.machine.collector import Collector, of_task
from taskmesh.hub.machine.schedules import Schedules
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.submission import NO_SPEC, Submissions
from taskmesh.hub.machine.views.views import Views
from taskmesh.messages import journal_entries as j
from taskmesh.messages.mesh_messages import Answer
from taskmesh.messages.runs import Value


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
        self._answers: deque[tuple[int, int, Answer]] = deque()

    def on_event(self, event: ev.JournalRead | ev.JournalWritten | ev.JournalTold, now: float) -> None:
        match event:
            case ev.JournalWritten(number=number):
                self._on_written(number)
            case ev.JournalRead(entries=entries, wall=wall):
                self._hub.clock_offset = wall - now
                self._journal.fill(j.by_kind(entries))
                self._restore(now)
            case ev.JournalTold():
                self._views.journal, self._journal.is_full = event.view, event.is_full
                for kind, fields in event.news:
                    self._hub.log(kind, fields)
                if event.is_lost:
                    self._journal.rewrite()
            case _:
                assert_never(event)

    def answer(self, client: int, answer: Answer) -> None:
        """Answer a client once the journal has what it has asked for, or another has before it."""
        self._journal.sweep()
        after = self._journal.all_pending
        if after:
            self._answers.append((after, client, answer))
        else:
            self._hub.send(client, answer)

    def sweep(self) -> None:
        self._journal.sweep()
        self._submissions.sweep(self._hub.now)

    def _on_written(self, number: int) -> None:
        """The journal has the changes up to a number: what depends on them may leave the hub."""
        self._journal.on_written(number)
        self._hub.out += self._hub.sinks.written(number)
        self._submissions.on_written(number)
        self._schedules.on_written(number)
        while self._answers and self._answers[0][0] <= number:
            _, client, answer = self._answers.popleft()
            self._hub.send(client, answer)

    def _restore(self, now: float) -> None:
        """Take up what the journal has been filled with; clients and pools may come back."""
        hub, journal = self._hub, self._journal
        for number, spec in journal.specs.items():
            hub.add_spec(number, spec)
        self._schedules.restored()
        hub.result_cache.restored()
        hub.letters.restored()
        self._restore_tasks(now)
        hub.dependencies.drop_unused()

    def _restore_tasks(self, now: float) -> None:
        """Enter tasks, with the outcomes that others need and those that wait for a client."""
        hub, journal, told = self._hub, self._journal, _by_client(self._journal.values)
        restored = journal.restore(self._kept)
        for client, values in _by_client(journal.values).items():
            hub.dependencies.bring(client, values)
        for chunk in restored:
            self._clients.restore(chunk, now)
        for task, outcome in list(journal.outcomes.items()):
            self._restore_outcome(task, outcome)
        for chunk in restored:
            self._submissions.restore(chunk, now)
            if hub.house.is_own(chunk.client):
                self._schedules.entered(chunk)
        for client, values in told.items():
            self._submissions.end_as_told(client, values)

    def _restore_outcome(self, task: int, found: j.JournalOutcome) -> None:
        """Have an outcome wait for a client that was away when its task ended."""
        hub, client, seq = self._hub, client_of(task), seq_of(task)
        outcome = found.done or found.failed
        if outcome is None:
            return
        hub.ledger.answered(client, seq)
        self._collector.give(of_task(outcome, task))
        if self._journal.needed(client, seq) and not is_bare(outcome):
            entry = hub.specs.get(found.done.spec) if found.done is not None else None
            spec = entry.spec if entry is not None else NO_SPEC
            hub.dependencies.bring(client, [value_of(seq, outcome, spec)])

    def _kept(self, chunk: j.JournalChunk) -> list[int]:
        """Return those tasks of a chunk whose outcome is kept."""
        cache, base = self._hub.result_cache, chunk.client << SEQ_BITS
        seqs = [seq for run in chunk.runs for seq in run.seqs] if len(cache) else []
        return [seq for seq in seqs if cache.of_task(base | seq, self._hub.now) is not None]


def _by_client(values: Mapping[int, Value]) -> dict[int, list[Value]]:
    """Return outcomes by the clients of their tasks."""
    found: dict[int, list[Value]] = {}
    for task, value in values.items():
        found.setdefault(client_of(task), []).append(value)
    return found
