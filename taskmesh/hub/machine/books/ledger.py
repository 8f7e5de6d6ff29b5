"""The ledger: every accepted task has exactly one record here and reaches exactly one terminal state.

It owns task state and nothing else does. A terminal task's record is dropped at once; its id stays known as
finished, so a repeated submission or a late result of it changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from taskmesh.core.ids import SEQ_BITS, SEQ_MASK, owned, text_of
from taskmesh.errors import InvalidTransition
from taskmesh.hub.machine.books.account import PORTION, Account
from taskmesh.hub.machine.books.backlog import Backlog, Route, group_of
from taskmesh.hub.machine.books.limits import Limits
from taskmesh.hub.machine.books.spec_entry import RestingSpecs, SpecEntry
from taskmesh.hub.machine.books.states import (
    ON_ITS_WAY,
    QUEUED,
    SENT,
    SUCCEEDED,
    SUSPECT,
    TRANSITIONS,
    WAITING,
    Attempt,
    Cause,
    State,
    TaskExtra,
    TaskRecord,
    handed_back,
)
from taskmesh.messages.runs import DoneRun, Run, Spec

PUSHED = (QUEUED, Cause.PUSH)
NAMED, EDGE = 500, 300
"""Bytes that a task with a key or with edges takes beside, and each edge."""
FEW_TIMERS = 64
"""Timers kept without asking whether their tasks still live: not many, see `Lane.remember`."""


class Timers:
    """A heap of timers; one whose task has moved on meanwhile has no effect.

    Attributes:
        heap: when, a number, the task and the cause: DUE ends waiting, EXPIRE and CANCEL end a task that has
            not started.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, TaskRecord, Cause]] = []
        self._count = 0
        self._limit = FEW_TIMERS

    @property
    def deadline(self) -> float:
        """The time of the first timer; there is one."""
        return self.heap[0][0]

    def at(self, when: float, record: TaskRecord, cause: Cause) -> None:
        self._count += 1
        if len(self.heap) >= self._limit:
            self._drop_finished()
        heapq.heappush(self.heap, (when, self._count, record, cause))

    def pop(self) -> tuple[float, TaskRecord, Cause]:
        when, _, record, cause = heapq.heappop(self.heap)
        return when, record, cause

    def _drop_finished(self) -> None:
        """Forget the timers of finished tasks, which far expiries would keep by the million."""
        last = State.RUNNING
        self.heap[:] = [timer for timer in self.heap if timer[2].state <= last]
        heapq.heapify(self.heap)
        self._limit = 2 * len(self.heap) + FEW_TIMERS


class Ledger:
    """All tasks on their way.

    Attributes:
        accounts: of clients, with their tasks.
        aliases: records by ids that pools alone know: nobody waits under these any more.
        count: how many tasks clients wait for.
        waiting: the WAITING ones of the records, in order.
        accepted: how many records were ever entered. A second submission under a `key=` has none, nor has an
            attachment.
        backlog: what waits for a lane; suspects: of it, what goes there alone.
        limits: what lets few of some tasks go; nothing while no task has any.
        timers: of tasks that wait, or may expire.
        counts: how often each transition happened, for tests and metrics.
        size: bytes of all that clients have here: calls, their names and edges, specs of tasks on their way,
            lines of the backlog, outcomes that are kept and those in sinks; held: of kept outcomes alone.
        resting: specs without a task on its way.
        reruns: how many tasks came again, since their ignored results were needed.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.accounts: dict[int, Account] = {}
        self.aliases: dict[int, TaskRecord] = {}
        self.count = 0
        self.waiting: dict[TaskRecord, None] = {}
        self.limits = limits or Limits()
        self.backlog = Backlog(self.limits, weigh=self.weigh)
        self.suspects = Backlog(self.limits, self.backlog.withheld, self.weigh)
        self.counts: dict[tuple[State, Cause], int] = {}
        self.accepted = 0
        self.reruns = 0
        self.size = 0
        self.held = 0
        self.resting = RestingSpecs()
        self._keys: dict[tuple[str, str], TaskRecord] = {}
        self.timers = Timers()

    # --- in -----------------------------------------------------------------------------------------------

    def account(self, client: int) -> Account:
        """The client's account, opened when needed."""
        found = self.accounts.get(client)
        if found is None:
            found = self.accounts[client] = Account()
        return found

    def tasks_of(self, client: int) -> dict[int, TaskRecord]:
        """The tasks that a client waits for, by counter."""
        account = self.accounts.get(client)
        return {} if account is None else account.tasks

    def by_id(self, task: int) -> TaskRecord | None:
        """The record of a task on its way, by an id that its clients or pools know."""
        return self.tasks_of(task >> SEQ_BITS).get(task & SEQ_MASK) or self.aliases.get(task)

    def route_of(self, record: TaskRecord) -> Route:
        """Return the route of a task, whose sink is its owner's."""
        route: Route = record.spec.route
        if not route[3]:
            return route
        return (*route[:3], owned(self.account(record.client).owner, route[3]))

    def accept(self, client: int, entry: SpecEntry, run: Run, now: float, *, fresh: bool) -> list[TaskRecord]:
        """Enter a run of tasks; those already known or finished are passed over.

        Args:
            fresh: the client says that none can be known here; it is believed after a look that costs little.

        Returns:
            The new records, QUEUED but in no queue yet.
        """
        account = self.account(client)
        tasks, group, seqs, payloads = account.tasks, run.group, run.seqs, run.payloads
        finished = account.finished
        if fresh and len(seqs) == 1 and seqs[0] not in tasks and seqs[0] >= finished.end:
            # All of what follows, for a task alone; it may go to a pool at once, past the backlog.
            record = TaskRecord(client, seqs[0], entry, group, payloads[0], now, lined_up=False)
            tasks[seqs[0]] = record
            records = [record]
            count = 1
            size = len(payloads[0])
        else:
            if not fresh or not tasks.keys().isdisjoint(seqs) or (seqs and min(seqs) < finished.end):
                new = [i for i, seq in enumerate(seqs) if seq not in tasks and seq not in finished]
                payloads, seqs = [payloads[i] for i in new], [seqs[i] for i in new]
            records = [
                TaskRecord(client, seq, entry, group, data, now)
                for seq, data in zip(seqs, payloads, strict=True)
            ]
            if not fresh or len(records) == 1 or run.key or run.delay > 0 or run.needs or run.after:
                for record in records:  # a pool may hold it, it may go to one past the backlog, or it waits
                    record.lined_up = False
            tasks.update(zip(seqs, records, strict=True))
            count = len(records)
            size = sum(map(len, payloads))
        if run.key and records:
            self._set_key(entry.spec.name, owned(account.owner, run.key), records[0])
        self.accepted += count
        self.count += count
        self.size += size
        account.size += size
        if not entry.live and count:
            self._wake(entry, account)
        entry.live += count
        spec = entry.spec
        if spec.expires > 0 or spec.limits or spec.keep > 0:
            self._prepare(records, run, spec, now)
        return records

    def _prepare(self, records: list[TaskRecord], run: Run, spec: Spec, now: float) -> None:
        for record in records:
            if spec.expires > 0:
                self.timers.at(now + spec.expires - run.age, record, Cause.EXPIRE)
            if spec.limits:
                record.part = run.part
            if spec.keep > 0:
                record.more()  # the collector then looks at each of them

    def attach(self, client: int, seq: int, record: TaskRecord) -> None:
        """A second waiter for a record found by its key or id; it is a task of its own to its client.

        It may have had a record until now, which waited for the other one to come.
        """
        task, tasks = client << SEQ_BITS | seq, self.account(client).tasks
        former = tasks.get(seq)
        tasks[seq] = record
        record.more().waiters[task] = None
        self.aliases.pop(task, None)
        if former is not None:
            self._over(former.spec, 1)
            self.weigh(client, -weight_of(former))
            self._waits_no_more(former)
            if former.links is not None:
                record.link().dependents.update(former.links.dependents)
        else:
            self.count += 1

    def readmit(self, record: TaskRecord, entry: SpecEntry) -> None:
        """Enter a task once more whose bad end nobody has heard of; it is QUEUED and has its place.

        Args:
            entry: its spec, which may have come anew since.
        """
        record.spec = entry
        account = self.account(record.client)
        account.tasks[record.seq] = record
        self.accepted += 1
        self.count += 1
        self.weigh(record.client, weight_of(record))
        if not entry.live:
            self._wake(entry, account)
        entry.live += 1
        self.requeue(record)

    def weigh(self, client: int, size: int, held: int = 0) -> None:
        """Count bytes of what a client has here; a negative size takes them off again.

        Args:
            client: the client.
            size: the bytes.
            held: the part of them that are outcomes which its tasks need.
        """
        account = self.account(client)
        self.size += size
        account.size += size
        self.held += held
        account.held += held

    def _over(self, entry: SpecEntry, count: int) -> None:
        """So many tasks of a spec are over."""
        entry.live -= count
        if not entry.live:
            if entry.payer is not None:
                self.size -= entry.size
                entry.payer.size -= entry.size
                entry.payer.code -= entry.size
                entry.payer = None
            self.resting.add(entry)

    def _wake(self, entry: SpecEntry, account: Account) -> None:
        """A spec has tasks on their way: it counts for the client that has brought the first one."""
        self.resting.discard(entry)
        entry.payer = account
        self.size += entry.size
        account.size += entry.size
        account.code += entry.size

    def by_key(self, name: str, key: str) -> TaskRecord | None:
        """The task on its way that was submitted under this key, as `owned` has it, of this task name."""
        return self._keys.get((name, key))

    def _set_key(self, name: str, key: str, record: TaskRecord) -> None:
        """Make a record findable by its key until it is terminal."""
        record.more().key = (name, key)
        self._keys[name, key] = record
        self.weigh(record.client, NAMED + len(key))

    # --- on the way ---------------------------------------------------------------------------------------

    def move(self, record: TaskRecord, cause: Cause) -> None:
        """One transition.

        Raises:
            InvalidTransition: the table does not have it: a bug.
        """
        before = record.state
        after = TRANSITIONS.get((before, cause))
        if after is None:
            raise InvalidTransition(
                f"task {text_of(record.id)} is {before.name}: {cause.name} is not possible"
            )
        record.state = after
        self._count(before, cause, 1)
        if after is WAITING:
            self.waiting[record] = None
            record.spec.waiting += 1
        elif before is WAITING:
            self._waits_no_more(record)
        if record.part is not None:
            self._moved(record, before, cause)
        if before is QUEUED and record.lined_up:
            self.backlog.left += 1
            self.suspects.left += record.losses > 0

    def _waits_no_more(self, record: TaskRecord) -> None:
        del self.waiting[record]
        record.spec.waiting -= 1

    def _moved(self, record: TaskRecord, before: State, cause: Cause) -> None:
        """A task with limits holds its permits while it is SENT or RUNNING, and only then."""
        if SENT <= before <= State.RUNNING:
            if not SENT <= record.state <= State.RUNNING:
                self.limits.end(record, cause)
        elif record.state is SENT:
            self.limits.adopt(record)

    def push(self, records: list[TaskRecord], session: int) -> None:
        """PUSH of a lane message: spelt out, since a call of `move` for each task would double its cost."""
        sent = SENT
        for record in records:
            record.state = sent
            record.session = session
            record.attempt += 1
        counts = self.counts
        counts[PUSHED] = counts.get(PUSHED, 0) + len(records)

    def adopt(self, record: TaskRecord, task: int, held: Attempt, session: int) -> None:
        """A session holds this attempt of a task, whose record may know of another one or none.

        Args:
            task: the id under which its pool has it: the record's own, or that of a waiter.
            held: the attempt.
            session: of the pool.
        """
        if not SENT <= record.state <= State.RUNNING:
            attempt, begun = record.attempt, record.begun
            self.move(record, Cause.ADOPT)
            record.attempt = held.attempt  # its pool shows people this number
            record.returns = handed_back(held)
            if attempt != held.attempt:  # else it is this one that was heard of
                record.raise_attempts(attempt, begun)
        record.session = session
        if (extra := record.extra) is not None:
            if task != record.known_as:
                self._forget_alias(extra)
                extra.alias = task if task != record.id else 0
            if extra.links is not None:
                extra.links.recovers = False

    def _count(self, before: State, cause: Cause, times: int) -> None:
        key = (before, cause)
        self.counts[key] = self.counts.get(key, 0) + times

    def enqueue(self, records: list[TaskRecord], *, again: bool = False) -> None:
        """Put records of one run behind their group.

        Args:
            again: they are not new: an earlier hub had them.
        """
        for record in records if again else ():
            self._came_back(record)
        if records:
            first = records[0]
            self.backlog.append(self.route_of(first), first.spec.priority, group_of(first), records)

    def send_round(self, record: TaskRecord, cause: Cause) -> None:
        """Queue a task again that a pool had; what was handed back unstarted keeps its attempt's number."""
        if cause is Cause.RETURN:
            record.returns += 1
        self.move(record, cause)
        links = record.links
        if links is not None and links.holds_back:  # its pool had it from another hub, which knew more
            self.move(record, Cause.AWAIT)
            self._came_back(record)
        else:
            self.requeue(record)

    def requeue(self, record: TaskRecord) -> None:
        """Put a QUEUED record before the others of its group: it has waited already."""
        self._came_back(record)
        backlog = self.suspects if record.losses >= SUSPECT else self.backlog
        backlog.push_front(self.route_of(record), record.spec.priority, group_of(record), record)

    def _came_back(self, record: TaskRecord) -> None:
        """No pool has a record any more: what was put off until then is due."""
        record.session = 0
        if (extra := record.extra) is not None:
            self._forget_alias(extra)
            extra.over(record)
            if extra.late:
                self.timers.at(0.0, record, Cause.EXPIRE)
            if extra.unwanted:
                self.timers.at(0.0, record, Cause.CANCEL)

    def wait(self, record: TaskRecord, until: float, at: float = 0.0) -> None:
        """A record that has just become WAITING is due at `until`, or at a time on the wall (`schedules`)."""
        record.session = 0
        record.due = until
        if at:
            record.more()
        if (extra := record.extra) is not None:
            self._forget_alias(extra)
            extra.over(record)
            extra.at = at
        if not at:
            self.timers.at(until, record, Cause.DUE)

    def due(self, now: float, end: Callable[[TaskRecord, Cause], None]) -> None:
        """Fire timers: tasks that waited are queued, those whose time is over are given to `end`.

        At most a portion of them: the others are due at once, in a step of their own. What has been handed
        back and is to end (`requeue`) is no part of it, or a pool would be given it once more.
        """
        heap = self.timers.heap
        left = PORTION
        while heap and heap[0][0] <= now and (left > 0 or not heap[0][0]):
            when, record, cause = self.timers.pop()
            left -= 1
            if cause is not Cause.DUE:
                if record.state in (State.QUEUED, State.WAITING) and not record.has_failed:
                    end(record, cause)
                elif record.state is State.SENT and cause is Cause.EXPIRE:
                    record.more().late = True
            elif record.state is State.WAITING and record.due == when:
                record.due, record.ready = 0.0, when
                if not record.is_held_back(now):
                    self.move(record, Cause.DUE)
                    self.requeue(record)

    # --- out ----------------------------------------------------------------------------------------------

    def succeed(self, run: DoneRun, session: int) -> tuple[SpecEntry | None, list[int]]:
        """SUCCEED of a run's tasks that are the common case; touches each record once and drops it.

        Args:
            run: results of one slot.
            session: of the pool that reports them.

        Returns:
            The spec, if any task was the common case, and the places of the others in the run: they are
            unknown, late, or have more than one waiter.
        """
        tasks, attempt = self.tasks_of(run.client), run.attempt
        if self.limits.counters:
            self._free_permits(tasks, run, session)
        take, sent, succeeded = tasks.pop, SENT, SUCCEEDED
        running = size = 0
        remaining: list[int] = []
        last: TaskRecord | None = None
        for index, seq in enumerate(run.seqs):
            record = take(seq, None)
            if (
                record is None
                or record.session != session
                or record.attempt != attempt
                or record.extra is not None  # a record with several ids has one
            ):
                remaining.append(index)
                if record is not None:
                    tasks[seq] = record
                continue
            last = record
            if record.state is not sent:
                running += 1
            record.state = succeeded
            size += len(record.payload)
            record.payload = b""
        if last is None:
            return None, remaining
        entry: SpecEntry = last.spec
        seqs = run.seqs
        if remaining:
            left = set(remaining)
            seqs = [seq for index, seq in enumerate(seqs) if index not in left]
        done = len(seqs)
        if running:
            self._count(State.RUNNING, Cause.SUCCEED, running)
        if done > running:
            self._count(sent, Cause.SUCCEED, done - running)
        account = self.accounts[run.client]
        account.size -= size
        account.finished.add_all(seqs)
        self.count -= done
        self.size -= size
        self._over(entry, done)
        entry.figures.succeeded += done
        return entry, remaining

    def _free_permits(self, tasks: dict[int, TaskRecord], run: DoneRun, session: int) -> None:
        """Free the permits of a run's tasks that `succeed` is about to end as the common case."""
        for seq in run.seqs:
            record = tasks.get(seq)
            if (
                record is not None
                and record.part is not None
                and record.session == session
                and record.attempt == run.attempt
                and record.extra is None
            ):
                self.limits.end(record)

    def drop(self, record: TaskRecord) -> list[int]:
        """Forget a terminal record; return every id that waits for its outcome, its own first."""
        self._over(record.spec, 1)
        record.spec.figures.succeeded += record.state is SUCCEEDED
        size = weight_of(record)
        self.size -= size
        extra = record.extra
        owner = self.accounts.get(record.client)
        if owner is not None:
            owner.size -= size
        record.payload = b""
        waiting = [record.id]
        if extra is not None:
            self._forget_alias(extra)
            waiting += extra.waiters
            if extra.key is not None and self._keys.get(extra.key) is record:
                del self._keys[extra.key]
            if extra.abandoned:
                self.aliases.pop(waiting.pop(0), None)
        for task in waiting:
            self._settle(task)
        return waiting

    def detach(self, task: int, record: TaskRecord) -> bool:
        """One waiter gives up; returns True when nobody is left and the record itself should be cancelled."""
        extra = record.extra
        if extra is None:
            return True
        owner_stays = task != record.id and not extra.abandoned
        if len(extra.waiters) == (task in extra.waiters) and not owner_stays:
            return True
        extra.waiters.pop(task, None)
        extra.abandoned |= task == record.id
        if task in (record.id, extra.alias):  # a pool that has it under this id reports it so
            self.aliases[task] = record
        self._settle(task)
        return False

    def _forget_alias(self, extra: TaskExtra) -> None:
        """No pool has the record under another's id any more: it is not found by that."""
        self.aliases.pop(extra.alias, None)

    def _settle(self, task: int) -> None:
        account = self.accounts[task >> SEQ_BITS]
        del account.tasks[task & SEQ_MASK]
        account.finished.add(task & SEQ_MASK)
        self.count -= 1


def weight_of(record: TaskRecord) -> int:
    """Return the bytes that a task is counted for: its call, its key and its edges."""
    extra: TaskExtra | None = record.extra
    size = len(record.payload)
    if extra is not None:
        if extra.key is not None:
            size += NAMED + len(extra.key[1])
        if extra.links is not None:
            size += weight_of_edges(len(extra.links.needs) + len(extra.links.after))
    return size


def weight_of_edges(count: int) -> int:
    return NAMED + EDGE * count if count else 0


def tasks_by_id(ledger: Ledger) -> Iterator[tuple[int, TaskRecord]]:
    """Yield every id on its way, with its record: for views and checks."""
    for client, account in ledger.accounts.items():
        for seq, record in account.tasks.items():
            yield client << SEQ_BITS | seq, record
    yield from ledger.aliases.items()


def states_of(ledger: Ledger) -> dict[State, int]:
    """Return the numbers of records in each state on the way, without a look at them.

    Some of the WAITING ones were replaced, without a transition (`Ledger.attach`).
    """
    found = dict.fromkeys(ON_ITS_WAY, 0)
    found[QUEUED] = ledger.accepted
    for (before, cause), count in ledger.counts.items():
        found[before] -= count
        after = TRANSITIONS[before, cause]
        if after in found:
            found[after] += count
    found[WAITING] = len(ledger.waiting)
    return found
