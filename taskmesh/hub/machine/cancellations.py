"""Cancellations: of one task at once, of all that a client has in portions.

A client may have millions of tasks. To end them in one step would keep everybody else waiting for seconds, so
the machine ends a portion in each step and is due again at once. None of the client's queued tasks starts
meanwhile.
"""

from __future__ import annotations

from enum import IntEnum

from taskmesh.core.ids import SEQ_BITS, SEQ_MASK
from taskmesh.hub.machine.books.account import PORTION
from taskmesh.hub.machine.books.states import Cause, State
from taskmesh.hub.machine.collector import Collector
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.mesh_messages import Cancel
from taskmesh.messages.runs import Failed, Held

LOOKUPS_PER_CANCEL = 4
"""Tasks that are looked at in the time in which one is cancelled, at least."""


class Extent(IntEnum):
    """The part of a client's tasks that ends, from little to much."""

    BOUND = 0
    """Those with on_client_loss="cancel"."""
    ATTACHED = 1
    """All but detached ones."""
    ALL = 2


class Pending:
    """The cancellation of one client's tasks, while it is under way.

    Attributes:
        low: counters below this have been looked at. end: those from here on came later, and are left alone.
        extent: which tasks.
        reason: why, for the log; empty for what needs no line there.
        count: how many were cancelled.
    """

    __slots__ = ("count", "end", "extent", "low", "reason")

    def __init__(self, end: int, extent: Extent, reason: str) -> None:
        self.low = 0
        self.end = end
        self.extent = extent
        self.reason = reason
        self.count = 0


class Cancellations:
    """Ends tasks that nobody wants any more.

    Attributes:
        pending: what is to be cancelled, by client.
    """

    def __init__(self, hub: HubState, collector: Collector) -> None:
        self._hub = hub
        self._ledger = hub.ledger
        self._collector = collector
        self._at_pools: dict[int, dict[tuple[int, int], list[int]]] = {}
        self.pending: dict[int, Pending] = {}

    def cancel(self, task: int, *, quiet: bool = False) -> bool:
        """One waiter gives a task up; the last one's ends it. False when it is not on its way.

        Args:
            task: the id under which it waits.
            quiet: it is not told.
        """
        record = self._ledger.tasks.get(task)
        if record is None or not record.is_waited_for(task):
            return False
        if record.extra is not None and record.extra.abandoned and task == record.id:
            return True  # it is run for others
        cancelled = Failed(task >> SEQ_BITS, task & SEQ_MASK, record.attempt - record.returns, "cancelled")
        after = 0
        if self._ledger.detach(task, record):
            if State.SENT <= record.state <= State.RUNNING:
                self.cancel_at_pool(record.session, record.attempt, record.known_as)
            _, after = self._collector.close(record, Cause.CANCEL, cancelled)
        else:
            self._hub.dependencies.given_up(task, record, cancelled)
        journal = self._hub.journal
        if journal is not None and quiet:
            journal.delivered(task >> SEQ_BITS, [], [cancelled], self._hub.specs)
        elif journal is not None:
            journal.ended(task >> SEQ_BITS, cancelled)  # others may have heard of it than its client
        if not quiet:
            self._collector.give(cancelled, after)
        return True

    def cancel_all(self, client: int, extent: Extent = Extent.ALL, reason: str = "") -> int:
        """Cancel what a client has now, from the next step on.

        Args:
            client: the client.
            extent: which of its tasks.
            reason: why, for the log; empty for what needs no line there.

        Returns:
            How many tasks it has.
        """
        session = self._hub.clients.get(client)
        if session is not None and extent is not Extent.BOUND:
            session.unsplit.clear()
        account = self._ledger.accounts.get(client)
        if account is None or not account.tasks:
            return 0
        before = self.pending.get(client)
        if before is not None:
            extent = max(extent, before.extent)
            reason = reason or before.reason
        self.pending[client] = Pending(account.accepted.end, extent, reason)
        self._ledger.backlog.withheld.add(client)
        return account.tasks

    def step(self) -> list[int]:
        """Goes on with what is pending, by one portion; returns the clients with which it is done."""
        done: list[int] = []
        left = PORTION * LOOKUPS_PER_CANCEL
        while left > 0 and self.pending:
            client, job = next(iter(self.pending.items()))
            account = self._ledger.account(client)
            seqs = account.on_their_way(
                job.low, left if job.extent is Extent.BOUND else -(-left // LOOKUPS_PER_CANCEL)
            )
            left -= self._cancel_some(client, job, seqs)
            if not seqs or job.low >= job.end:
                del self.pending[client]
                self._ledger.backlog.withheld.discard(client)
                self._hub.news.add(client)  # it may have too many results to take besides
                self._tell(client, job)
                done.append(client)
        return done

    def _cancel_some(self, client: int, job: Pending, seqs: list[int]) -> int:
        """Cancel what is to be of these; return what that cost, in looks."""
        tasks, base, quiet, looks = self._ledger.tasks, client << SEQ_BITS, client not in self._hub.clients, 1
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
            job.count += self.cancel(base | seq, quiet=quiet)
            looks += LOOKUPS_PER_CANCEL - 1
        return looks

    def _tell(self, client: int, job: Pending) -> None:
        if not job.reason:
            return
        account = self._ledger.account(client)
        fields: dict[str, object] = {
            "client": f"{client:016x}",
            "name": account.name,
            "key": account.user,
            "tasks": job.count,
            "reason": job.reason,
        }
        self._hub.log("tasks.cancelled", fields)

    # --- at pools -----------------------------------------------------------------------------------------

    def cancel_at_pool(self, session: int, attempt: int, task: int) -> None:
        """Has the pool that holds a task told to drop it, with others of this moment."""
        cancels = self._at_pools.setdefault(session, {})
        cancels.setdefault((task >> SEQ_BITS, attempt), []).append(task & SEQ_MASK)

    def drop_unclaimed(self, client: int, *, only_bound: bool) -> None:
        """Nobody will ask for what pools hold for a client, or for what is bound to it: they drop that."""
        unclaimed = self._hub.unclaimed
        holdings = unclaimed.drop_bound(client) if only_bound else unclaimed.take_all(client)
        for seq, holding in holdings.items():
            self.cancel_at_pool(holding.session, holding.attempt, client << SEQ_BITS | seq)

    def publish(self) -> None:
        """One message to each pool that is to drop tasks."""
        for session, cancels in self._at_pools.items():
            lane = self._hub.lanes.get(session)
            if lane is not None:
                held = [Held(client, attempt, seqs) for (client, attempt), seqs in cancels.items()]
                self._hub.publish(lane.pool, Cancel(self._hub.config.epoch, session, held))
        self._at_pools.clear()
