"""Attachments: clients that wait for tasks which they have not submitted, by the ids of these.

An attachment of a task on its way is a second waiter for it, as a second submission under one key is. After a
restart the client of the other task may come back later than this one: until nobody is expected any more, the
attachment is a WAITING record of its own, and joins the other in the step in which that comes: a moment later
it may have ended.
"""

from __future__ import annotations

from msgspec.structs import replace

from taskmesh.core import ids
from taskmesh.hub.machine import adoption, collector
from taskmesh.hub.machine.books.dependencies import is_bare
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import Cause, State, TaskRecord
from taskmesh.hub.machine.collector import of_task
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.runs import UNKNOWN, DoneRun, Failed, Run


def enter(hub: HubState, client: int, run: Run, entry: SpecEntry, now: float) -> None:
    """Enter an attachment that was not here before; the id of the other task is its key."""
    seq = run.seqs[0]
    task, target = ids.task_id(client, seq), _target(run.key)
    kept = _kept(hub, client, target, now)
    record = _found(hub, client, target)
    if record is not None:
        hub.ledger.attach(client, seq, record)
        if run.again:
            adoption.is_found(hub, record, task, now)
    elif kept is None and _may_come(hub, client, target):
        alone = replace(run, key="")
        for record in hub.ledger.accept(client, entry, alone, now, fresh=not run.again):
            hub.ledger.move(record, Cause.AWAIT)
            hub.awaited.early.setdefault(target, []).append(record)
    else:
        hub.ledger.account(client).finished.add(seq)
        outcome, after = kept or _unfetched(hub, client, target) or (unknown(), 0)
        collector.give(hub, of_task(outcome, task), after)


def came(hub: HubState, client: int, seqs: list[int]) -> None:
    """Join the attachments that wait for these tasks of a client, which have just come."""
    for target in [ids.task_id(client, seq) for seq in seqs]:
        for record in hub.awaited.early.pop(target, ()):
            if record.state is not State.WAITING:
                continue
            other = _found(hub, record.client, target)
            if other is None:
                collector.end(hub, record, Cause.FAIL, unknown())
            else:
                hub.ledger.attach(record.client, record.seq, other)


def sweep(hub: HubState) -> None:
    """End the attachments of tasks that will not come any more."""
    early, hub.awaited.early = hub.awaited.early, {}
    for target, records in early.items():
        for record in records:
            if record.state is not State.WAITING:
                continue
            if _may_come(hub, record.client, target):
                hub.awaited.early.setdefault(target, []).append(record)
            else:
                collector.end(hub, record, Cause.FAIL, unknown())


def _found(hub: HubState, client: int, target: int) -> TaskRecord | None:
    """Return the record of a task on its way whose outcome this client may have."""
    record = hub.ledger.by_id(target)
    if record is None or record.spec.is_chunk:
        return None
    return record if _is_visible(hub, client, target) else None


def _kept(hub: HubState, client: int, target: int, now: float) -> tuple[DoneRun | Failed, int] | None:
    """Return the outcome that is kept of a task, if this client may have it, and when."""
    cache = hub.result_cache
    kept = cache.of_task(target, now)
    if kept is None or kept.user != hub.owner(client):
        return None
    return kept.outcome, cache.pending(kept)


def _unfetched(hub: HubState, client: int, target: int) -> tuple[DoneRun | Failed, int] | None:
    """Return the outcome of a task that has ended, if that waits for a client which is away.

    With it the number of the journal's changes that have it: nobody else has it before.
    """
    session = hub.clients.get(ids.client_of(target))
    if session is None or session.present or not _is_visible(hub, client, target):
        return None
    for outcome, _ in session.unacknowledged({ids.seq_of(target)}):
        if is_bare(outcome):
            return None
        entry = hub.specs.get(outcome.spec) if isinstance(outcome, DoneRun) else None
        if entry is not None and entry.spec.keep > 0:
            return None  # its time is over
        journal = hub.journal
        return outcome, journal.ended(session.client, outcome) if journal is not None else 0
    return None


def _may_come(hub: HubState, client: int, target: int) -> bool:
    """Return True if the client of a task that is not here may come back with it after a restart."""
    owner, seq = ids.client_of(target), ids.seq_of(target)
    if not target or hub.ledger.by_id(target) is not None or not _expects_clients(hub):
        return False
    if owner in hub.ledger.accounts and not _is_visible(hub, client, target):
        return False
    return not adoption.is_over(hub, owner, seq)


def _expects_clients(hub: HubState) -> bool:
    """True while clients of a hub before this one may still come back."""
    return hub.unclaimed.expects_former_clients and not hub.config.first


def _is_visible(hub: HubState, client: int, target: int) -> bool:
    """Return True if a task is of the user whose key this client has shown."""
    owner = hub.ledger.accounts.get(ids.client_of(target))
    return owner is not None and owner.owner == hub.owner(client)


def _target(text: str) -> int:
    """Return the id in an attachment's key; 0, which no task has, if it is none."""
    try:
        return ids.parse(text)
    except ValueError:
        return 0


def unknown() -> Failed:
    """Return the end of an attachment of a task of which nothing is known."""
    return Failed(
        0,
        0,
        0,
        UNKNOWN,
        text="nothing is known of it: it has ended, and its outcome is not kept; or it was never "
        "submitted to this hub; or it was submitted with another key",
    )
