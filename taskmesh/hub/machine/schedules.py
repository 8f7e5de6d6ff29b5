"""Schedules: what the hub runs by the clock on the wall.

A tick has a name, the schedule's and its time, which is the key of its task: no name is used twice. The clock
on the wall is the hub's own clock plus an offset, which the shell asks for once a second; so a clock that is
set moves every tick, and every task with `at=`, without a timer being touched.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque

from taskmesh.core.ids import SEQ_BITS, text_of
from taskmesh.core.specs import spec_number
from taskmesh.hub.machine.books.journaled_dict import JournaledDict
from taskmesh.hub.machine.books.schedule import ScheduleRecord, rate_of, when_of
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import Cause, State, TaskRecord
from taskmesh.hub.machine.books.ticks import MOST_COUNTED, BadTiming, Ticks, text_of_tick
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.journal_entries import CURSOR, SCHEDULE, JournalChunk, JournalCursor, JournalSchedule
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
FEW = 64
"""Entries of a heap that are kept without asking whether they still count."""
PORTION = 200
"""Schedules that fire in one step; the others are due at once, in a step of their own."""


class Schedules:
    """All schedules of a hub, and the tasks that wait for a time on the clock.

    Args:
        hub: the books of the hub.

    Attributes:
        deadline: the hub's time at which something is due; infinite if nothing is.
        records: the schedules by name.
    """

    def __init__(self, hub: HubState) -> None:
        self._hub = hub
        self._ledger = hub.ledger
        self.deadline = math.inf
        self.records: dict[str, ScheduleRecord] = {}
        self._written: JournaledDict[str, JournalSchedule] = JournaledDict(
            hub.journal, SCHEDULE, decode=lambda _, entry: (entry.declaration.name, entry)
        )
        self._cursors: JournaledDict[str, JournalCursor] = JournaledDict(
            hub.journal, CURSOR, decode=lambda _, entry: (entry.name, entry)
        )
        self._due: list[tuple[float, int, ScheduleRecord | TaskRecord]] = []
        self._limit = FEW
        self._count = 0
        self._unwritten: deque[tuple[int, TaskRecord]] = deque()
        self._groups = 0
        self._size = 0
        self._of_user: Counter[str] = Counter()
        self._rates: defaultdict[str, float] = defaultdict(float)

    # --- the clock ----------------------------------------------------------------------------------------

    def on_clock(self, offset: float) -> None:
        """Take in how far the clock on the wall is ahead of the hub's own.

        A step forward needs no care: ticks that were passed over are due, and missed. After a step back a
        schedule waits until the clock has come past its last tick again.
        """
        before, self._hub.clock_offset = self._hub.clock_offset, offset
        step = 0.0 if before is None else offset - before
        if abs(step) > STEP:
            way = "forward" if step > 0 else "back"
            text = f"the clock of the hub's machine was set {way} by {abs(step):.1f} s"
            self._hub.log("clock.stepped", {"seconds": round(step, 3), "text": text})
        for schedule in self.records.values() if before is None or step < -STEP else ():
            if before is None:
                schedule.cursor = self._hub.wall
            self._plan(schedule)
        self._renew()

    # --- what is due --------------------------------------------------------------------------------------

    def start_at(self, record: TaskRecord, at: float, delay: float) -> None:
        """Have a record that has just become WAITING start at a time on the wall.

        Args:
            record: the task.
            at: the time, in seconds since the epoch.
            delay: seconds from now as its client reckons them, for a hub that knows no clock yet.
        """
        if self._hub.clock_offset is None:
            self._ledger.wait(record, self._hub.now + delay)
            return
        self._ledger.wait(record, math.inf, at)
        self._push(at, record)
        self._renew()

    def fire(self) -> None:
        """Fire the ticks that are due and queue the tasks whose time has come: a portion of them."""
        wall = self._hub.wall + 1e-6
        left = PORTION
        while self._due and self._due[0][0] <= wall and left:
            when, _, due = heapq.heappop(self._due)
            if isinstance(due, TaskRecord):
                self._start(due, when)
            elif due.next == when and self.records.get(due.name) is due:
                left -= 1
                self._on_tick(due)
        self._renew()

    def _start(self, record: TaskRecord, when: float) -> None:
        if record.state is State.WAITING and record.more().at == when:
            record.time_has_come()
            if not record.is_held_back(self._hub.now):
                self._ledger.move(record, Cause.DUE)
                self._ledger.requeue(record)

    def _push(self, when: float, due: ScheduleRecord | TaskRecord) -> None:
        self._count += 1
        if len(self._due) >= self._limit:
            self._due = [entry for entry in self._due if self._counts(entry)]
            heapq.heapify(self._due)
            self._limit = 2 * len(self._due) + FEW
        heapq.heappush(self._due, (when, self._count, due))

    def _counts(self, entry: tuple[float, int, ScheduleRecord | TaskRecord]) -> bool:
        """Return True if an entry of the heap still stands for something."""
        when, _, due = entry
        if isinstance(due, TaskRecord):
            return due.state is State.WAITING and due.more().at == when
        return due.next == when and self.records.get(due.name) is due

    def _plan(self, schedule: ScheduleRecord) -> None:
        wall = self._hub.wall
        if schedule.cursor - wall >= CORRECTION:
            schedule.cursor = wall
        known = self._hub.clock_offset is not None and not schedule.paused
        tick = schedule.ticks.after(schedule.cursor) if known else math.inf
        if tick < math.inf and tick != schedule.next:
            self._push(tick, schedule)
        schedule.next = tick

    def _renew(self) -> None:
        due = bool(self._due) and self._hub.clock_offset is not None
        self.deadline = self._due[0][0] - (self._hub.clock_offset or 0.0) if due else math.inf

    # --- ticks --------------------------------------------------------------------------------------------

    def _on_tick(self, schedule: ScheduleRecord) -> None:
        """Fire the newest of the ticks that have come since the last one, if the schedule's rules say so."""
        timing, wall = schedule.declaration.timing, self._hub.wall
        tick, count = schedule.ticks.newest(schedule.cursor, wall + 1e-6)
        since, schedule.cursor = schedule.cursor, wall if tick is None else tick
        fires = tick is not None and (timing.catchup == "latest" or wall - tick <= LATE)
        if count > fires:
            self._missed(schedule, since, count - fires)
        if tick is not None and fires:
            if timing.overlap == "skip" and schedule.alive():
                self._skipped(schedule, "the last firing has not ended")
            elif self._submit(schedule, tick) is None:
                self._skipped(schedule, "the hub is full (hub.max_tasks)")
        self._put_cursor(schedule)
        self._plan(schedule)

    def _missed(self, schedule: ScheduleRecord, since: float, count: int) -> None:
        schedule.counts["missed"] += count
        least = "at least " if schedule.declaration.timing.cron and count >= MOST_COUNTED - 1 else ""
        fields: dict[str, object] = {
            "schedule": schedule.name,
            "count": count,
            "first": text_of_tick(schedule.ticks.after(since)),
            "last": text_of_tick(schedule.cursor),
            "text": f"{least}{count} firings of {schedule.name} were missed and are not made up for",
        }
        self._hub.log("schedule.missed", fields)

    def _skipped(self, schedule: ScheduleRecord, why: str) -> None:
        schedule.counts["skipped"] += 1
        fields: dict[str, object] = {
            "schedule": schedule.name,
            "tick": text_of_tick(schedule.cursor),
            "text": f"{schedule.name} did not fire: {why}",
        }
        self._hub.log("schedule.skipped", fields)

    def _submit(self, schedule: ScheduleRecord, tick: float, mark: str = "") -> TaskRecord | None:
        """Enter the task of one firing; return None if the hub is full.

        Args:
            schedule: the schedule.
            tick: the time that the task is told.
            mark: what follows the tick in the task's key.
        """
        hub, ledger, declaration = self._hub, self._ledger, schedule.declaration
        if len(ledger.tasks) >= hub.config.max_tasks:
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
            self._write_down(schedule, record, run)
        else:
            ledger.enqueue([record])
        return record

    # --- the journal --------------------------------------------------------------------------------------

    def _write_down(self, schedule: ScheduleRecord, record: TaskRecord, run: Run) -> None:
        """Have the task of a firing written; it does not start before.

        It is written together with the cursor: another hub fires neither the tick again, nor passes it over.
        """
        journal, spec = self._hub.journal, schedule.declaration.spec
        if journal is None:
            return
        if spec.acks == "late":
            wall = self._hub.wall
            client = record.id >> SEQ_BITS
            chunk = JournalChunk(client, schedule.user, schedule.name, wall, [run])
            journal.accept(chunk, self._hub.specs, ())
        self._ledger.wait(record, math.inf, self._hub.wall)
        self._unwritten.append((journal.upcoming, record))

    def on_written(self, number: int) -> None:
        """The journal has the changes up to a number: their firings may start."""
        ready: list[TaskRecord] = []
        while self._unwritten and self._unwritten[0][0] <= number:
            _, record = self._unwritten.popleft()
            if record.state is not State.WAITING:
                continue
            record.time_has_come()
            if not record.is_held_back(self._hub.now):
                self._ledger.move(record, Cause.DUE)
                ready.append(record)
        for record in reversed(ready):  # each goes to the front of its queue
            self._ledger.requeue(record)

    def _put(self, schedule: ScheduleRecord) -> None:
        """Have a schedule written, unless it is not durable."""
        if schedule.declaration.spec.durable is not False:
            self._written[schedule.name] = schedule.written()
            self._put_cursor(schedule)
        else:
            self._drop(schedule.name)

    def _put_cursor(self, schedule: ScheduleRecord) -> None:
        if schedule.name in self._written:
            self._cursors[schedule.name] = schedule.cursor_entry()

    def _drop(self, name: str) -> None:
        self._written.pop(name, None)
        self._cursors.pop(name, None)

    def restored(self) -> None:
        """Schedules have been read: go on with them."""
        for name, entry in self._written.items():
            try:
                schedule = self._add(entry.declaration, entry.user)
            except BadTiming as error:
                text = f"the schedule {name} of the journal is not kept: {error}"
                self._hub.log("schedule.refused", {"schedule": name, "text": text})
                continue
            schedule.restore(entry, self._cursors.get(name))
            self._plan(schedule)
        self._renew()

    def entered(self, chunk: JournalChunk) -> None:
        """Take note of the firings in a chunk of the journal that has been entered."""
        for run in chunk.runs:
            record = self._ledger.tasks.get(chunk.client << SEQ_BITS | run.seqs[0])
            schedule = self.records.get(run.key.rpartition("@")[0])
            if record is not None and schedule is not None and record.spec.spec.kind == FIRING:
                schedule.living.append(record)

    # --- declarations -------------------------------------------------------------------------------------

    def declare(self, declaration: Declaration, user: str = "") -> str:
        """Take in a schedule, in place of one of the same name; return the reason if this hub cannot keep it.

        Args:
            declaration: the schedule.
            user: the user whose key its client shows.
        """
        reason = self._refusal(declaration, user)
        if reason:
            fields: dict[str, object] = {
                "schedule": declaration.name,
                "text": f"schedule {declaration.name} is not kept: {reason}",
            }
            self._hub.log("schedule.refused", fields)
            return reason
        known = self.records.get(declaration.name)
        if known is None:
            known = self._add(declaration, user)
        elif known.declaration != declaration or known.user != user:
            self._change(known, declaration, user)
        self._put(known)
        self._renew()
        return ""

    def _refusal(self, declaration: Declaration, user: str) -> str:
        if declaration.spec.kind != FIRING or not declaration.name:
            return "it has no name, or its task is no firing"
        known = self.records.get(declaration.name)
        if known is None and len(self.records) >= MOST_SCHEDULES:
            return f"the hub has {MOST_SCHEDULES:,} schedules already"
        size = len(declaration.payload) + len(declaration.spec.function)
        if self._size + size > self._hub.config.spec_bytes:
            return f"there is no room for {size:,} bytes more of scheduled calls"
        try:
            Ticks(declaration.timing)
        except BadTiming as error:
            return str(error)
        return self._over_share(declaration, user, known)

    def _over_share(self, declaration: Declaration, user: str, known: ScheduleRecord | None) -> str:
        """Return the reason if a user would have more than each may have."""
        count, rate = self._of_user[user], self._rates.get(user, 0.0) + rate_of(declaration)
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

    def _count_in(self, schedule: ScheduleRecord) -> None:
        """Count a schedule among those of its user."""
        self._size += schedule.size
        self._of_user[schedule.user] += 1
        self._rates[schedule.user] += rate_of(schedule.declaration)

    def _count_out(self, schedule: ScheduleRecord) -> None:
        self._size -= schedule.size
        self._of_user[schedule.user] -= 1
        self._rates[schedule.user] -= rate_of(schedule.declaration)
        if not self._of_user[schedule.user]:
            del self._of_user[schedule.user], self._rates[schedule.user]

    def _add(self, declaration: Declaration, user: str) -> ScheduleRecord:
        self._groups += 1
        schedule = ScheduleRecord(declaration, self._entry(declaration), self._groups, self._hub.wall)
        schedule.user = user
        self.records[declaration.name] = schedule
        self._count_in(schedule)
        self._plan(schedule)
        return schedule

    def _entry(self, declaration: Declaration) -> SpecEntry:
        number = spec_number(declaration.spec)
        known = self._hub.specs.get(number)
        return known if known is not None else SpecEntry(number, declaration.spec)

    def _change(self, known: ScheduleRecord, declaration: Declaration, user: str) -> None:
        before = known.declaration
        self._count_out(known)
        known.declaration, known.user = declaration, user
        known.entry = self._entry(declaration)
        self._count_in(known)
        if declaration == before:
            return
        if declaration.timing != before.timing:
            known.ticks = Ticks(declaration.timing)
            self._plan(known)
        fields: dict[str, object] = {
            "schedule": known.name,
            "when": when_of(declaration),
            "before": when_of(before),
            "text": f"{known.name} has another definition",
        }
        self._hub.log("schedule.changed", fields)

    def remove(self, name: str, reason: str) -> bool:
        """Forget a schedule; return False if there is none. Firings on their way go on."""
        schedule = self.records.pop(name, None)
        if schedule is None:
            return False
        self._count_out(schedule)
        self._drop(name)
        self._hub.log("schedule.removed", {"schedule": name, "text": f"{name} was removed: {reason}"})
        return True

    def on_revoked(self, users: frozenset[str]) -> None:
        """Forget the schedules of users whose keys are not let in any more."""
        for name in [name for name, schedule in self.records.items() if schedule.user in users]:
            self.remove(name, "the key of its owner was revoked")

    # --- operators ----------------------------------------------------------------------------------------

    def pause(self, schedule: ScheduleRecord, *, paused: bool) -> None:
        """Pause a schedule, or have it go on: ticks meanwhile do not count as missed."""
        if schedule.paused and not paused:
            schedule.cursor = max(schedule.cursor, self._hub.wall)
        schedule.paused = paused
        self._put(schedule)
        self._plan(schedule)
        self._renew()

    def run(self, schedule: ScheduleRecord) -> str:
        """Fire a schedule now, whatever its rules; return the task's id, empty if the hub is full."""
        record = self._submit(schedule, self._hub.wall, "#run")
        self._put_cursor(schedule)
        return text_of(record.id) if record is not None else ""

    def coming(self, schedule: ScheduleRecord, most: int) -> list[float]:
        """Return a schedule's next ticks, whether it is paused or not."""
        found: list[float] = []
        tick = schedule.ticks.after(max(schedule.cursor, self._hub.wall))
        while tick < math.inf and len(found) < most:
            found.append(tick)
            tick = schedule.ticks.after(tick)
        return found
