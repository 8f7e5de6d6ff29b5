"""Dependencies: tasks that wait for others, and the outcomes that they are handed.

Everything here follows from records of the ledger, in the transition that changes them. A task that depends
on others WAITs; the end of the last of them makes it DUE. A bad end BLOCKs it at once, and all that depends
on it in turn, by a loop and in portions. An outcome is kept from the end of its task to the end of the last
task that is handed it, and counts as its client's bytes meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from taskmesh.core.ids import SEQ_BITS, SEQ_MASK, plain, text_of
from taskmesh.errors import TooLarge
from taskmesh.hub.machine.books.ledger import Ledger, weight_of_edges
from taskmesh.hub.machine.books.states import WAITING, Cause, Links, State, TaskRecord
from taskmesh.messages.runs import (
    DEPENDENCY,
    DONE,
    FAILURE,
    SUCCESS,
    UNKNOWN,
    DoneRun,
    Failed,
    LaneRun,
    Run,
    Spec,
    Value,
)

TOO_LARGE = f"{TooLarge.__module__}.{TooLarge.__qualname__}"
SKIPPED = "skipped"
"""`Failed.kind` in the hub alone: clients get "cancelled"."""
RUNNING = State.RUNNING
"""For the hot path: in Python 3.11 an enum's attribute takes 90 ns."""
LOOKS = 20_000
"""Looks at tasks in one step: some 25 ms of work, and others get their turn."""
PER_START, PER_END = 4, 25
"""So many looks take as long as to queue a task, or to end one."""
MOST_TEXT = 300
"""Characters of a bad end that a blocked task's error repeats."""


class HeldValue:
    """An outcome that tasks on their way need.

    Attributes:
        value: the outcome.
        holders: how many tasks on their way are handed it.
        sessions: lanes that have been sent it.
    """

    __slots__ = ("holders", "sessions", "value")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.holders = 0
        self.sessions: set[int] = set()


class Ending:
    """The end of a task, while tasks that depend on it are yet to hear of it.

    Attributes:
        task: its id.
        dependents: those tasks. heard: how many have.
        failure: how it ended for those that wait for it, None for well.
        for_needs: the same for those that are handed its result, which there may be no room for.
    """

    __slots__ = ("dependents", "failure", "for_needs", "heard", "task")

    def __init__(self, task: int, dependents: list[TaskRecord], failure: Failed | None) -> None:
        self.task = task
        self.dependents = dependents
        self.heard = 0
        self.failure = self.for_needs = failure


class Dependencies:
    """The graph of tasks on their way.

    Args:
        ledger: the records.
        client_bytes: how many bytes of outcomes the hub may hold for one client.
        most_bytes: how many it may hold for all.

    Attributes:
        values: outcomes that tasks on their way need, by the id of the task that gave them.
        kept: of these, the ones that clients have put there, until they drop them.
        brought: outcomes that are held for the Submit which is taken in.
        ended: ends that some tasks are yet to hear of.
        settled: tasks that are to be queued, or ended if there is a failure.
        unused: outcomes that lanes have been sent and may forget, by session and client.
        blocked: how many tasks ended since one that they depend on had ended badly.
    """

    def __init__(self, ledger: Ledger, client_bytes: int, most_bytes: int) -> None:
        self._ledger = ledger
        self._client_bytes = client_bytes
        self._most_bytes = most_bytes
        self.values: dict[int, HeldValue] = {}
        self.kept: dict[int, set[int]] = {}
        self.blocked = 0
        self.brought: list[int] = []
        self.ended: deque[Ending] = deque()
        self.settled: deque[tuple[TaskRecord, Failed | None]] = deque()
        self.unused: dict[int, dict[int, list[int]]] = {}

    # --- in -----------------------------------------------------------------------------------------------

    def missing(self, client: int, runs: Sequence[Run], values: Iterable[Value]) -> list[int]:
        """Return the counters of tasks that these runs depend on and of which nothing is known here.

        A run's tasks may depend on others of the same run, and of those before it, unless these have ended
        here since their client sent it.
        """
        unknown: set[int] = set()
        own = {value.seq for value in values}
        base, account = client << SEQ_BITS, self._ledger.account(client)
        for run in runs:
            if run.again and not run.rerun:
                own.update(seq for seq in run.seqs if seq not in account.finished)
            else:
                own.update(run.seqs)
            needed = {seq for edges in run.needs for seq in edges}
            for seq in needed.union(*run.after) - own:
                if seq not in account.tasks and not self.has(base | seq, needed=seq in needed):
                    unknown.add(seq)
        return sorted(unknown)

    def has(self, task: int, *, needed: bool) -> bool:
        """Return True if the outcome of a task is held: with its result, if that is needed."""
        held = self.values.get(task)
        return held is not None and not (needed and held.value.is_bare)

    def reopen(self, client: int, runs: Iterable[Run]) -> None:
        """Tasks whose ignored results are needed once more are new here, unless the results are held."""
        base, account = client << SEQ_BITS, self._ledger.account(client)
        for run in runs:
            if run.rerun:
                ended = {seq for seq in run.seqs if seq not in account.tasks}
                held = {seq for seq in ended if self.has(base | seq, needed=True)}
                account.reopen(ended - held)
                account.finished.add_all(sorted(held))

    def bring(self, client: int, values: Iterable[Value]) -> None:
        """Take in outcomes of tasks that are not here; call `drop_unused` once those that need them are.

        Until then they are held, also if the first of these ends at once.
        """
        tasks = self._ledger.tasks_of(client)
        for value in values:
            if value.seq not in tasks:
                task = client << SEQ_BITS | value.seq
                held = self._keep(task, value)
                held.holders += 1
                self.brought.append(task)
                kept = self.kept.setdefault(client, set()) if value.is_kept else None
                if kept is not None and value.seq not in kept:
                    kept.add(value.seq)
                    held.holders += 1

    def held_for(self, client: int, runs: Iterable[Run]) -> list[Value]:
        seqs = {seq for run in runs for edges in (*run.needs, *run.after) for seq in edges}
        found = [self.values.get(client << SEQ_BITS | seq) for seq in sorted(seqs)]
        return [held.value for held in found if held is not None]

    def drop_unused(self) -> None:
        """Forget those of the outcomes brought that no task here needs."""
        brought, self.brought = self.brought, []
        for task in brought:
            self._release(task)

    def drop_kept(self, client: int, seqs: Iterable[int] | None = None) -> None:
        """Let go of these values that a client has put here, or of all: it needs them no more, or is gone."""
        kept = self.kept.get(client)
        if kept is None:
            return
        for seq in kept.intersection(seqs) if seqs is not None else list(kept):
            kept.discard(seq)
            self._release(client << SEQ_BITS | seq)
        if not kept:
            del self.kept[client]

    def enter(self, record: TaskRecord, needs: Sequence[int], after: Sequence[int], when: int) -> None:
        """Give a new record its edges; it is QUEUED still.

        Args:
            needs, after, when: as in `Run`.
        """
        links = record.link()
        links.needs, links.after, links.when = list(dict.fromkeys(needs)), after, when
        self._ledger.weigh(record.client, weight_of_edges(len(links.needs) + len(after)))
        base, tasks = record.client << SEQ_BITS, self._ledger.tasks_of(record.client)
        ends: list[tuple[int, Failed]] = []
        for seq in dict.fromkeys([*needs, *after]) if after else links.needs:
            task = base | seq
            upstream = tasks.get(seq)
            if upstream is not None:
                extra = upstream.extra  # as `link` does it
                known = extra.links if extra is not None else None
                dependents = (known or upstream.link()).dependents
                if task in dependents:
                    dependents[task].append(record)
                else:
                    dependents[task] = [record]
                links.waits += 1
            elif self.has(task, needed=seq in links.needs):
                held = self.values[task]
                held.holders += seq in needs
                if held.value.failed is not None:
                    ends.append((task, held.value.failed))
            else:
                ends.append((task, UNKNOWN_TASK))
        if not ends and not links.waits:
            self._decide(record, links, None, None)
        for failed, failure in ends:
            self._decide(record, links, failure, _blocked(failure, failed))

    # --- when tasks end -----------------------------------------------------------------------------------

    def succeeded(self, record: TaskRecord, payload: Any, attempt: int) -> None:
        """A record is about to be dropped, with this result: apply that to all tasks it has edges to."""
        links = record.links
        if links is not None:
            self._let_go(record, links)
            for task, dependents in links.dependents.items():
                value = Value(task & SEQ_MASK, payload, record.spec.spec.name, attempt)
                if record.spec.is_promise:
                    value.key = plain(record.extra.key[1])
                self._ended(task, dependents, value)
            links.dependents = {}

    def failed(self, record: TaskRecord, failure: Failed) -> None:
        """A record is about to be dropped, with this bad end: apply that to all tasks it has edges to."""
        links = record.links
        if links is not None:
            self._let_go(record, links)
            for task in list(links.dependents):
                self.given_up(task, record, failure)

    def given_up(self, task: int, record: TaskRecord, failure: Failed) -> None:
        """One waiter has given up a record that goes on: block what depends on it under that id."""
        links = record.links
        if links is not None and (dependents := links.dependents.pop(task, None)):
            name, seq = record.spec.spec.name, task & SEQ_MASK
            self._ended(task, dependents, Value(seq, b"", name, failure.attempt, failed=failure))

    def _ended(self, task: int, dependents: list[TaskRecord], value: Value) -> None:
        """Have the tasks hear of it that depend on one which has ended, and keep its outcome for them."""
        ending, seq = Ending(task, dependents, value.failed), value.seq
        holders = 0
        for record in dependents:
            if record.state <= RUNNING and seq in record.extra.links.needs:
                holders += 1
        if holders:
            ending.for_needs = self._hold(task, value, holders) or value.failed
        self.ended.append(ending)

    def _tell(self, left: int) -> int:
        """Tell tasks that are yet to hear of an end, at most so many; return how many may be told besides."""
        ending = self.ended[0]
        seq, first = ending.task & SEQ_MASK, ending.heard
        some = ending.dependents[first : first + left]
        ending.heard += len(some)
        if ending.heard == len(ending.dependents):
            self.ended.popleft()
        end, blocked = ending.failure, _blocked(ending.failure, ending.task)
        for_needs, without = ending.for_needs, _blocked(ending.for_needs, ending.task)
        for record in some:
            if record.state <= RUNNING:
                links = record.extra.links
                links.waits -= 1
                if record.state is not WAITING:
                    continue
                if for_needs is not end and seq in links.needs:
                    self._decide(record, links, for_needs, without)
                elif end is not None or not links.waits or links.when == FAILURE:
                    self._decide(record, links, end, blocked)
        return left - len(some)

    def _decide(
        self, record: TaskRecord, links: Links, failure: Failed | None, blocked: Failed | None
    ) -> None:
        """Decide whether a task starts or never does, now that one that it depends on has ended.

        Args:
            failure: the bad end of the other.
            blocked: how a task ends then that needs its success.
        """
        if links.is_settled:
            return
        skipped = failure is not None and failure.kind == SKIPPED
        links.has_failed |= failure is not None and not skipped
        end: Failed | None = None
        if failure is not None and skipped and links.when != DONE:
            end = failure
        elif failure is not None and links.when == SUCCESS:
            end = blocked
        elif links.waits and not (links.when == FAILURE and links.has_failed):
            return
        elif links.when == FAILURE and not links.has_failed:
            end = SKIP
        links.is_settled = True
        links.is_blocked = end is not None  # its time to start may come in the same step
        self.settled.append((record, end))

    def failed_upstream(self, record: TaskRecord) -> Failed | None:
        """Return the end of a task that was to start with a value which is none any more, if it is one."""
        links = record.links
        if links is not None and links.when == SUCCESS:
            base = record.client << SEQ_BITS
            for seq in links.needs:
                held = self.values.get(base | seq)
                if held is not None and held.value.failed is not None:
                    return blocked_by(held.value.failed, base | seq)
        return None

    @property
    def is_settling(self) -> bool:
        """True while tasks that others have waited for have ended, and not all of it is done."""
        return bool(self.ended or self.settled)

    def settle(self, now: float, end: Callable[[TaskRecord, Cause, Failed], None]) -> None:
        """Queue tasks that have become ready, and end those that never start: a portion of them.

        Args:
            end: ends a record, with all that follows.
        """
        ready: list[TaskRecord] = []
        left = LOOKS
        while left > 0 and (self.settled or self.ended):
            if not self.settled:
                left = self._tell(left)
                continue
            record, failure = self.settled.popleft()
            if record.state is not State.WAITING:  # a pool has it from an earlier hub, which had it start
                record.link().is_blocked = False
                left -= 1
                continue
            left -= PER_START if failure is None else PER_END
            if failure is not None:
                is_skipped = failure.kind == SKIPPED
                self.blocked += not is_skipped
                end(record, Cause.SKIP if is_skipped else Cause.BLOCK, failure)
            elif not record.is_held_back(now):
                ready.append(record)
        for record in reversed(ready):  # each goes to the front of its group: what is begun is finished first
            self._ledger.move(record, Cause.DUE)
            self._ledger.requeue(record)

    # --- outcomes -----------------------------------------------------------------------------------------

    def attach(self, runs: list[LaneRun], records: list[TaskRecord], session: int) -> int:
        """Add to the runs of a lane message what their tasks need; return the bytes of that.

        Args:
            records: the tasks of all the runs, in order.
        """
        size = at = 0
        for run in runs:
            part = records[at : at + len(run.seqs)]
            at += len(part)
            needs = [links.needs if (links := record.links) is not None else () for record in part]
            if not any(needs):
                continue
            run.needs = [list(each) or None for each in needs]
            for seq in dict.fromkeys(seq for each in needs for seq in each):
                held = self.values.get(run.client << SEQ_BITS | seq)
                if held is not None and session not in held.sessions:
                    held.sessions.add(session)
                    run.values.append(held.value)
                    size += len(held.value.payload)
        return size

    def take_unused(self, session: int) -> list[tuple[int, list[int]]]:
        """Take the outcomes that a lane has been sent and may forget: by client, the counters."""
        return list(self.unused.pop(session, {}).items())

    def _hold(self, task: int, value: Value, holders: int) -> Failed | None:
        """Keep an outcome; return the reason if there is no room for it, which stands in its place then."""
        held, size = self._ledger.account(task >> SEQ_BITS).held, len(value.payload)
        too_large: Failed | None = None
        if size and (held + size > self._client_bytes or self._ledger.held + size > self._most_bytes):
            too_large = _too_large(value, held)
            value = Value(value.seq, name=value.name, attempt=value.attempt, failed=too_large)
        self._keep(task, value).holders += holders
        return too_large

    def _keep(self, task: int, value: Value) -> HeldValue:
        held = self.values.get(task)
        if held is None:
            held = self.values[task] = HeldValue(value)
            self._ledger.weigh(task >> SEQ_BITS, len(value.payload), len(value.payload))
        elif held.value.failed is not None and held.value.failed.kind == UNKNOWN:  # it came after all
            held.value, held.sessions = value, set()
            self._ledger.weigh(task >> SEQ_BITS, len(value.payload), len(value.payload))
        return held

    def _let_go(self, record: TaskRecord, links: Links) -> None:
        """A task that is over needs nothing any more."""
        base, tasks = record.client << SEQ_BITS, self._ledger.tasks_of(record.client)
        for seq in links.needs:
            task = base | seq
            held = self.values.get(task)
            if held is not None and not (seq in tasks and _waits_for(record, tasks[seq], task)):
                held.holders -= 1
                if not held.holders:
                    self._forget(task)

    def _release(self, task: int) -> None:
        """One holder of an outcome is gone."""
        held = self.values[task]
        held.holders -= 1
        if not held.holders:
            self._forget(task)

    def _forget(self, task: int) -> None:
        held = self.values.pop(task)
        client, seq = task >> SEQ_BITS, task & SEQ_MASK
        size = len(held.value.payload)
        self._ledger.weigh(client, -size, -size)
        for session in held.sessions:
            self.unused.setdefault(session, {}).setdefault(client, []).append(seq)


UNKNOWN_TASK = Failed(0, 0, 0, UNKNOWN, text="nothing is known of it here")
"""The end of a task that nobody has submitted, or of which the client should have sent the outcome."""
SKIP = Failed(0, 0, 0, SKIPPED)
"""The end of every task that is skipped."""


def is_bare(outcome: DoneRun | Failed) -> bool:
    """Return True for a success without its result, as clients are told it of tasks that ignore theirs."""
    return isinstance(outcome, DoneRun) and not len(outcome.payloads[0])


def value_of(seq: int, outcome: DoneRun | Failed, spec: Spec) -> Value:
    """Return the outcome of one task in the form in which it travels with those that depend on it."""
    if isinstance(outcome, Failed):
        return Value(seq, b"", spec.name, outcome.attempt, failed=outcome)
    return Value(seq, outcome.payloads[0], spec.name, outcome.attempt - outcome.returns)


def blocked_by(failure: Failed, upstream: int) -> Failed:
    """Return the end of a task that depends on one which ended badly.

    Its text tells the first cause, however long the path from there is; `Failed.upstream` is the last step.
    """
    if failure.kind == DEPENDENCY:
        text = failure.text
    else:
        what = f"{failure.type_name}: {failure.text}" if failure.type_name else failure.text
        text = f"task {text_of(upstream)} ended first: {failure.kind}{f', {what}' if what else ''}"
    return Failed(0, 0, 0, DEPENDENCY, text=text[:MOST_TEXT], upstream=upstream & SEQ_MASK)


def _waits_for(record: TaskRecord, upstream: TaskRecord, task: int) -> bool:
    """Return True if one that is over was still to be handed the outcome of this task."""
    links = upstream.links
    return links is not None and any(other is record for other in links.dependents.get(task, ()))


def _blocked(failure: Failed | None, upstream: int) -> Failed | None:
    return blocked_by(failure, upstream) if failure is not None else None


def _too_large(value: Value, held: int) -> Failed:
    text = (
        f"the result of {value.name}, {len(value.payload):,} bytes, has no room in the hub, which holds "
        f"{held:,} bytes of results that other tasks of this client wait for (client.max_bytes, "
        "hub.max_bytes). Return a path or a key instead of the data, let fewer tasks wait at a time, or "
        "raise these settings"
    )
    return Failed(0, value.seq, value.attempt, "result", type_name=TOO_LARGE, text=text)
