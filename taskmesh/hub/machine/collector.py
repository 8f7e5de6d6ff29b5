"""The collector: what pools report becomes outcomes, once.

The first valid success of any attempt wins; a failure counts only from the current attempt; everything else
is counted and dropped. Valid is what comes from the session that the attempt was sent to: no pool can answer
for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from taskmesh.core.actions import LogEvent
from taskmesh.core.ids import SEQ_BITS, SEQ_MASK, plain, text_of
from taskmesh.hub.machine.books.dependencies import SKIPPED, value_of
from taskmesh.hub.machine.books.failures import (
    CRASHES,
    POOLS_DIED,
    REFUSALS,
    RETRIED,
    jitter_of,
)
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import SUSPECT, TRANSITIONS, Cause, State, TaskRecord
from taskmesh.hub.machine.figures.errors import TOLD_TEXT, in_words, shown
from taskmesh.hub.machine.state import HubState
from taskmesh.link.link import size_of
from taskmesh.messages.runs import FIRING, DoneRun, Failed, Held

MAX_HISTORY = 20
ANYBODY, NOBODY = -1, -2
"""In place of a session: of a report that was looked at before, and of one that is of no session here."""


# --- successes --------------------------------------------------------------------------------------------


def on_done(hub: HubState, run: DoneRun, session: int) -> None:
    """Successes of one slot; in the common case the lists are passed on as they are.

    Args:
        session: the pool session that reports them, ANYBODY or NOBODY.
    """
    entry, remaining = hub.ledger.succeed(run, session)
    if entry is not None:
        done = len(run.seqs) - len(remaining)
        lane = hub.lanes.get(session)
        if lane is not None:
            lane.release(entry.number, done)
            if lane.breaker.refused:
                lane.breaker.close(entry.number)
        entry.measured(len(run.seqs), run.elapsed)
    if not remaining:
        size = _pass_on(hub, run, entry)
        if entry is not None:
            hub.diagnostics.recent.succeeded(run, entry.spec.name, entry.route[0], hub.now)
            if size:
                entry.weighed(len(run.seqs), size)
        return
    others = [index for index in remaining if not _linked(hub, run, index, session)]
    left = set(others)
    plain = [index for index in range(len(run.seqs)) if index not in left]
    if plain:
        part, entry = run.part(plain), entry or hub.specs.get(run.spec)
        _pass_on(hub, part, entry)
        if entry is not None:
            hub.diagnostics.recent.succeeded(part, entry.spec.name, entry.route[0], hub.now)
    for index in others:
        _on_uncommon(hub, run, index, session)


def _linked(hub: HubState, run: DoneRun, index: int, session: int) -> bool:
    """Take in a success of the current attempt of a task with edges, if all else is as usual.

    In a graph it is the common case: its outcome is given on with those of the same run.
    """
    record = hub.ledger.tasks_of(run.client).get(run.seqs[index])
    if record is None or record.links is None or record.state is State.WAITING:
        return False
    extra, is_awaited = record.extra, record.session == session and record.attempt == run.attempt
    if not is_awaited or extra.alias or extra.is_shared or record.spec.spec.keep > 0:
        return False
    release(hub, record)
    hub.ledger.move(record, Cause.SUCCEED)
    hub.dependencies.succeeded(record, run.payloads[index], run.attempt - run.returns)
    record.spec.measured(1, run.elapsed / len(run.seqs))
    hub.ledger.drop(record)
    return True


def _on_uncommon(hub: HubState, run: DoneRun, index: int, session: int) -> None:
    """One success that is not the common case: unknown, terminal, late, or with several waiters."""
    task = run.client << SEQ_BITS | run.seqs[index]
    record = hub.ledger.by_id(task)
    part = run.part([index])
    if record is None:
        hub.diagnostics.duplicates += 1
        hub.unclaimed.reported(part)
        return
    if not was_given(hub, record, task, run.attempt, session):
        hub.diagnostics.strays += 1
        return
    record.spec.measured(1, part.elapsed)
    if record.state is State.WAITING:
        hub.ledger.move(record, Cause.DUE)
    finish(hub, record, Cause.SUCCEED, part)
    if record.spec.ignores_result and session == ANYBODY:  # tasks that come with it may need the result
        value = value_of(record.seq, part, record.spec.spec)
        hub.dependencies.bring(record.client, [value])


def _pass_on(hub: HubState, run: DoneRun, entry: SpecEntry | None, after: int = 0) -> int:
    """Pass successes on to their client, or to the sink of their tasks; return their bytes."""
    if entry is None or not (entry.spec.sink or entry.ignores_result):
        return give(hub, run, after)
    if entry.ignores_result:
        if hub.journal is not None:
            hub.journal.hold(run, entry)  # the client cannot bring it
        return give(hub, bare(run), after)
    hub.sinks.put(hub.owned(run.client, entry.spec.sink), entry.spec.name, run)
    return size_of(run)


def acknowledged(hub: HubState, outcome: DoneRun | Failed) -> int:
    """A consumer of a sink has acknowledged outcomes: their tasks' clients hear that they have ended.

    Returns:
        The number of the journal's changes after which the consumer may hear that it is so.
    """
    journal, after = hub.journal, 0
    if journal is not None and outcome.client in hub.clients:
        after = journal.ended(outcome.client, outcome)
    give(hub, outcome, after)
    if journal is not None and outcome.client not in hub.clients:
        journal.sweep()
        after = journal.upcoming
    return after


# --- ends -------------------------------------------------------------------------------------------------


def finish(hub: HubState, record: TaskRecord, cause: Cause, outcome: DoneRun | Failed) -> None:
    """End a task, and tell all who wait for it: in place of its own client, its sink.

    All ends pass here but those that `Ledger.succeed` finds to be the common case.
    """
    waiting, after = close(hub, record, cause, outcome)
    told = _as_told(outcome)
    for task in waiting:
        _tell(hub, record, told, task, after)


def close(
    hub: HubState, record: TaskRecord, cause: Cause, outcome: DoneRun | Failed
) -> tuple[list[int], int]:
    """End a task for its lane, for those who ask later, for its dependents and for the journal.

    Returns:
        The ids that wait for its outcome, and the number of the journal's changes after which anybody may
        have it; 0: now.
    """
    release(hub, record)
    hub.ledger.move(record, cause)
    told = _as_told(outcome)
    kept = keep(hub, record, told)
    if isinstance(outcome, Failed):
        record.spec.figures.over(outcome.kind)
        hub.dependencies.failed(record, outcome)
    else:
        hub.dependencies.succeeded(record, outcome.payloads[0], outcome.attempt - outcome.returns)
    waiting = hub.ledger.drop(record)
    _remember(hub, record, told, waiting or [record.id])
    return waiting, kept or _write_down(hub, record, told, waiting)


def _remember(hub: HubState, record: TaskRecord, told: DoneRun | Failed, tasks: Sequence[int]) -> None:
    """Keep how a task has ended for people who ask."""
    name, queue = record.spec.spec.name, record.spec.route[0]
    if isinstance(told, DoneRun):
        for task in tasks:
            one = msgspec.structs.replace(told, client=task >> SEQ_BITS, seqs=[task & SEQ_MASK])
            hub.diagnostics.recent.succeeded(one, name, queue, hub.now)
        return
    about: dict[str, object] = {
        "name": name,
        "user": hub.owner(record.client),
        "state": record.state.word,
        "queue": queue,
        "ended": hub.wall,
    }
    hub.diagnostics.recent.remember(about, told, tasks)


def _tell(hub: HubState, record: TaskRecord, outcome: DoneRun | Failed, task: int, after: int) -> None:
    """Tell one who waits for a task how it has ended."""
    outcome, spec = of_task(outcome, task), record.spec.spec
    if task != record.id:
        give(hub, outcome, after)
    elif isinstance(outcome, DoneRun):
        _pass_on(hub, outcome, record.spec, after)
    elif spec.sink and outcome.kind != "cancelled":
        hub.sinks.put(hub.owned(outcome.client, spec.sink), spec.name, outcome)
    else:
        give(hub, outcome, after)


def keep(hub: HubState, record: TaskRecord, outcome: DoneRun | Failed) -> int:
    """Keep how a task has ended for whoever asks later, if its spec says so.

    The journal then has the outcome in place of the task.

    Returns:
        The number of the journal's changes after which anybody may have the outcome; 0: now.
    """
    if record.spec.spec.keep <= 0:
        return 0
    kept = hub.result_cache.keep(record, outcome, hub.now, user_of=partial(_user_of, hub))
    if hub.journal is None or not kept:
        return 0
    for task in kept:
        hub.journal.delivered(task >> SEQ_BITS, *_kinds_of(of_task(outcome, task)), hub.specs)
    return hub.journal.upcoming


def _write_down(hub: HubState, record: TaskRecord, outcome: DoneRun | Failed, waiting: Sequence[int]) -> int:
    """Write down an outcome of which others hear than the client of its task, for all who wait for it.

    Returns:
        As `keep`.
    """
    journal, entry = hub.journal, record.spec
    if journal is None or (len(waiting) < 2 and not entry.is_promise):
        return 0
    after = 0
    for task in waiting:
        if task != record.id or not entry.spec.sink:  # what is in a sink has not ended for its client
            told = of_task(outcome, task)
            if task == record.id and entry.ignores_result and isinstance(told, DoneRun):
                told = bare(told)
            after = max(after, journal.ended(told.client, told))
    return after


def _user_of(hub: HubState, task: int) -> str:
    return hub.owner(task >> SEQ_BITS)


def was_given(hub: HubState, record: TaskRecord, task: int, attempt: int, session: int) -> bool:
    """Return True if the attempt was sent to this session, even if that session is over."""
    if session == ANYBODY or is_current(record, task, session, attempt):
        return True
    return hub.known_pools.had_given(session, task, attempt)


def give(hub: HubState, outcome: DoneRun | Failed, after: int = 0) -> int:
    """Pass outcomes on to the client that they name.

    Args:
        outcome: results of one slot, or a bad end.
        after: the number of the journal's changes that are to be written before the client has it.

    Returns:
        The bytes that they are counted for.
    """
    client = outcome.client
    session, journal = hub.clients.get(client), hub.journal
    if session is None:
        if journal is not None:
            journal.delivered(client, *_kinds_of(outcome), hub.specs)
        return 0
    hub.due.news.add(client)
    session.ended = hub.now
    if journal is not None and not session.present:
        journal.ended(client, outcome)
    size = session.add(outcome, after)
    if session.held:
        hub.due.unwritten[client] = session
    return size


# --- failures ---------------------------------------------------------------------------------------------


def on_failed(hub: HubState, failure: Failed, session: int, now: float) -> None:
    """One attempt that did not succeed: ends the task, or sends it round again."""
    task = failure.client << SEQ_BITS | failure.seq
    record = hub.ledger.by_id(task)
    if record is None:
        hub.diagnostics.stale += 1
        hub.unclaimed.reported(failure)
        return
    if not is_current(record, task, session, failure.attempt):
        hub.diagnostics.stale += 1
        return
    _failed(hub, record, failure, now)


def failed_before(hub: HubState, record: TaskRecord, failure: Failed, now: float) -> None:
    """A failure that its pool had reported before its client asked for it: it counts like any other."""
    hub.ledger.adopt(record, record.id, failure, NOBODY)
    _failed(hub, record, failure, now)


def _failed(hub: HubState, record: TaskRecord, failure: Failed, now: float) -> None:
    if failure.kind in REFUSALS and _refused(hub, record, failure):
        return
    record.started()
    hub.diagnostics.errors.add(record.spec.spec.name, record.id, hub.owner(record.client), failure, hub.wall)
    if failure.kind == "lost":
        lost(hub, record, failure)
    elif failure.kind in CRASHES:
        _crashed(hub, record, failure, now)
    else:
        _erred(hub, record, failure, now)


def _refused(hub: HubState, record: TaskRecord, failure: Failed) -> bool:
    """A pool could not even begin: another pool gets the task, uncharged, if there is one for it.

    If its client has given it up unless it had started, it ends here.

    A worker that lacks a module fails at once, and would otherwise get task after task.
    """
    lane, extra = hub.lanes.get(record.session), record.more()
    reason = f"{failure.type_name}: {failure.text}"[:300]
    entry = record.spec
    if lane is not None and lane.breaker.trip(entry.number, entry.spec.name, reason, lane.heard):
        hub.log("pool.refuses", {"pool": lane.pool, "reason": lane.breaker.complaint})
    extra.refused |= {record.session}
    if not any(
        other.session not in extra.refused and other.may_take(record.spec) for other in hub.lanes.values()
    ):
        return False
    where = f"attempt {record.attempt - record.returns} on {failure.worker}: refused, {reason}"
    extra.pools += (where[:300],)
    requeue(hub, record, Cause.REQUEUE)
    return True


def is_current(record: TaskRecord, task: int, session: int, attempt: int) -> bool:
    """The fence: whether a report comes from the attempt that the ledger waits for.

    Args:
        task: the id that the report names, of those that the record is found under.
    """
    return record.session == session and record.attempt == attempt and record.known_as == task


def _erred(hub: HubState, record: TaskRecord, failure: Failed, now: float) -> None:
    spec = record.spec.spec
    once = spec.acks == "early" or record.spec.is_chunk
    again = failure.kind in RETRIED and record.errors < spec.max_retries and not once
    if not again or not (failure.retryable or failure.kind == "hard_timeout"):
        end(hub, record, Cause.FAIL, failure)
        return
    record.charge(errors=1)
    delay = failure.retry_after
    if delay < 0:
        delay = spec.retry_delay(record.errors)
        if spec.jitter:
            delay *= 0.5 + 0.5 * jitter_of(record.id, record.errors)
    _later(hub, record, failure, now + delay)


def _crashed(hub: HubState, record: TaskRecord, failure: Failed, now: float) -> None:
    if record.spec.spec.acks == "early":
        failure.kind = "lost"
        end(hub, record, Cause.LOSE, failure)
        return
    if failure.kind == "oom":
        record.charge(ooms=1)
        ooms = record.extra.ooms
        over = ooms >= hub.config.oom_limit
        delay = min(60.0, 2.0 ** (ooms - 1))
    else:
        record.charge(crashes=1)
        over = record.crashes >= hub.config.crash_limit
        delay = 0.0
    if over or (record.spec.is_chunk and _leave_to_client(hub, record, now)):
        end(hub, record, Cause.BURY, failure)
    elif delay:
        _later(hub, record, failure, now + delay)
    else:
        _charge(hub, record, failure)
        requeue(hub, record, Cause.REQUEUE)


def _leave_to_client(hub: HubState, record: TaskRecord, now: float) -> bool:
    """Return True if the client of a chunk is there to submit the items one by one.

    It is there until it is found not to be: the chunk is kept until it has acknowledged.
    """
    session = hub.clients.get(record.client)
    if session is None or not session.present:
        return False
    if not session.credit:
        return True
    if now - session.heard >= hub.config.silent_beats * hub.config.beat:
        return False
    if record.spec.spec.on_client_loss == "run":
        session.unsplit[record.seq] = record.unsent()
    return True


def _later(hub: HubState, record: TaskRecord, failure: Failed, when: float) -> None:
    _charge(hub, record, failure)
    if _lacks_a_value(hub, record):
        return
    release(hub, record)
    hub.ledger.move(record, Cause.RETRY)
    hub.ledger.wait(record, when)


def _charge(hub: HubState, record: TaskRecord, failure: Failed) -> None:
    _note(hub, record, failure)
    record.more().failed = record.begun


def lost(hub: HubState, record: TaskRecord, failure: Failed | None = None) -> None:
    """Its session is over, or its result is gone: again and uncharged; an at-most-once task is LOST."""
    if record.spec.spec.acks == "early":
        if failure is None:
            failure = Failed(record.client, record.seq, record.attempt, "lost")
        end(hub, record, Cause.LOSE, failure)
        return
    if record.state is State.RUNNING:
        record.started()
    requeue(hub, record, Cause.REQUEUE)


def died_with(hub: HubState, record: TaskRecord, pool: str, reason: str) -> None:
    """A pool has died, as far as anybody can tell, that may have been running this task.

    It may have taken all memory: the kernel then kills the pool with all its slots. A chunk is split by
    its client once it is suspect (docs/adr/0007).
    """
    record.charge(losses=1)
    over = record.losses >= hub.config.pool_loss_limit
    if record.losses >= SUSPECT:
        over = over or (record.spec.is_chunk and _leave_to_client(hub, record, hub.now))
        where = f"attempt {record.attempt - record.returns} on {pool}: pool lost, {reason}"
        record.more().pools += (where[:300],)
    if not over or record.spec.spec.acks == "early":
        lost(hub, record)
        return
    failure = Failed(
        record.client,
        record.seq,
        record.attempt,
        "crash",
        text=f"{record.losses} {POOLS_DIED}",
        worker=pool,
    )
    end(hub, record, Cause.BURY, failure)


def requeue(hub: HubState, record: TaskRecord, cause: Cause) -> None:
    """Take a task from its lane and put it at the front of its queue."""
    if _lacks_a_value(hub, record):
        return
    release(hub, record)
    hub.ledger.send_round(record, cause)


def _lacks_a_value(hub: HubState, record: TaskRecord) -> bool:
    """End a task that cannot start again, if it is one; return True then.

    An earlier hub had the outcomes that it was started with. Here one of these tasks has ended badly.
    """
    failure = hub.dependencies.failed_upstream(record) if record.links is not None else None
    if failure is not None:
        end(hub, record, Cause.FAIL, failure)
    return failure is not None


def on_returned(hub: HubState, held: Held, session: int) -> None:
    """Tasks handed back unstarted, uncharged."""
    base = held.client << SEQ_BITS
    for seq in reversed(held.seqs):
        record = hub.ledger.by_id(base | seq)
        if record is None:
            part = Held(held.client, held.attempt, [seq], returns=held.returns)
            hub.unclaimed.reported(part)
        elif is_current(record, base | seq, session, held.attempt):
            not_started(hub, record)


def not_started(hub: HubState, record: TaskRecord) -> None:
    """Queue a task that its pool never began: the next attempt has the same number."""
    requeue(hub, record, Cause.RETURN)


def expire(hub: HubState, record: TaskRecord) -> None:
    what = "nobody had fulfilled it" if record.spec.is_promise else "it had not started"
    text = f"{what} {record.spec.spec.expires:g} s after it was accepted"
    failure = Failed(record.client, record.seq, record.attempt, "expired", text=text)
    end(hub, record, Cause.EXPIRE, failure)


def end(hub: HubState, record: TaskRecord, cause: Cause, failure: Failed) -> None:
    """A bad end: all clients that wait are told."""
    _note(hub, record, failure)
    history = [*record.more().pools, *record.more().history][-MAX_HISTORY:]
    failure = msgspec.structs.replace(failure, attempt=record.attempt - record.returns, history=history)
    if failure.kind != "cancelled" and _is_letter(hub, record):
        account = hub.ledger.account(record.client)
        state = TRANSITIONS[record.state, cause]
        hub.letters.add(record, state, failure, hub.wall, account.owner, account.name)
    finish(hub, record, cause, msgspec.structs.replace(failure, output=""))


def _is_letter(hub: HubState, record: TaskRecord) -> bool:
    """Return True if nobody waits for a call: it is detached, or a firing, or its client is away.

    Tasks without a client outlive it only in a journal.
    """
    spec, client = record.spec.spec, record.client
    if record.spec.needs_no_pool:
        return False
    if spec.detach or spec.kind == FIRING:
        return True
    if hub.journal is None or not hub.journal.has(client, record.seq):
        return False
    session = hub.clients.get(client)
    return session is None or not session.present


def release(hub: HubState, record: TaskRecord) -> None:
    """Take a task off the books of the lane that holds it, if one does."""
    lane = hub.lanes.get(record.session)
    if lane is not None and State.SENT <= record.state <= State.RUNNING:
        lane.release(record.spec.number, 1)


def _note(hub: HubState, record: TaskRecord, failure: Failed) -> None:
    if failure.kind != "cancelled":
        name, attempt = record.spec.spec.name, record.attempt - record.returns
        fields = {"task_id": text_of(record.id), "name": name, **shown(failure, attempt)}
        hub.out.append(LogEvent("task.failed", fields))
        if record.spec.spec.kind == FIRING:  # nobody waits for it: kept for those who ask later
            tick, key = {"task_id": text_of(record.id), "attempt": attempt}, record.more().key
            hub.log(
                "schedule.failed",
                {"firing": plain(key[1]) if key else "", **tick, "text": in_words(failure)[:TOLD_TEXT]},
            )
    extra = record.more()
    if len(extra.history) < MAX_HISTORY and failure.kind not in ("cancelled", "expired"):
        where = f"attempt {record.attempt - record.returns} on {failure.worker or '?'}"
        extra.history += (f"{where}: {failure.kind} {in_words(failure)}"[:300],)


def bare(run: DoneRun) -> DoneRun:
    """Return successes without their results: who ignores these is told no more."""
    return msgspec.structs.replace(run, payloads=[b""] * len(run.seqs))


def _as_told(outcome: DoneRun | Failed) -> DoneRun | Failed:
    """Return an outcome as clients hear of it."""
    is_skipped = isinstance(outcome, Failed) and outcome.kind == SKIPPED
    return msgspec.structs.replace(outcome, kind="cancelled") if is_skipped else outcome


def of_task(outcome: DoneRun | Failed, task: int) -> DoneRun | Failed:
    """Return the outcome of one task as that of another which shares its key."""
    client, seq = task >> SEQ_BITS, task & SEQ_MASK
    if isinstance(outcome, Failed):
        return msgspec.structs.replace(outcome, client=client, seq=seq)
    return msgspec.structs.replace(outcome, client=client, seqs=[seq])


def _kinds_of(outcome: DoneRun | Failed) -> tuple[list[DoneRun], list[Failed]]:
    return ([], [outcome]) if isinstance(outcome, Failed) else ([outcome], [])
