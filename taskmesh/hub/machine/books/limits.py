"""Limits: how many tasks start in a window, or run at a time. Permits are records that are SENT or RUNNING.

A limit is part of a task's route. A route queue whose limit is reached is closed: it stands in no rotation
and costs nothing, until a permit is returned (`LimitCounter.end`) or a window has room again
(`Limits.reopen`). All limits of a task are asked at its push and taken together, so that no task waits while
it holds another's.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from taskmesh.hub.machine.books.journaled_dict import JournalChanges, JournaledDict
from taskmesh.hub.machine.books.states import Cause, TaskRecord
from taskmesh.messages.journal_entries import LIMIT, WINDOW, JournalWindow
from taskmesh.messages.runs import LimitRule

EXACT = 1000
"""Starts in a window up to which each is remembered by its own time; more are kept in so many blocks."""
LEEWAY = 0.02
"""Seconds for which a start counts beyond its window.

The hub counts pushes, and a task begins later than its push: by 0.2 ms if its slot is idle, by some
milliseconds if the machine is busy. Where the first tasks of a window are late and those of the next one are
not, an API would count more than its rate: 54 starts of 50/s were stamped in a second, and 51 are with the
leeway. It is no share of the window, since a task of 5/d is late by no more. A rate by the second loses 2 %.
Tasks that begin later than that are not made up for.
"""
MOST_COUNTERS = 1_000_000
"""Keys and names that are counted at a time. A client that submits for more is told that the hub is busy."""
MOST_RULES = 10_000
"""Names whose rule is remembered after their last task."""
PORTION = 5_000
"""Counters that take in another rule in one step: some 10 ms of work, and others get their turn."""


class Closable(Protocol):
    """A route queue that can wait for a limit."""

    def reopen(self) -> None:
        """Stand in the rotation again: the limit that it waited for may have room."""
        ...


Block = list[float]


def key_of(rule: LimitRule, part: str | None) -> tuple[str, str]:
    """Return the key of a limit's counter for a task with this `TaskRecord.part`."""
    return rule.name, (part or "") if rule.keyed else ""


class LimitCounter:
    """One limit, or one key of a keyed limit: the tasks that it has let go, and those that wait for it.

    Of a rate it remembers blocks of starts by the time of the last one, for which all of a block count: that
    is the safe side, by less than a block.

    Attributes:
        key: name of the limit, and the key or an empty text.
        rule: what it allows.
        holders: tasks SENT or RUNNING with it, and the blocks of their starts. A task that a pool lists and
            nobody has asked this hub for counts as well; its start was another hub's.
        blocks: times and how many starts count then, oldest first.
        started: how many starts they have.
        route_queues: how many route_queues ask it.
        waiting: route_queues that wait for it, in order.
        wakes_at: time for which a timer is set, 0 for none.
    """

    __slots__ = ("blocks", "holders", "key", "route_queues", "rule", "started", "waiting", "wakes_at")

    def __init__(self, key: tuple[str, str], rule: LimitRule) -> None:
        self.key = key
        self.rule = rule
        self.holders: dict[int, Block | None] = {}
        self.blocks: deque[Block] = deque()
        self.started = 0
        self.route_queues = 0
        self.waiting: dict[Closable, None] = {}
        self.wakes_at = 0.0

    def add(self, when: float, count: int = 1) -> Block:
        """Count starts; times rise from call to call."""
        blocks = self.blocks
        self.started += count
        if blocks and blocks[-1][1] + count <= math.ceil(self.rule.count / EXACT):
            blocks[-1][0] = when
            blocks[-1][1] += count
        else:
            blocks.append([when, count])
        return blocks[-1]

    def room_at(self, now: float) -> float:
        """Return the time from which on a task may start, as far as time can bring that about."""
        rule, blocks, seconds = self.rule, self.blocks, self.rule.window + LEEWAY
        if not rule.window:
            return 0.0 if len(self.holders) < rule.count else math.inf
        while blocks and (blocks[0][0] + seconds <= now or not blocks[0][1]):
            self._take_back(blocks.popleft())
        if self.started >= rule.count:
            return blocks[0][0] + seconds
        return blocks[-1][0] + seconds / rule.count if rule.smooth and blocks else 0.0

    def _take_back(self, block: Block, count: float = math.inf) -> None:
        """Count no more than the rest of a block; nothing is left of one that has left the window."""
        gone = min(block[1], count)
        block[1] -= gone
        self.started -= int(gone)

    @property
    def empty_at(self) -> float:
        """The time when no start is in its window."""
        return self.blocks[-1][0] + self.rule.window + LEEWAY if self.rule.window and self.blocks else 0.0

    def start(self, task: int, now: float) -> None:
        self.holders[task] = self.add(now) if self.rule.window else None

    def end(self, task: int, *, unstarted: bool) -> None:
        """Take in that no pool has the task any more. What had not started was none of the starts."""
        if task not in self.holders:
            return
        block = self.holders.pop(task)
        if unstarted and block is not None:
            self._take_back(block, 1)
        if not self.rule.window or unstarted:
            self.reopen()

    def change(self, rule: LimitRule) -> None:
        """Take in another rule. What has started counts, as far as it was remembered."""
        self.rule = rule
        self.reopen()

    def reopen(self) -> None:
        """Let the route queues look again that wait for it."""
        waiting, self.waiting = self.waiting, {}
        for route_queue in waiting:
            route_queue.reopen()

    @property
    def is_idle(self) -> bool:
        return not (self.route_queues or self.holders)


class Limits:
    """All limits of a hub.

    Args:
        started: time at which the hub has started.
        lease: seconds for which windows count as full and no task with a limit on tasks at a time starts,
            since a hub before this one may have let some go; 0 if there was none.
        journal: where rules of operators and starts in windows longer than a lease are written down.
        offset: returns the time on the wall less the hub's own.

    Attributes:
        counters: those in use, by name and key; empty while no task has a limit.
        rules: the newest rule of each name that code has stated.
        fixed: rules that an operator has set, which go before those of code.
        windows: counters whose starts are written down now and then.
        recovers: pools of an earlier hub may run tasks that have not been listed here.
        listed: tasks that pools hold and nobody has asked this hub for, with the names and keys of their
            limits.
        now: the time.
    """

    def __init__(
        self,
        started: float = 0.0,
        lease: float = 0.0,
        journal: JournalChanges | None = None,
        offset: Callable[[], float] = float,
    ) -> None:
        self.counters: dict[tuple[str, str], LimitCounter] = {}
        self.rules: dict[str, LimitRule] = {}
        self.fixed: JournaledDict[str, LimitRule] = JournaledDict(
            journal, LIMIT, decode=lambda _, rule: (rule.name, rule)
        )
        self.windows: JournaledDict[tuple[str, str], LimitCounter] = JournaledDict(
            journal, WINDOW, encode=self._entry, decode=self._counter_of
        )
        self.recovers = lease > 0
        self.listed: dict[int, tuple[tuple[str, str], ...]] = {}
        self.now = started
        self._started, self._lease, self._offset = started, lease, offset
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, LimitCounter]] = []
        self._of_name: dict[str, dict[tuple[str, str], LimitCounter]] = {}
        self._unused: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self._changing: list[LimitCounter] = []

    # --- rules --------------------------------------------------------------------------------------------

    def define(self, rules: Iterable[LimitRule]) -> list[LimitRule]:
        """Take in the rules of specs that have come: the newest one of a name counts.

        Returns:
            The rules of names that had another one.
        """
        changed = []
        for rule in {rule.name: rule for rule in rules}.values():
            before = self.rules.get(rule.name)
            if before != rule:
                self.rules[rule.name] = rule
                self._apply(rule.name)
                if before is not None:
                    changed.append(rule)
                elif rule.name not in self._of_name:
                    self._unused[rule.name] = None
        while len(self._unused) > MOST_RULES:
            name = next(iter(self._unused))
            del self._unused[name], self.rules[name]
        return changed

    def set_rule(self, rule: LimitRule) -> None:
        """Set a rule by hand: it goes before those of code until `unset_rule`."""
        self.fixed[rule.name] = rule
        self._apply(rule.name)

    def unset_rule(self, name: str) -> bool:
        """Leave a rule to code again; return False if none was set."""
        if self.fixed.pop(name, None) is None:
            return False
        self._apply(name)
        return True

    def rule(self, name: str, stated: LimitRule | None = None) -> LimitRule | None:
        """Return the rule that counts: the operator's, or the newest of code."""
        return self.fixed.get(name) or self.rules.get(name) or stated

    def _apply(self, name: str) -> None:
        """Have the counters of a limit take in the rule that counts now, from the end of this step on."""
        if name in self._of_name:
            self._changed[name] = None

    def _go_on(self) -> None:
        """Have a portion of counters take in the newest rule of their names.

        However often the rules of a limit change, a step does no more than this.
        """
        left = PORTION
        while left > 0 and (self._changing or self._changed):
            if not self._changing:
                name = next(iter(self._changed))
                del self._changed[name]
                self._changing = list(self._of_name.get(name, {}).values())
                continue
            counter = self._changing.pop()
            rule = self.rule(counter.key[0])
            if rule is not None and counter.rule != rule:
                left -= 1
                counter.change(rule)

    @property
    def is_changing(self) -> bool:
        """True while counters are yet to take in the newest rule of their names."""
        return bool(self._changed or self._changing)

    # --- counters -----------------------------------------------------------------------------------------

    def counter(self, rule: LimitRule, part: str) -> LimitCounter:
        """Return the counter of a limit that a task states, made when first asked for."""
        key = key_of(rule, part)
        found = self.counters.get(key)
        if found is None:
            counts = self.rule(rule.name, rule) or rule
            found = self.counters[key] = LimitCounter(key, counts)
            of_name = self._of_name.get(rule.name)
            if of_name is None:
                of_name = self._of_name[rule.name] = {}
                self._unused.pop(rule.name, None)
            of_name[key] = found
            until = self._started + min(self._lease, counts.window)
            if self.now < until:
                found.add(until - counts.window, counts.count)
        return found

    def of(self, rules: Iterable[LimitRule], part: str, *, keyed: bool) -> tuple[LimitCounter, ...]:
        """Return the counters that a route queue asks: of the keyed limits among some, or of the others."""
        found = tuple(self.counter(rule, part) for rule in rules if rule.keyed is keyed)
        for counter in found:
            counter.route_queues += 1
        return found

    def without(self, counters: Iterable[LimitCounter], route_queue: Closable) -> None:
        """Take in that a route queue is gone that has asked these."""
        for counter in counters:
            counter.route_queues -= 1
            counter.waiting.pop(route_queue, None)
            self.release(counter)

    def full(self, counters: Iterable[LimitCounter]) -> LimitCounter | None:
        """Return the first of some counters that lets no task go now."""
        for counter in counters:
            if counter.room_at(self.now) > self.now or (self.recovers and not counter.rule.window):
                return counter
        return None

    def wait(self, route_queue: Closable, counter: LimitCounter) -> None:
        counter.waiting[route_queue] = None
        self._wake(counter, counter.room_at(self.now))

    def _wake(self, counter: LimitCounter, when: float) -> None:
        """Have a counter looked at, if it is not to be before that anyhow."""
        if self.now < when < (counter.wakes_at or math.inf):
            counter.wakes_at = when
            heapq.heappush(self._timers, (when, next(self._numbers), counter))

    # --- tasks --------------------------------------------------------------------------------------------

    def start(self, record: TaskRecord) -> None:
        """A task with limits is pushed: it takes all its permits."""
        for rule in record.spec.spec.limits:
            counter = self.counter(rule, record.part or "")
            counter.start(record.id, self.now)
            if counter.rule.window > self._lease:  # the next hub takes shorter ones as full for a lease
                self.windows.put_later(counter.key, counter)

    def adopt(self, record: TaskRecord) -> None:
        """A pool has a task with limits that it was not sent here: it runs, and its start was counted."""
        for rule in record.spec.spec.limits:
            self.counter(rule, record.part or "").holders.setdefault(record.id, None)

    def end(self, record: TaskRecord, cause: Cause | None = None) -> None:
        """No pool has a task with limits any more, by the cause of its transition: its permits are free."""
        for rule in record.spec.spec.limits:
            counter = self.counters.get(key_of(rule, record.part))
            if counter is not None:
                counter.end(record.id, unstarted=cause is Cause.RETURN)
                self.release(counter)

    # --- the journal --------------------------------------------------------------------------------------

    def _entry(self, key: tuple[str, str], counter: LimitCounter) -> JournalWindow:
        offset = self._offset()
        starts = [(when + offset, int(count)) for when, count in counter.blocks]
        return JournalWindow(counter.rule, key[1], starts)

    def _counter_of(self, _: int, entry: JournalWindow) -> tuple[tuple[str, str], LimitCounter]:
        counter = self.counter(entry.rule, entry.part)
        for when, count in entry.starts:
            counter.add(min(self.now, when - self._offset()), count)
        return counter.key, counter

    # --- tasks of an earlier hub --------------------------------------------------------------------------

    def hold(self, task: int, rules: Iterable[LimitRule], part: str) -> None:
        """A pool lists a task with limits that nobody has asked this hub for: it holds its permits."""
        if task in self.listed:
            return
        keys = []
        for rule in rules:
            counter = self.counter(rule, part)
            counter.holders.setdefault(task, None)
            keys.append(counter.key)
        self.listed[task] = tuple(keys)

    def let_go(self, task: int) -> None:
        """A listed task is asked for, or its pool does not hold it any more."""
        for key in self.listed.pop(task, ()):
            counter = self.counters.get(key)
            if counter is not None:
                counter.end(task, unstarted=False)
                self.release(counter)

    # --- time ---------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        if self.is_changing:
            return self.now
        return self._timers[0][0] if self._timers else math.inf

    def pass_to(self, now: float) -> None:
        """Let route queues look again whose window has room now, and forget counters that nothing asks."""
        self.now = max(self.now, now)
        if self._changed or self._changing:
            self._go_on()
        while self._timers and self._timers[0][0] <= self.now:
            when, _, counter = heapq.heappop(self._timers)
            if when == counter.wakes_at:
                counter.wakes_at = 0.0
                counter.reopen()
                self.release(counter)

    def recovered(self) -> None:
        """All pools of an earlier hub have listed what they hold, or have had the time to."""
        self.recovers = False
        for counter in list(self.counters.values()):
            if not counter.rule.window:
                counter.reopen()
            self.release(counter)  # of what the journal had, nothing may ask

    def release(self, counter: LimitCounter) -> None:
        """Forget a counter that nothing asks, now or when its window is empty."""
        if counter.is_idle and self.counters.get(counter.key) is counter:
            if counter.empty_at > self.now:
                self._wake(counter, counter.empty_at)
            else:
                self._forget(counter)

    def _forget(self, counter: LimitCounter) -> None:
        key = counter.key
        del self.counters[key]
        self.windows.drop_later(key)
        name = key[0]
        of_name = self._of_name[name]
        del of_name[key]
        if not of_name:
            del self._of_name[name]
            if name in self.rules:
                self._unused[name] = None
