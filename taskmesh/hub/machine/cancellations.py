"""Cancellations: of one task at once, of all that a client has in portions.

A client may have millions of tasks. To end them in one step would keep everybody else waiting for seconds, so
the machine ends a portion in each step and is due again at once. None of the client's queued tasks starts
meanwhile.
"""

from __future__ import annotations

from taskmesh.core.ids import SEQ_BITS, task_id
from taskmesh.hub.machine import collector
from taskmesh.hub.machine.books.account import PORTION
from taskmesh.hub.machine.books.clients import Extent, Pending
from taskmesh.hub.machine.books.states import Cause, State
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.mesh_messages import Cancel
from taskmesh.messages.runs import Failed, Held

LOOKUPS_PER_CANCEL = 4
"""Tasks that are looked at in the time in which one is cancelled, at least."""


def cancel(hub: HubState, client: int, seq: int, *, quiet: bool = False) -> bool:
    """One waiter gives a task up; the last one's ends it. False when it does not wait for it.

    Args:
        client: the waiter.
        seq: the counter under which it waits.
        quiet: it is not told.
    """
    record = hub.ledger.tasks_of(client).get(seq)
    if record is None:
        return False
    cancelled = Failed(client, seq, record.attempt - record.returns, "cancelled")
    task, after = task_id(client, seq), 0
    if hub.ledger.detach(task, record):
        if State.SENT <= record.state <= State.RUNNING:
            hub.cancellations.at_pool(record.session, record.attempt, record.known_as)
        _, after = collector.close(hub, record, Cause.CANCEL, cancelled)
    else:
        hub.dependencies.given_up(task, record, cancelled)
    journal = hub.journal
    if journal is not None and quiet:
        journal.delivered(client, [], [cancelled], hub.specs)
    elif journal is not None:
        journal.ended(client, cancelled)  # others may have heard of it than its client
    if not quiet:
        collector.give(hub, cancelled, after)
    return True


def cancel_all(hub: HubState, client: int, extent: Extent = Extent.ALL, reason: str = "") -> int:
    """Cancel what a client has now, from the next step on.

    Args:
        client: the client.
        extent: which of its tasks.
        reason: why, for the log; empty for what needs no line there.

    Returns:
        How many tasks it has.
    """
    session = hub.clients.get(client)
    if session is not None and extent is not Extent.BOUND:
        session.unsplit.clear()
    account = hub.ledger.accounts.get(client)
    if account is None or not account.tasks:
        return 0
    before = hub.cancellations.pending.get(client)
    if before is not None:
        extent = max(extent, before.extent)
        reason = reason or before.reason
    hub.cancellations.pending[client] = Pending(account.tasks, extent, reason)
    hub.ledger.backlog.withheld.add(client)
    return len(account.tasks)


def step(hub: HubState) -> list[int]:
    """Goes on with what is pending, by one portion; returns the clients with which it is done."""
    done: list[int] = []
    left = PORTION * LOOKUPS_PER_CANCEL
    while left > 0 and hub.cancellations.pending:
        client, job = next(iter(hub.cancellations.pending.items()))
        left = _cancel_some(hub, client, job, left)
        if not job.seqs:
            del hub.cancellations.pending[client]
            hub.ledger.backlog.withheld.discard(client)
            hub.due.news.add(client)  # it may have too many results to take besides
            _tell(hub, client, job)
            done.append(client)
    return done


def _cancel_some(hub: HubState, client: int, job: Pending, left: int) -> int:
    """Cancel what is to be, with at most so many looks; return how many are left."""
    tasks, quiet = hub.ledger.tasks_of(client), client not in hub.clients
    while job.seqs and left > 0:
        seq = job.seqs.popleft()
        left -= 1
        if (record := tasks.get(seq)) is None:
            continue
        spec = record.spec.spec
        is_spared = spec.detach if job.extent is Extent.ATTACHED else spec.on_client_loss != "cancel"
        if job.extent is not Extent.ALL and is_spared:
            continue
        job.count += cancel(hub, client, seq, quiet=quiet)
        left -= LOOKUPS_PER_CANCEL - 1
    return left


def _tell(hub: HubState, client: int, job: Pending) -> None:
    if not job.reason:
        return
    account = hub.ledger.account(client)
    fields: dict[str, object] = {
        "client": f"{client:016x}",
        "name": account.name,
        "key": account.user,
        "tasks": job.count,
        "reason": job.reason,
    }
    hub.log("tasks.cancelled", fields)


def drop_unclaimed(hub: HubState, client: int, *, only_bound: bool) -> None:
    """Nobody will ask for what pools hold for a client, or for what is bound to it: they drop that."""
    unclaimed = hub.unclaimed
    holdings = unclaimed.drop_bound(client) if only_bound else unclaimed.take_all(client)
    for seq, holding in holdings.items():
        hub.cancellations.at_pool(holding.session, holding.attempt, client << SEQ_BITS | seq)


def publish(hub: HubState) -> None:
    """One message to each pool that is to drop tasks."""
    for session, cancels in hub.cancellations.at_pools.items():
        lane = hub.lanes.get(session)
        if lane is not None:
            held = [Held(client, attempt, seqs) for (client, attempt), seqs in cancels.items()]
            hub.publish(lane.pool, Cancel(hub.config.epoch, session, held))
    hub.cancellations.at_pools.clear()
