"""The events of a hub's journal: it has been read when the hub starts, and it is written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import assert_never

from taskmesh.core import events as ev
from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.hub.machine import clients, collector, schedules, submission
from taskmesh.hub.machine.books.dependencies import is_bare, value_of
from taskmesh.hub.machine.books.journal import Journal
from taskmesh.hub.machine.collector import of_task
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.submission import NO_SPEC
from taskmesh.messages import journal_entries as j
from taskmesh.messages.mesh_messages import Answer
from taskmesh.messages.runs import Value


def on_event(
    hub: HubState, journal: Journal, event: ev.JournalRead | ev.JournalWritten | ev.JournalTold, now: float
) -> None:
    match event:
        case ev.JournalWritten(number=number):
            _on_written(hub, journal, number)
        case ev.JournalRead(entries=entries, wall=wall):
            hub.clock_offset = wall - now
            journal.fill(j.by_kind(entries))
            _restore(hub, journal, now)
        case ev.JournalTold():
            hub.diagnostics.journal, journal.is_full = event.view, event.is_full
            for kind, fields in event.news:
                hub.log(kind, fields)
            if event.is_lost:
                journal.rewrite()
        case _:
            assert_never(event)


def answer_when_written(hub: HubState, journal: Journal, client: int, answer: Answer) -> None:
    """Answer a client once the journal has what it has asked for, or another has before it."""
    journal.sweep()
    after = journal.all_pending
    if after:
        hub.due.answers.append((after, client, answer))
    else:
        hub.send(client, answer)


def sweep(hub: HubState, journal: Journal) -> None:
    journal.sweep()
    submission.sweep(hub, hub.now)


def _on_written(hub: HubState, journal: Journal, number: int) -> None:
    """The journal has the changes up to a number: what depends on them may leave the hub."""
    journal.on_written(number)
    hub.out += hub.sinks.written(number)
    submission.on_written(hub, number)
    schedules.on_written(hub, number)
    while hub.due.answers and hub.due.answers[0][0] <= number:
        _, client, answer = hub.due.answers.popleft()
        hub.send(client, answer)


def _restore(hub: HubState, journal: Journal, now: float) -> None:
    """Take up what the journal has been filled with; clients and pools may come back."""
    for number, spec in journal.specs.items():
        hub.add_spec(number, spec)
    schedules.restored(hub)
    hub.result_cache.restored()
    hub.letters.restored()
    _restore_tasks(hub, journal, now)
    hub.dependencies.drop_unused()


def _restore_tasks(hub: HubState, journal: Journal, now: float) -> None:
    """Enter tasks, with the outcomes that others need and those that wait for a client."""
    told = _by_client(journal.values)
    restored = journal.restore(partial(_kept, hub))
    for client, values in _by_client(journal.values).items():
        hub.dependencies.bring(client, values)
    for chunk in restored:
        clients.restore(hub, chunk, now)
    for task, outcome in list(journal.outcomes.items()):
        _restore_outcome(hub, journal, task, outcome)
    for chunk in restored:
        submission.restore(hub, chunk, now)
        if hub.house.is_own(chunk.client):
            schedules.entered(hub, chunk)
    for client, values in told.items():
        submission.end_as_told(hub, client, values)


def _restore_outcome(hub: HubState, journal: Journal, task: int, found: j.JournalOutcome) -> None:
    """Have an outcome wait for a client that was away when its task ended."""
    client, seq = client_of(task), seq_of(task)
    outcome = found.done or found.failed
    if outcome is None:
        return
    hub.ledger.answered(client, seq)
    collector.give(hub, of_task(outcome, task))
    if journal.needed(client, seq) and not is_bare(outcome):
        entry = hub.specs.get(found.done.spec) if found.done is not None else None
        spec = entry.spec if entry is not None else NO_SPEC
        hub.dependencies.bring(client, [value_of(seq, outcome, spec)])


def _kept(hub: HubState, chunk: j.JournalChunk) -> list[int]:
    """Return those tasks of a chunk whose outcome is kept."""
    cache, base = hub.result_cache, chunk.client << SEQ_BITS
    seqs = [seq for run in chunk.runs for seq in run.seqs] if len(cache) else []
    return [seq for seq in seqs if cache.of_task(base | seq, hub.now) is not None]


def _by_client(values: Mapping[int, Value]) -> dict[int, list[Value]]:
    """Return outcomes by the clients of their tasks."""
    found: dict[int, list[Value]] = {}
    for task, value in values.items():
        found.setdefault(client_of(task), []).append(value)
    return found
