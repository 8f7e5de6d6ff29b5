"""Schedules: what the hub runs by the clock on the wall.

A tick has a name, the schedule's and its time, which is the key of its task: no name is used twice. The clock
on the wall is the hub's own clock plus an offset, which the shell asks for once a second; so a clock that is
set moves every tick, and every task with `at=`, without a timer being touched.
"""

from __future__ import annotations

import math

from taskmesh.core.ids import text_of
from taskmesh.core.specs import spec_number
from taskmesh.hub.machine.books.schedule import ScheduleRecord, rate_of, when_of
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import Cause, State, TaskRecord
from taskmesh.hub.machine.books.ticks import MOST_COUNTED, BadTiming, Ticks, text_of_tick
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.journal_entries import JournalChunk
from taskmesh.messages.runs import FIRING, Run
from taskmesh.messages.schedules import Declaration, with_tick

STEP = 1.0
"""Seconds by which the clock on the wall has to be off before it counts as set, and not as slewed."""
CORRECTION = 3 * 3600.0
"""Seconds by which a schedule's last tick has to lie ahead before the clock counts as having been wrong."""
LATE = 2.0
"""Seconds after which a tick counts as missed."""
MOST_SCHEDULES, MOST_OF_USER = 100_000, 10_000
"""Schedules that a hub keeps, and of these those of one user."""
MOST_FIRINGS = 1_000.0
"""Firings a second that the schedules of one user may have together."""
PORTION = 200
"""Schedules that fire in one step; the others are due at once, in a step of their own."""


# --- the clock --------------------------------------------------------------------------------------------


def on_clock(hub: HubState, offset: float) -> None:
    """Take in how far the clock on the wall is ahead of the hub's own.

    A step forward needs no care: ticks that were passed over are due, and missed. After a step back a
    schedule waits until the clock has come past its last tick again.
    """
    before, hub.clock_offset = hub.clock_offset, offset
    step = 0.0 if before is None else offset - before
    if abs(step) > STEP:
        way = "forward" if step > 0 else "back"
        text = f"the clock of the hub's machine was set {way} by {abs(step):.1f} s"
        hub.log("clock.stepped", {"seconds": round(step, 3), "text": text})
    for schedule in hub.schedules.records.values() if before is None or step < -STEP else ():
        if before is None:
            schedule.cursor = hub.wall
        _plan(hub, schedule)
    hub.schedules.renew(hub.clock_offset)


# --- what is due ------------------------------------------------------------------------------------------


def start_at(hub: HubState, record: TaskRecord, at: float, delay: float) -> None:
    """Have a record that has just become WAITING start at a time on the wall.

    Args:
        record: the task.
        at: the time, in seconds since the epoch.
        delay: seconds from now as its client reckons them, for a hub that knows no clock yet.
    """
    if hub.clock_offset is None:
        hub.ledger.wait(record, hub.now + delay)
        return
    hub.ledger.wait(record, math.inf, at)
    hub.schedules.push(at, record)
    hub.schedules.renew(hub.clock_offset)


def fire(hub: HubState) -> None:
    """Fire the ticks that are due and queue the tasks whose time has come: a portion of them."""
    wall = hub.wall + 1e-6
    left = PORTION
    while left and (due := hub.schedules.pop(wall)) is not None:
        if isinstance(due, TaskRecord):
            _start(hub, due)
        else:
            left -= 1
            _on_tick(hub, due)
    hub.schedules.renew(hub.clock_offset)


def _start(hub: HubState, record: TaskRecord) -> None:
    record.time_has_come()
    if not record.is_held_back(hub.now):
        hub.ledger.move(record, Cause.DUE)
        hub.ledger.requeue(record)


def _plan(hub: HubState, schedule: ScheduleRecord) -> None:
    wall = hub.wall
    if schedule.cursor - wall >= CORRECTION:
        schedule.cursor = wall
    known = hub.clock_offset is not None and not schedule.paused
    tick = schedule.ticks.after(schedule.cursor) if known else math.inf
    if tick < math.inf and tick != schedule.next:
        hub.schedules.push(tick, schedule)
    schedule.next = tick


# --- ticks ------------------------------------------------------------------------------------------------


def _on_tick(hub: HubState, schedule: ScheduleRecord) -> None:
    """Fire the newest of the ticks that have come since the last one, if the schedule's rules say so."""
    timing, wall = schedule.declaration.timing, hub.wall
    tick, count = schedule.ticks.newest(schedule.cursor, wall + 1e-6)
    since, schedule.cursor = schedule.cursor, wall if tick is None else tick
    fires = tick is not None and (timing.catchup == "latest" or wall - tick <= LATE)
    if count > fires:
        _missed(hub, schedule, since, count - fires)
    if tick is not None and fires:
        if timing.overlap == "skip" and schedule.alive():
            _skipped(hub, schedule, "the last firing has not ended")
        elif _submit(hub, schedule, tick) is None:
            _skipped(hub, schedule, "the hub is full (hub.max_tasks)")
    hub.schedules.put_cursor(schedule)
    _plan(hub, schedule)


def _missed(hub: HubState, schedule: ScheduleRecord, since: float, count: int) -> None:
    schedule.counts["missed"] += count
    least = "at least " if schedule.declaration.timing.cron and count >= MOST_COUNTED - 1 else ""
    text = f"{least}{count} firings of {schedule.name} were missed and are not made up for"
    first, last = text_of_tick(schedule.ticks.after(since)), text_of_tick(schedule.cursor)
    _log(hub, "schedule.missed", schedule.name, text, count=count, first=first, last=last)


def _skipped(hub: HubState, schedule: ScheduleRecord, why: str) -> None:
    schedule.counts["skipped"] += 1
    text = f"{schedule.name} did not fire: {why}"
    _log(hub, "schedule.skipped", schedule.name, text, tick=text_of_tick(schedule.cursor))


def _submit(hub: HubState, schedule: ScheduleRecord, tick: float, mark: str = "") -> TaskRecord | None:
    """Enter the task of one firing; return None if the hub is full.

    Args:
        schedule: the schedule.
        tick: the time that the task is told.
        mark: what follows the tick in the task's key.
    """
    ledger, declaration = hub.ledger, schedule.declaration
    if ledger.count >= hub.config.max_tasks:
        return None
    key = f"{declaration.name}@{text_of_tick(tick)}{mark}"
    entry = hub.specs.setdefault(schedule.entry.number, schedule.entry)
    payload = with_tick(tick, declaration.payload)
    client, seq = hub.house.draw(schedule.user, lambda one: one in hub.clients or one in ledger.accounts)
    run = Run(entry.number, schedule.group, [seq], [payload], key)
    run.part = declaration.part
    ledger.account(client).owner = schedule.user
    [record] = ledger.accept(client, entry, run, hub.now, fresh=True)
    schedule.living.append(record)
    schedule.counts["fired"] += 1
    if hub.journal is not None and declaration.spec.durable is not False:
        ledger.move(record, Cause.DELAY)
        _write_down(hub, schedule, record, run)
    else:
        ledger.enqueue([record])
    return record


# --- the journal ------------------------------------------------------------------------------------------


def _write_down(hub: HubState, schedule: ScheduleRecord, record: TaskRecord, run: Run) -> None:
    """Have the task of a firing written; it does not start before.

    It is written together with the cursor: another hub fires neither the tick again, nor passes it over.
    """
    journal, spec = hub.journal, schedule.declaration.spec
    if journal is None:
        return
    if spec.acks == "late":
        chunk = JournalChunk(record.client, schedule.user, schedule.name, hub.wall, [run])
        journal.accept(chunk, hub.specs, ())
    hub.ledger.wait(record, math.inf, hub.wall)
    hub.schedules.unwritten.append((journal.upcoming, record))


def on_written(hub: HubState, number: int) -> None:
    """The journal has the changes up to a number: their firings may start."""
    ready: list[TaskRecord] = []
    while hub.schedules.unwritten and hub.schedules.unwritten[0][0] <= number:
        _, record = hub.schedules.unwritten.popleft()
        if record.state is not State.WAITING:
            continue
        record.time_has_come()
        if not record.is_held_back(hub.now):
            hub.ledger.move(record, Cause.DUE)
            ready.append(record)
    for record in reversed(ready):  # each goes to the front of its queue
        hub.ledger.requeue(record)


def restored(hub: HubState) -> None:
    """Schedules have been read: go on with them."""
    for name, entry in hub.schedules.written.items():
        try:
            schedule = _add(hub, entry.declaration, entry.user)
        except BadTiming as error:
            _log(hub, "schedule.refused", name, f"the schedule {name} of the journal is not kept: {error}")
            continue
        schedule.restore(entry, hub.schedules.cursors.get(name))
        _plan(hub, schedule)
    hub.schedules.renew(hub.clock_offset)


def entered(hub: HubState, chunk: JournalChunk) -> None:
    """Take note of the firings in a chunk of the journal that has been entered."""
    for run in chunk.runs:
        record = hub.ledger.tasks_of(chunk.client).get(run.seqs[0])
        schedule = hub.schedules.records.get(run.key.rpartition("@")[0])
        if record is not None and schedule is not None and record.spec.spec.kind == FIRING:
            schedule.living.append(record)


# --- declarations -----------------------------------------------------------------------------------------


def declare(hub: HubState, declaration: Declaration, user: str = "") -> str:
    """Take in a schedule, in place of one of the same name; return the reason if this hub cannot keep it.

    Args:
        declaration: the schedule.
        user: the user whose key its client shows.
    """
    reason = _refusal(hub, declaration, user)
    if reason:
        _log(hub, "schedule.refused", declaration.name, f"schedule {declaration.name} is not kept: {reason}")
        return reason
    known = hub.schedules.records.get(declaration.name)
    if known is None:
        known = _add(hub, declaration, user)
    elif known.declaration != declaration or known.user != user:
        _change(hub, known, declaration, user)
    hub.schedules.put(known)
    hub.schedules.renew(hub.clock_offset)
    return ""


def _refusal(hub: HubState, declaration: Declaration, user: str) -> str:
    if declaration.spec.kind != FIRING or not declaration.name:
        return "it has no name, or its task is no firing"
    known = hub.schedules.records.get(declaration.name)
    if known is None and len(hub.schedules.records) >= MOST_SCHEDULES:
        return f"the hub has {MOST_SCHEDULES:,} schedules already"
    size = len(declaration.payload) + len(declaration.spec.function)
    if hub.schedules.size + size > hub.config.spec_bytes:
        return f"there is no room for {size:,} bytes more of scheduled calls"
    try:
        Ticks(declaration.timing)
    except BadTiming as error:
        return str(error)
    return _over_share(hub, declaration, user, known)


def _over_share(hub: HubState, declaration: Declaration, user: str, known: ScheduleRecord | None) -> str:
    """Return the reason if a user would have more than each may have."""
    count, rate = hub.schedules.of_user[user], hub.schedules.rates.get(user, 0.0) + rate_of(declaration)
    if known is not None and known.user == user:
        count, rate = count - 1, rate - rate_of(known.declaration)
    if user and count >= MOST_OF_USER:
        return f"{user} has {MOST_OF_USER:,} schedules already: remove some of them"
    if rate > MOST_FIRINGS + 1e-6:
        return (
            f"all schedules of {user or 'this hub'} would fire more than {MOST_FIRINGS:,.0f} times "
            "a second together: let some fire less often, or submit tasks instead"
        )
    return ""


def _add(hub: HubState, declaration: Declaration, user: str) -> ScheduleRecord:
    hub.schedules.groups += 1
    schedule = ScheduleRecord(declaration, _entry(hub, declaration), hub.schedules.groups, hub.wall)
    schedule.user = user
    hub.schedules.records[declaration.name] = schedule
    hub.schedules.count_in(schedule)
    _plan(hub, schedule)
    return schedule


def _entry(hub: HubState, declaration: Declaration) -> SpecEntry:
    number = spec_number(declaration.spec)
    known = hub.specs.get(number)
    if known is not None:
        return known
    return SpecEntry(number, declaration.spec, hub.diagnostics.functions.of(declaration.spec.name))


def _change(hub: HubState, known: ScheduleRecord, declaration: Declaration, user: str) -> None:
    before = known.declaration
    hub.schedules.count_out(known)
    known.declaration, known.user = declaration, user
    known.entry = _entry(hub, declaration)
    hub.schedules.count_in(known)
    if declaration == before:
        return
    if declaration.timing != before.timing:
        known.ticks = Ticks(declaration.timing)
        _plan(hub, known)
    text = f"{known.name} has another definition"
    _log(hub, "schedule.changed", known.name, text, when=when_of(declaration), before=when_of(before))


def remove(hub: HubState, name: str, reason: str) -> bool:
    """Forget a schedule; return False if there is none. Firings on their way go on."""
    schedule = hub.schedules.records.pop(name, None)
    if schedule is None:
        return False
    hub.schedules.count_out(schedule)
    hub.schedules.drop(name)
    _log(hub, "schedule.removed", name, f"{name} was removed: {reason}")
    return True


def on_revoked(hub: HubState, users: frozenset[str]) -> None:
    """Forget the schedules of users whose keys are not let in any more."""
    for name in [name for name, schedule in hub.schedules.records.items() if schedule.user in users]:
        remove(hub, name, "the key of its owner was revoked")


def _log(hub: HubState, event: str, name: str, text: str, **more: object) -> None:
    hub.log(event, {"schedule": name, **more, "text": text})


# --- operators --------------------------------------------------------------------------------------------


def pause(hub: HubState, schedule: ScheduleRecord, *, paused: bool) -> None:
    """Pause a schedule, or have it go on: ticks meanwhile do not count as missed."""
    if schedule.paused and not paused:
        schedule.cursor = max(schedule.cursor, hub.wall)
    schedule.paused = paused
    hub.schedules.put(schedule)
    _plan(hub, schedule)
    hub.schedules.renew(hub.clock_offset)


def fire_now(hub: HubState, schedule: ScheduleRecord) -> str:
    """Fire a schedule now, whatever its rules; return the task's id, empty if the hub is full."""
    record = _submit(hub, schedule, hub.wall, "#run")
    hub.schedules.put_cursor(schedule)
    return text_of(record.id) if record is not None else ""


def coming(hub: HubState, schedule: ScheduleRecord, most: int) -> list[float]:
    """Return a schedule's next ticks, whether it is paused or not."""
    found: list[float] = []
    tick = schedule.ticks.after(max(schedule.cursor, hub.wall))
    while tick < math.inf and len(found) < most:
        found.append(tick)
        tick = schedule.ticks.after(tick)
    return found
