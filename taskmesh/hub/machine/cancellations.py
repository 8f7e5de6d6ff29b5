"""Cancellations: of one task at once, of all that a client has in portions.

A client may have millions of tasks. To end them in one step would keep everybody else waiting for seconds, so
the machine ends a portion in each step and is due again at once. None of the client's queued tasks starts
meanwhile.
"""

from __future__ import annotations

from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.hub.machine import collector
from taskmesh.hub.machine.books.account import PORTION
from taskmesh.hub.machine.books.clients import Extent, Pending
from taskmesh.hub.machine.books.states import Cause, State
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.mesh_messages import Cancel
from taskmesh.messages.runs import Failed, Held

LOOKUPS_PER_CANCEL = 4
"""Tasks that are looked at in the time in which one is cancelled, at least."""


def cancel(hub: HubState, task: int, *, quiet: bool = False) -> bool:
    """One waiter gives a task up; the last one's ends it. False when it is not on its way.

    Args:
        task: the id under which it waits.
        quiet: it is not told.
    """
    record = hub.ledger.tasks.get(task)
    if record is None or not record.is_waited_for(task):
        return False
    if record.extra is not None and record.extra.abandoned and task == record.id:
        return True  # it is run for others
    cancelled = Failed(task >> SEQ_BITS, task & SEQ_MASK, record.attempt - record.returns, "cancelled")
    after = 0
    if hub.ledger.detach(task, record):
        if State.SENT <= record.state <= State.RUNNING:
            hub.cancellations.at_pool(record.session, record.attempt, record.known_as)
        _, after = collector.close(hub, record, Cause.CANCEL, cancelled)
    else:
        hub.dependencies.given_up(task, record, cancelled)
    journal = hub.journal
    if journal is not None and quiet:
        journal.delivered(task >> SEQ_BITS, [], [cancelled], hub.specs)
    elif journal is not None:
        journal.ended(task >> SEQ_BITS, cancelled)  # others may have heard of it than its client
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
    hub.cancellations.pending[client] = Pending(account.accepted.end, extent, reason)
    hub.ledger.backlog.withheld.add(client)
    return account.tasks


def step(hub: HubState) -> list[int]:
    """Goes on with what is pending, by one portion; returns the clients with which it is done."""
    done: list[int] = []
    left = PORTION * LOOKUPS_PER_CANCEL
    while left > 0 and hub.cancellations.pending:
        client, job = next(iter(hub.cancellations.pending.items()))
        account = hub.ledger.account(client)
        seqs = account.on_their_way(
            job.low, left if job.extent is Extent.BOUND else -(-left // LOOKUPS_PER_CANCEL)
        )
        left -= _cancel_some(hub, client, job, seqs)
        if not seqs or job.low >= job.end:
            del hub.cancellations.pending[client]
            hub.ledger.backlog.withheld.discard(client)
            hub.due.news.add(client)  # it may have too many results to take besides
            _tell(hub, client, job)
            done.append(client)
    return done


def _cancel_some(hub: HubState, client: int, job: Pending, seqs: list[int]) -> int:
    """Cancel what is to be of these; return what that cost, in looks."""
    tasks, base, quiet, looks = hub.ledger.tasks, client << SEQ_BITS, client not in hub.clients, 1
    for seq in seqs:
        if seq >= job.end:
            job.low = job.end
            break
        job.low = seq + 1
        looks += 1
        spec = tasks[base | seq].spec.spec
        is_spared = spec.detach if job.extent is Extent.ATTACHED else spec.on_client_loss != "cancel"
        if job.extent is not Extent.ALL and is_spared:
            continue
        job.count += cancel(hub, base | seq, quiet=quiet)
        looks += LOOKUPS_PER_CANCEL - 1
    return looks


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
