"""The events of a hub's journal: it has been read when the hub starts, and it is written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import assert_never

from msgspec.structs import replace

from taskmesh.core import events as ev
from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.hub.machine import clients, collector, schedules, submission
from taskmesh.hub.machine.books.dependencies import UNKNOWN_TASK, is_bare, value_of
from taskmesh.hub.machine.books.journal import Journal, without
from taskmesh.hub.machine.collector import of_task
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.submission import NO_SPEC
from taskmesh.messages import journal_entries as j
from taskmesh.messages.mesh_messages import Answer
from taskmesh.messages.runs import Value

LEASES = 2
"""Leases for which chunks are late: clients are back by then; what pools have reported is kept for three."""


def on_event(
    hub: HubState, journal: Journal, event: ev.JournalRead | ev.JournalWritten | ev.JournalTold, now: float
) -> None:
    match event:
        case ev.JournalWritten(number=number):
            _on_written(hub, journal, number)
        case ev.JournalRead(entries=entries, wall=wall):
            hub.clock_offset = wall - now
            journal.fill(j.by_kind(entries))
            _take_up(hub, journal, now)
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
    if hub.awaited.late and hub.now >= hub.awaited.late_until:
        _enter_late(hub, journal)


def _on_written(hub: HubState, journal: Journal, number: int) -> None:
    """The journal has the changes up to a number: what depends on them may leave the hub."""
    journal.on_written(number)
    hub.out += hub.sinks.written(number)
    submission.on_written(hub, number)
    schedules.on_written(hub, number)
    while hub.due.answers and hub.due.answers[0][0] <= number:
        _, client, answer = hub.due.answers.popleft()
        hub.send(client, answer)


def _take_up(hub: HubState, journal: Journal, now: float) -> None:
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
        restore(hub, chunk, now)
        if hub.house.is_own(chunk.client):
            schedules.entered(hub, chunk)
    for client, values in told.items():
        submission.end_as_told(hub, client, values)


def restore(hub: HubState, chunk: j.JournalChunk, now: float) -> None:
    """Enter tasks as if their client had submitted them again, unless they are late."""
    if hub.dependencies.missing(chunk.client, chunk.runs, ()):
        hub.awaited.late_until = now + LEASES * hub.config.lease
        hub.awaited.late.setdefault(chunk.client, []).append(chunk)
    else:
        _enter(hub, chunk)


def _enter(hub: HubState, chunk: j.JournalChunk) -> None:
    age = max(0.0, hub.wall - chunk.at)
    for run in chunk.runs:
        again = replace(run, again=True, age=run.age + age, delay=max(0.0, run.delay - age))
        hub.ledger.enqueue(submission.enter(hub, chunk.client, again, hub.now))


def _enter_late(hub: HubState, journal: Journal) -> None:
    """Enter tasks whose upstream does not come any more, unless their client is here."""
    sessions, late = hub.clients, hub.awaited.late
    away = [client for client in late if client not in sessions or not sessions[client].present]
    for chunk in [chunk for client in away for chunk in late.pop(client)]:
        _enter_rest(hub, journal, chunk)
    hub.dependencies.drop_unused()


def _enter_rest(hub: HubState, journal: Journal, chunk: j.JournalChunk) -> None:
    """Enter what is left of a chunk; nothing is known of what it lacks."""
    dependencies, client = hub.dependencies, chunk.client
    over = {seq for run in chunk.runs for seq in run.seqs if not journal.has(client, seq)}
    runs = [run for run in (without(run, over) for run in chunk.runs) if run.seqs]
    for run in runs:
        dependencies.bring(client, journal.values_for(client, run))
        if run.spec not in hub.specs:
            hub.add_spec(run.spec, journal.specs[run.spec])
    unknown = dependencies.missing(client, runs, ())
    failures = [replace(UNKNOWN_TASK, client=client, seq=seq) for seq in unknown]
    dependencies.bring(client, [Value(failure.seq, failed=failure) for failure in failures])
    _enter(hub, replace(chunk, runs=runs))
    told = [journal.values.get(client << SEQ_BITS | seq) for run in runs for seq in run.seqs]
    submission.end_as_told(hub, client, [value for value in told if value is not None])


def _restore_outcome(hub: HubState, journal: Journal, task: int, found: j.JournalOutcome) -> None:
    """Have an outcome wait for a client that was away when its task ended."""
    client, seq = client_of(task), seq_of(task)
    outcome = found.done or found.failed
    if outcome is None:
        return
    hub.ledger.account(client).finished.add(seq)
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
