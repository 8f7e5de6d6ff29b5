"""Values in sinks, of Spark's streams: tasks without a function, whose payloads are their outcomes.

Such a task is a WAITING record until its sink has room, as a rule within the step in which it comes. No pool
is needed for it, and it stands in no queue. While it waits it counts among the tasks and bytes of its client,
so a client that puts faster than consumers take is held back as with any other tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from taskmesh.core.ids import user_of
from taskmesh.hub.machine import collector
from taskmesh.hub.machine.books.sinks import MOST_BYTES, MOST_OUTCOMES
from taskmesh.hub.machine.books.states import Cause, State, TaskRecord
from taskmesh.hub.machine.collector import bare, of_task
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.runs import DoneRun, Failed

TIDY = 1000
"""Records of a full sink after which those that have been given up are looked for."""


def enter(hub: HubState, sink: str, records: Iterable[TaskRecord]) -> None:
    """Take in values, which WAIT, and put into their sink what it has room for."""
    waiting = hub.sink_values.waiting.setdefault(sink, deque())
    waiting.extend(records)
    go_on(hub, sink)
    if len(waiting) > hub.sink_values.tidy_at.get(sink, TIDY):
        left = hub.sink_values.waiting[sink] = deque(one for one in waiting if one.state is State.WAITING)
        hub.sink_values.tidy_at[sink] = 2 * len(left) + TIDY


def go_on(hub: HubState, sink: str) -> None:
    """Put into a sink what it has room for.

    One that is empty takes a value of any size, if no other has more than its share for that reason.
    """
    waiting, sinks = hub.sink_values.waiting.get(sink), hub.sinks
    hub.sink_values.large.get(user_of(sink), {}).pop(sink, None)
    if waiting is None:
        return
    room, takes_any = sinks.room(sink), sinks.takes_any(sink)
    run: list[TaskRecord] = []
    bytes_of_run = 0
    while waiting:
        record = waiting[0]
        if record.state is not State.WAITING:  # it was given up
            waiting.popleft()
            continue
        size = len(record.payload) + 32
        if size > room and not takes_any:
            sinks.closed.add(sink)
            if not run and sink not in sinks.filled:
                hub.sink_values.large.setdefault(user_of(sink), {})[sink] = None
            break
        is_full = bytes_of_run > MOST_BYTES or len(run) >= MOST_OUTCOMES
        if run and (is_full or not _is_of(run[-1], record)):
            _put(hub, run)
            run, bytes_of_run = [], 0
        run.append(waiting.popleft())
        bytes_of_run += size
        room -= size
        takes_any = False
    if run:
        _put(hub, run)
    if not waiting:
        del hub.sink_values.waiting[sink]
        hub.sink_values.tidy_at.pop(sink, None)
        sinks.closed.discard(sink)


def wake(hub: HubState) -> None:
    """Let the first sink of a user that waits for more than its share look whether it may have that."""
    for user in [user for user in hub.sink_values.large if user not in hub.sinks.large]:
        if hub.sink_values.large[user]:
            go_on(hub, next(iter(hub.sink_values.large[user])))
        if not hub.sink_values.large[user]:
            del hub.sink_values.large[user]


def withdraw(hub: HubState, client: int, seqs: Collection[int] | None = None) -> None:
    """Take values of a client out of their sinks again, unless a consumer has them.

    Args:
        client: the client.
        seqs: its tasks; None for all that are bound to it.
    """
    book = hub.sinks.ends.get(client, {})
    given_up: dict[str, set[tuple[int, int]]] = {}
    for seq in list(book) if seqs is None else [seq for seq in seqs if seq in book]:
        outcome = book[seq]
        entry = hub.specs.get(outcome.spec) if isinstance(outcome, DoneRun) else None
        if entry is None or not entry.is_sink_value:
            continue
        if seqs is not None or entry.spec.on_client_loss == "cancel":
            sink = hub.owned(client, entry.spec.sink)
            given_up.setdefault(sink, set()).add((client, seq))
    for sink, keys in given_up.items():
        hub.sinks.withdraw(sink, keys)
        if seqs is None and client in hub.clients:  # it is told should it come back
            for _, seq in sorted(keys):
                collector.give(hub, Failed(client, seq, 1, "cancelled"))
        go_on(hub, sink)


def _put(hub: HubState, records: list[TaskRecord]) -> None:
    """Put values of one client and spec into their sink: their tasks end."""
    ledger, entry, client = hub.ledger, records[0].spec, records[0].client
    spec, name = entry.spec, ledger.account(client).name
    seqs, payloads = [record.seq for record in records], [record.payload for record in records]
    run = DoneRun(entry.number, client, 1, name, seqs, payloads, 0.0)
    if spec.sink:
        hub.sinks.put(hub.owned(client, spec.sink), spec.name, run)
    else:
        collector.acknowledged(hub, bare(run))
    for record in records:
        ledger.move(record, Cause.FULFIL)
        if record.extra is None:
            ledger.drop(record)
        else:
            _end(hub, record, run)


def _end(hub: HubState, record: TaskRecord, run: DoneRun) -> None:
    """End a task that others wait for."""
    payload = record.payload
    hub.dependencies.succeeded(record, payload, 1)
    for waiter in hub.ledger.drop(record):
        if waiter != record.id:
            alone = DoneRun(run.spec, 0, 1, run.worker, [], [payload], 0.0)
            collector.give(hub, of_task(alone, waiter))


def _is_of(last: TaskRecord, record: TaskRecord) -> bool:
    return last.spec is record.spec and last.client == record.client
