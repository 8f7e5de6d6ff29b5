"""Submissions: tasks in, within caps, and what clients give up of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from taskmesh.core.actions import SendClient
from taskmesh.core.ids import SEQ_BITS
from taskmesh.core.specs import spec_number
from taskmesh.hub.machine import (
    adoption,
    attachments,
    cancellations,
    collector,
    owners,
    pools,
    schedules,
    sink_values,
)
from taskmesh.hub.machine.books.backlog import LINE
from taskmesh.hub.machine.books.client_session import WORKER, ClientSession
from taskmesh.hub.machine.books.dependencies import is_bare, value_of
from taskmesh.hub.machine.books.journal import is_durable, without
from taskmesh.hub.machine.books.ledger import NAMED, weight_of_edges
from taskmesh.hub.machine.books.limits import MOST_COUNTERS
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import SUSPECT, Cause, State, TaskRecord
from taskmesh.hub.machine.collector import ANYBODY, of_task
from taskmesh.hub.machine.state import HubState
from taskmesh.hub.machine.ventilator import Ventilator
from taskmesh.link.link import ACK_DELAY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.journal_entries import JournalChunk
from taskmesh.messages.limit_rules import text_of
from taskmesh.messages.runs import NOT_DURABLE, DoneRun, Failed, LimitRule, Run, Spec, Value

RETRY_BUSY = 0.05
"""Seconds after which a refused Submit may come again."""
NO_SPEC = Spec(b"", "")
"""In place of one that has been evicted."""
NOTHING = Run(0, 0, [], [])
"""The rest of a run of which every task is taken care of."""
LARGE = 1 << 20
"""Bytes from which on a Submit is acknowledged at once, for its client may wait to send the next one."""


def on_submit(
    hub: HubState, ventilator: Ventilator, session: ClientSession, submit: m.Submit, now: float
) -> None:
    """Enter a batch whole or not at all, and acknowledge it."""
    number = submit.number
    if submit.epoch not in (0, hub.config.epoch):
        hub.out.append(SendClient(session.client, m.ClientRefused()))
        return
    if submit.delivered:
        on_result_ack(hub, session, submit.epoch, submit.delivered, now)
    if number != session.submitted + 1:
        if number <= session.submitted:
            hub.out.append(SendClient(session.client, m.Accepted(session.accepted)))
        return
    missing = _missing(hub, session, submit)
    if missing is not None:
        hub.out.append(SendClient(session.client, missing))
        return
    count, size = _weight(hub, submit)
    if count and not _takes(hub, session, submit, count, size):
        hub.dependencies.drop_unused()
        return
    hub.dependencies.reopen(session.client, submit.runs)
    _write_down(hub, session, submit, number)
    _enter_all(hub, ventilator, session, submit, now)
    if submit.cancels or submit.unstarted:
        on_cancel(hub, session.client, submit.cancels, submit.unstarted)
        account = hub.ledger.account(session.client)
        account.never(submit.cancels, hub.config.client_max_bytes)
    if submit.whole:  # it has had the outcomes of what it has not brought, or has given it up
        hub.ledger.account(session.client).whole = True
        cancellations.drop_unclaimed(hub, session.client, only_bound=False)
        for chunk in hub.awaited.late.pop(session.client, ()):
            _drop_late(hub, session.client, [seq for run in chunk.runs for seq in run.seqs])
    _acknowledge(hub, session, size, now)


def _durable(hub: HubState, session: ClientSession, submit: m.Submit) -> JournalChunk | None:
    """Return those tasks of a Submit, before they are entered, that the journal is to have."""
    account = hub.ledger.account(session.client)
    runs = [run for run in submit.runs if is_durable(hub.specs[run.spec].spec)]
    if any(run.again for run in runs):
        base, is_late = session.client << SEQ_BITS, session.client in hub.awaited.late
        known = {
            seq
            for run in runs
            for seq in run.seqs
            if seq in account.tasks
            or (is_late and hub.journal is not None and hub.journal.has(session.client, seq))
            or seq in account.finished
            or hub.result_cache.of_task(base | seq, hub.now)
        }
        runs = [run for run in (without(run, known) for run in runs) if run.seqs]
    return JournalChunk(session.client, session.user, session.name, hub.wall, runs) if runs else None


def end_as_told(hub: HubState, client: int, values: Iterable[Value]) -> None:
    """Tasks that a journal had, and whose outcome is known to their client or to others, end in that way.

    Another execution might end in another way than those were told.
    """
    for value in values:
        record = hub.ledger.tasks_of(client).get(value.seq)
        if record is None or value.is_bare or (record.extra is not None and record.extra.is_shared):
            continue  # others may need the result
        if value.failed is not None:
            failure = replace(value.failed, client=client, seq=value.seq)
            if record.state is not State.QUEUED:
                collector.finish(hub, record, Cause.FAIL, failure)
            continue
        attempt = value.attempt or record.attempt
        done = DoneRun(record.spec.number, client, attempt, "", [value.seq], [value.payload], 0.0)
        collector.on_done(hub, done, ANYBODY)


def _write_down(hub: HubState, session: ClientSession, submit: m.Submit, number: int) -> None:
    """Have the journal written before the client hears that its tasks are accepted."""
    journal = hub.journal
    chunk = _durable(hub, session, submit) if journal is not None and submit.runs else None
    session.submit(submit)
    if journal is None:
        return
    if chunk is None:
        journal.bring(session.client, submit.values)
    else:
        held = hub.dependencies.held_for(chunk.client, chunk.runs)
        journal.accept(chunk, hub.specs, [*submit.values, *held])
        session.unwritten.append((number, journal.upcoming))
        hub.due.unwritten.setdefault(session.client, session)
    end_as_told(hub, session.client, submit.values)


def on_written(hub: HubState, number: int) -> None:
    """The journal has the changes up to a number: tell clients what is accepted now."""
    for client, session in list(hub.due.unwritten.items()):
        before = session.accepted
        if not session.written(number):
            del hub.due.unwritten[client]
        if session.accepted > before:
            hub.out.append(SendClient(client, m.Accepted(session.accepted)))
        hub.due.news.add(client)


def _enter_all(
    hub: HubState, ventilator: Ventilator, session: ClientSession, submit: m.Submit, now: float
) -> None:
    alone = len(submit.runs) == 1 and not submit.unstarted
    dependencies = hub.dependencies
    if submit.values:
        dependencies.bring(session.client, submit.values)
    for run in submit.runs:
        left = enter(hub, session.client, run, now)
        if not alone or len(left) != 1 or not ventilator.offer(left[0]):
            hub.ledger.enqueue(left)
    if dependencies.brought:
        dependencies.drop_unused()


def _missing(
    hub: HubState, session: ClientSession, submit: m.Submit
) -> m.NeedSpec | m.NeedValues | m.Busy | None:
    """Return the message that asks for what a Submit lacks, if it lacks anything.

    A client that is yet to hear of an outcome cannot send it: it submits again later.
    """
    specs = _missing_specs(hub, submit)
    if specs:
        return m.NeedSpec(submit.number, sorted(specs))
    for run in submit.runs:
        if run.needs or run.after:
            seqs = _missing_values(hub, session, submit.runs, submit.values)
            if seqs:
                hub.dependencies.drop_unused()
                if not all(is_bare(outcome) for outcome, _ in session.unacknowledged(set(seqs))):
                    return m.Busy(submit.number, RETRY_BUSY)
                return m.NeedValues(submit.number, seqs)
            break
    return None


def _missing_values(hub: HubState, session: ClientSession, runs: list[Run], values: list[Value]) -> list[int]:
    """Return the tasks that runs depend on and whose outcome only the client can know.

    An outcome that is on its way to the client, or in a sink, is taken from there.
    """
    dependencies = hub.dependencies
    seqs = dependencies.missing(session.client, runs, values)
    if not seqs:
        return []
    found = [*session.unacknowledged(set(seqs)), *hub.sinks.unacknowledged(session.client, seqs)]
    needed = {seq for run in runs for edges in run.needs for seq in edges}
    for outcome, seq in found:
        number = outcome.spec if isinstance(outcome, DoneRun) else 0
        if isinstance(outcome, DoneRun) and not number:
            continue  # of a promise: its client has to sign the value once more
        if is_bare(outcome) and seq in needed:
            continue
        entry = hub.specs.get(number)
        spec = entry.spec if entry is not None else NO_SPEC
        dependencies.bring(session.client, [value_of(seq, outcome, spec)])
    return dependencies.missing(session.client, runs, values) if found else seqs


def _missing_specs(hub: HubState, submit: m.Submit) -> set[int]:
    """Take in the specs of its tasks that a Submit brings; return the numbers of those that they lack.

    A spec that comes without a task is passed over: it would count as nobody's. It is found by its number
    from then on, whoever has brought it, so the number is compared with the spec.
    """
    specs = hub.specs
    missing = {run.spec for run in submit.runs if run.spec not in specs}
    limited: dict[str, str] = {}
    rules: list[LimitRule] = []
    for number, spec in submit.specs if missing else ():
        if number in missing and number == spec_number(spec):
            missing.discard(number)
            hub.add_spec(number, spec)
            rules += spec.limits
            limited.update((rule.name, spec.name) for rule in spec.limits)
    for rule in hub.ledger.limits.define(rules) if rules else ():
        fields: dict[str, object] = {
            "limit": rule.name,
            "rule": text_of(rule),
            "task": limited[rule.name],
            "fixed": rule.name in hub.ledger.limits.fixed,
        }
        hub.log("limit.changed", fields)
    return missing


def _acknowledge(hub: HubState, session: ClientSession, size: int, now: float) -> None:
    """Acknowledge a Submit: with the next delivery or after ACK_DELAY, every second one at once.

    So is a large one, since its client may wait for room in its window.
    """
    due = hub.due.acks
    if session.client in due or size >= LARGE:
        due.pop(session.client, None)
        hub.out.append(SendClient(session.client, m.Accepted(session.accepted)))
    else:
        due[session.client] = now + ACK_DELAY


def acknowledge_due(hub: HubState, now: float) -> None:
    while hub.due.acks:
        client, due = next(iter(hub.due.acks.items()))
        if now < due:
            return
        hub.out += owed(hub, client)


def owed(hub: HubState, client: int) -> list[SendClient]:
    """The acknowledgement that a client waits for, if it does: now is the time."""
    if hub.due.acks.pop(client, None) is None:
        return []
    return [SendClient(client, m.Accepted(hub.clients[client].accepted))]


def _takes(hub: HubState, session: ClientSession, submit: m.Submit, count: int, size: int) -> bool:
    """Return True if tasks may come in now; otherwise answer the client with the reason.

    With a pool's key only tasks that pools of this key run may submit others, which end with them. After
    a restart such a pool may come back later than its tasks do: they wait.
    """
    nested = session.user.startswith(WORKER)
    if nested and any(hub.specs[run.spec].spec.on_client_loss != "cancel" for run in submit.runs):
        reason = (
            "a worker's key is for tasks that a running task submits, with on_client_loss='cancel': "
            "make a client's key for other programs with `taskmesh keys new client`"
        )
        hub.out.append(SendClient(session.client, m.ClientRefused(reason)))
        return False
    may_act = not nested or (owners.may_name(hub, session) and pools.have_work(hub, session.user))
    if may_act and _fits(hub, session, submit, count, size):
        return True
    hub.out += owed(hub, session.client)
    hub.out.append(SendClient(session.client, m.Busy(submit.number, RETRY_BUSY)))
    return False


def _fits(hub: HubState, session: ClientSession, submit: m.Submit, count: int, size: int) -> bool:
    config, ledger = hub.config, hub.ledger
    account = ledger.account(session.client)
    kept = account.size + session.size
    tasks_fit = (
        ledger.count + count <= config.max_tasks and len(account.tasks) + count <= config.client_max_tasks
    )
    bytes_fit = (ledger.size + size <= config.max_bytes or not ledger.size) and (
        kept + size <= config.client_max_bytes or not kept
    )
    if hub.journal is not None and hub.journal.is_full and _durable(hub, session, submit):
        return False
    if len(ledger.limits.counters) >= MOST_COUNTERS and any(run.part for run in submit.runs):
        return False
    return tasks_fit and bytes_fit and not account.is_scattered(config.client_max_bytes)


def _weight(hub: HubState, submit: m.Submit) -> tuple[int, int]:
    """Return the number of its tasks that are new, and the bytes that all of it may take."""
    count = size = 0
    brought: set[int] = set()
    for run in submit.runs:
        entry = hub.specs[run.spec]
        if not entry.live and run.spec not in brought:
            brought.add(run.spec)
            size += entry.size
        count += 0 if run.rerun else len(run.seqs)
        size += LINE + sum(map(len, run.payloads))
        if run.key:
            size += NAMED + len(run.key)
        if run.needs or run.after:
            size += sum(weight_of_edges(len(edges)) for edges in (*run.needs, *run.after))
    for value in submit.values:
        size += len(value.payload)
    return count, size


def enter(hub: HubState, client: int, run: Run, now: float) -> list[TaskRecord]:
    """Enter a run; return those of its tasks that are to be queued now."""
    for stage in BEFORE_ACCEPTED:
        run = stage(hub, client, run, now)
        if not run.seqs:
            return []
    records = _accept(hub, client, run, now)
    for wait in BEFORE_QUEUED:
        records = wait(hub, run, records, now)
    return records


def _answer_kept(hub: HubState, client: int, run: Run, now: float) -> Run:
    """Answer tasks with the outcomes that an earlier hub has kept of them."""
    cache = hub.result_cache
    if not run.again or not len(cache):
        return run
    base, kept = client << SEQ_BITS, set()
    for seq in run.seqs:
        cached = cache.of_task(base | seq, now)
        if cached is not None and seq not in hub.ledger.account(client).finished:
            kept.add(seq)
            hub.ledger.account(client).finished.add(seq)
            collector.give(hub, of_task(cached.outcome, base | seq), cache.pending(cached))
    return without(run, kept) if kept else run


def _refuse_durable(hub: HubState, client: int, run: Run, now: float) -> Run:
    """Refuse tasks that are to be durable where there is no journal."""
    if not hub.specs[run.spec].spec.durable or hub.journal is not None or run.again:
        return run
    for seq in run.seqs:
        hub.ledger.account(client).finished.add(seq)
        collector.give(hub, Failed(client, seq, 0, NOT_DURABLE))
    return NOTHING


def _accept(hub: HubState, client: int, run: Run, now: float) -> list[TaskRecord]:
    """Return the new records of a run, with what is known of them from before and who waits for them."""
    records = hub.ledger.accept(client, hub.specs[run.spec], run, now, fresh=not run.again)
    if hub.awaited.early:
        attachments.came(hub, client, run.seqs)
    if run.rerun:
        hub.ledger.reruns += len(records)
        for record in records:
            record.raise_attempts(run.rerun, run.rerun)
    for record in records if run.tried else ():
        record.raise_attempts(run.tried, run.tried)
        record.more().failed = run.tried
        record.charge(errors=run.tried)
    return records


def _await_end(hub: HubState, run: Run, records: list[TaskRecord], now: float) -> list[TaskRecord]:
    """Have promises WAIT for somebody to fulfil them, and values for room in their sink."""
    entry = hub.specs[run.spec]
    if not entry.needs_no_pool:
        return records
    for record in records:
        hub.ledger.move(record, Cause.AWAIT)
    if entry.is_sink_value and records:
        sink = entry.spec.sink and hub.owned(records[0].client, entry.spec.sink)
        sink_values.enter(hub, sink, records)
    return []


def _await_upstream(hub: HubState, run: Run, records: list[TaskRecord], now: float) -> list[TaskRecord]:
    """Have tasks that depend on others WAIT, if only to the end of this step.

    All of them have their edges before the first may end: one that an earlier hub had is with a pool, or
    over, or waits for pools as well.
    """
    if not run.needs and not run.after:
        return records
    dependencies, ledger = hub.dependencies, hub.ledger
    session = hub.clients.get(records[0].client) if records else None
    if session is not None:  # a task of this message may have ended, since a pool had its outcome already
        _missing_values(hub, session, [run], [])
    none: list[list[int]] = [[]] * len(run.seqs)
    edges = dict(zip(run.seqs, zip(run.needs or none, run.after or none, strict=True), strict=True))
    for record in records:
        needs, after = edges[record.seq]
        dependencies.enter(record, needs, after, run.when)
        ledger.move(record, Cause.AWAIT)
    for record in records:
        if run.delay > 0:
            _put_off(hub, record, run, now)
        elif run.again:
            adoption.is_known_elsewhere(hub, record, now)
    return []


def _await_time(hub: HubState, run: Run, records: list[TaskRecord], now: float) -> list[TaskRecord]:
    if run.delay <= 0:
        return records
    for record in records:
        hub.ledger.move(record, Cause.DELAY)
        _put_off(hub, record, run, now)
    return []


def _put_off(hub: HubState, record: TaskRecord, run: Run, now: float) -> None:
    """Have a record that has just become WAITING start when its client has said.

    It may have started at an earlier hub, where the clock has gone back since.
    """
    if run.at > 0:
        schedules.start_at(hub, record, run.at, run.delay)
    else:
        hub.ledger.wait(record, now + run.delay)
    if run.again:
        adoption.is_found(hub, record, record.id, now)


def _leave_to_pools(hub: HubState, run: Run, records: list[TaskRecord], now: float) -> list[TaskRecord]:
    """Leave out tasks that an earlier hub had, and that pools have run, or may hold; queue suspects."""
    if not run.again:
        return records
    records = [record for record in records if not adoption.is_known_elsewhere(hub, record, now)]
    for record in [record for record in records if record.losses >= SUSPECT]:
        hub.ledger.requeue(record)
    return [record for record in records if record.losses < SUSPECT]


def _attach(hub: HubState, client: int, run: Run, now: float) -> Run:
    """A second submission under the key of a task on its way becomes its second waiter.

    After its end, the outcome itself is the answer for as long as the spec says. The key of an attachment
    is another task's id.
    """
    if not run.key:
        return run
    entry, seq = hub.specs[run.spec], run.seqs[0]
    account = hub.ledger.account(client)
    if seq in account.tasks or seq in account.finished:
        pass  # it was here before
    elif entry.is_attachment:
        attachments.enter(hub, client, run, entry, now)
    elif not _answer(hub, client, run, entry, now):
        first = hub.ledger.by_key(entry.spec.name, hub.owned(client, run.key))
        if first is None or entry.spec.shared != "all":
            return run
        hub.ledger.attach(client, seq, first)
        if hub.awaited.early:
            attachments.came(hub, client, run.seqs)
        if run.again:
            adoption.is_found(hub, first, client << SEQ_BITS | seq, now)
    return NOTHING


def _answer(hub: HubState, client: int, run: Run, entry: SpecEntry, now: float) -> bool:
    """Answer a task with the outcome that is kept for its key; return False if there is none."""
    seq, cache = run.seqs[0], hub.result_cache
    key = (entry.spec.name, hub.owned(client, run.key))
    cached = cache.find(key, now)
    if cached is None:
        return False
    if entry.spec.detach:
        user = hub.owner(client)
        cached = cache.add(key, client << SEQ_BITS | seq, user)
    kept = cached.outcome
    hub.ledger.account(client).finished.add(seq)
    collector.give(hub, of_task(kept, client << SEQ_BITS | seq), cache.pending(cached))
    if entry.is_promise:  # tasks of this Submit may depend on it
        value = value_of(seq, kept, entry.spec)
        value.key = run.key
        hub.dependencies.bring(client, [value])
    return True


BEFORE_ACCEPTED: Final = (_answer_kept, _refuse_durable, _attach)
"""Each is given a run that comes in, and returns what is left of it to become tasks of their own."""
BEFORE_QUEUED: Final = (_await_end, _await_upstream, _await_time, _leave_to_pools)
"""Each is given the new tasks of a run, and returns those that are left to be queued now."""


def on_cancel(hub: HubState, client: int, seqs: list[int], unstarted: list[int]) -> None:
    """A client has cancelled tasks of its own. Of the `unstarted` ones it learns which have ended.

    A task that a pool has, or may list after a restart, ends if it turns out not to have started.
    """
    if hub.dependencies.kept:
        hub.dependencies.drop_kept(client, seqs)
    sink_values.withdraw(hub, client, seqs)
    if client in hub.awaited.late:
        _drop_late(hub, client, seqs)
    unsplit = hub.clients[client].unsplit
    for seq in seqs:
        cancellations.cancel(hub, client, seq, quiet=True)
        unsplit.pop(seq, None)
    sessions: set[int] = set()
    for seq in unstarted:
        record, task = hub.ledger.tasks_of(client).get(seq), client << SEQ_BITS | seq
        if record is None or record.has_failed:
            continue
        if record.state is State.QUEUED or _has_never_left(hub, record):
            cancellations.cancel(hub, client, seq)
        elif task not in record.more().unwanted:
            record.extra.unwanted += (task,)
            sessions.add(record.session)
    for lane in [hub.lanes[session] for session in sorted(sessions) if session]:
        pools.recall_unwanted(hub, lane)


def _drop_late(hub: HubState, client: int, seqs: list[int]) -> None:
    """Nobody waits for these tasks of the journal, but for those of them that are here."""
    account = hub.ledger.account(client)
    gone = [seq for seq in seqs if seq not in account.tasks and seq not in account.finished]
    if hub.journal is not None:
        hub.journal.over(client, gone)


def _has_never_left(hub: HubState, record: TaskRecord) -> bool:
    """Return True if a task waits for its time or for others, and no pool has had it."""
    if record.state is not State.WAITING or record.begun:
        return False
    if record.spec.is_promise:
        return True
    links = record.links
    return record.due > hub.now or (links is not None and links.waits > 0 and not links.recovers)


def on_result_ack(hub: HubState, session: ClientSession, epoch: int, number: int, now: float) -> None:
    """A client has its deliveries up to this one: there is room for more."""
    if epoch == hub.config.epoch:
        taken = session.acknowledged(number, now)
        hub.due.news.add(session.client)
        if hub.journal is not None:
            for message in taken:
                hub.journal.delivered(session.client, message.done, message.failed, hub.specs)
                for failure in message.failed:
                    hub.letters.taken(session.client << SEQ_BITS | failure.seq)
