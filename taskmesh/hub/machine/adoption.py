"""Adoption: attempts that pools hold of an earlier session or hub go on, and are not sent again."""

from __future__ import annotations

from taskmesh.core.ids import SEQ_BITS, client_of, seq_of
from taskmesh.hub.machine import collector
from taskmesh.hub.machine.books.lanes import Lane
from taskmesh.hub.machine.books.states import Attempt, State, TaskRecord, handed_back
from taskmesh.hub.machine.collector import ANYBODY
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.unclaimed import Holding
from taskmesh.messages.mesh_messages import Hello
from taskmesh.messages.runs import DoneRun, Held

# --- what pools list --------------------------------------------------------------------------------------


def take_inventory(hub: HubState, lane: Lane, hello: Hello, former: int, now: float) -> None:
    """Move what the pool still holds into the new session; what nobody waits for is stale there.

    Of this hub it may have what its process was sent. Who was sent what by the hub before nobody knows:
    until no client of that time is expected any more, a pool is believed what it could be sent as well.

    Args:
        lane: of the new session.
        hello: lists it.
        former: the session of the same process before, 0 if this hub knows of none.
        now: the time.
    """
    taken: list[TaskRecord] = []
    is_heir = lane.first_epoch != hub.config.epoch
    is_believed = is_heir and hub.unclaimed.expects_former_clients
    for held in hello.inventory:
        gone, unclaimed = [], []
        for seq in held.seqs:
            task = held.client << SEQ_BITS | seq
            record = hub.ledger.by_id(task)
            if record is None and not is_over(hub, held.client, seq):
                unclaimed.append(seq)
            elif (
                record is not None
                and may_adopt(record, task, held, former)
                and (
                    (former and collector.was_given(hub, record, task, held.attempt, former))
                    or (is_believed and lane.serves(record.spec.route))
                )
            ):
                adopt(hub, record, task, lane, held)
                taken.append(record)
            else:
                if record is not None and is_heir:
                    record.raise_attempts(held.attempt, held.attempt - handed_back(held))
                gone.append(seq)
        if unclaimed:
            hub.unclaimed.listed(held, unclaimed, lane.session, now)
        if gone:
            lane.stale.append(Held(held.client, held.attempt, gone))
    lane.hold(taken)


def is_over(hub: HubState, client: int, seq: int) -> bool:
    """Return True if nobody wants a task any more that is not on its way."""
    account = hub.ledger.accounts.get(client)
    return (account is not None and account.is_over(seq)) or hub.unclaimed.is_dropped(client, seq)


def may_adopt(record: TaskRecord, task: int, held: Attempt, former: int = 0) -> bool:
    """Return True if a listed attempt is the newest known one and its failure has not been charged.

    Args:
        record: the task.
        task: the id under which the pool has it.
        held: the attempt.
        former: the session in which its process had it from this hub, 0 if there is none.
    """
    if record.spec.needs_no_pool or record.spec.is_attachment:
        return False
    if record.state in (State.QUEUED, State.WAITING):
        number = held.attempt - handed_back(held)
        return number >= record.begun and not (record.has_failed and number <= record.extra.failed)
    return collector.is_current(record, task, former, held.attempt)


def adopt(hub: HubState, record: TaskRecord, task: int, lane: Lane, held: Held | Holding) -> None:
    """A pool holds this attempt of the task already: it is this session's now, and not sent again.

    The caller puts it on the lane's books with `hold`.

    Args:
        task: the id under which the pool has it: the record's own, or that of a waiter.
    """
    if State.SENT <= record.state <= State.RUNNING:
        collector.release(hub, record)
    hub.ledger.adopt(record, task, held, lane.session)
    lane.unwanted |= record.extra is not None and bool(record.extra.unwanted)


# --- what clients submit again ----------------------------------------------------------------------------


def is_known_elsewhere(hub: HubState, record: TaskRecord, now: float) -> bool:
    """A task submitted before, to a hub that is gone: done, held by a pool, or waited for.

    After a restart the pools have a lease's time to come back with what they hold. It is sent again only
    when all of them have, or that is over.
    """
    if is_found(hub, record, record.id, now):
        return True
    if not hub.recovery.is_over(now):
        hub.recovery.wait(record)
        return True
    return False


def is_found(hub: HubState, record: TaskRecord, task: int, now: float) -> bool:
    """Return True if a pool has run the task, or holds it, under the id that an earlier hub used."""
    unclaimed = hub.unclaimed
    known = _reported(hub, record, task, now)
    holding = unclaimed.take(client_of(task), seq_of(task))
    if holding is None or record.state > State.RUNNING:
        return known
    lane = hub.lanes[holding.session]
    may_have = not holding.dropped and lane.serves(record.spec.route)
    if may_have and may_adopt(record, task, holding):
        adopt(hub, record, task, lane, holding)
        lane.hold([record])
        return True
    record.raise_attempts(holding.attempt, holding.attempt - handed_back(holding))
    if not holding.dropped:  # it is old, or another has its key
        hub.cancellations.at_pool(holding.session, holding.attempt, task)
    return known


def _reported(hub: HubState, record: TaskRecord, task: int, now: float) -> bool:
    """Apply what pools reported before the task was asked for; return True if there was such a report."""
    known = False
    for report in hub.unclaimed.claim(task):
        if isinstance(report, DoneRun):
            collector.on_done(hub, report, ANYBODY)
            return True
        if may_adopt(record, task, report):
            collector.failed_before(hub, record, report, now)
            known = True
        else:
            record.raise_attempts(report.attempt, report.attempt - handed_back(report))
        if record.state > State.RUNNING:
            break
    return known
