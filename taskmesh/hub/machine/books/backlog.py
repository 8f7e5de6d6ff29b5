"""The hub's queue of tasks: by priority, then routes in turn, then groups in turn by work, then FIFO.

A route is a queue name with the tags a pool must have and the limits of its tasks. Route queues whose limit
is reached stand aside until it has room. Entries are hints: a task that was cancelled or
adopted stays in its deque and is passed over when its turn comes, so leaving a queue costs nothing; should it
be queued again before that, it has its place already. Where no turn comes, since no pool serves the queue or
all are busy, `tidy` drops them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import cast

from taskmesh.core.credit import LONG, ServiceTime
from taskmesh.hub.machine.books.limits import LimitCounter, Limits
from taskmesh.hub.machine.books.states import State, TaskRecord
from taskmesh.messages.runs import LimitRule

Route = tuple[str, frozenset[str], tuple[LimitRule, ...], str]
Group = tuple[int, int]

LINE = 2_500
"""Bytes that a group's line takes with what it may have for itself: a route queue, a key of a limit."""
QUANTUM = 0.002
"""Seconds of work that a group gives in its turn: as many cheap tasks as fill a message, or one long one."""
CHEAPEST = 2e-6
"""Seconds that a task counts for in a turn at least: the hub takes as long for it."""
BANDWIDTH = 1e9
"""Bytes of payloads that count for a second in a turn."""


def group_of(record: TaskRecord) -> Group:
    """Return the unit of fairness that a task belongs to: its client and group."""
    return record.client, record.group


def turn_cost(spec: ServiceTime) -> float:
    """Return the seconds that a task of a spec counts for in a turn; one of unknown length is a turn."""
    return QUANTUM if spec.service is None else min(LONG, max(CHEAPEST, spec.service))


class Line(deque["TaskRecord"]):
    """The tasks of one group, first in, first out.

    Attributes:
        served: seconds of work that it stands behind: those of its turns, and of others' before it came.
        spent: seconds of work that it has given in its present turn.
    """

    __slots__ = ("served", "spent")

    def __init__(self, served: float) -> None:
        super().__init__()
        self.served = served
        self.spent = 0.0


class RouteQueue:
    """The groups of one priority of one route, in turn by the work that they have given.

    A turn is QUANTUM of work, so that runs of cheap tasks stay long; who has given more waits for longer
    (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996). Groups of `withheld` clients are passed
    over.

    Attributes:
        turn_number: among the route queues of its priority, the lowest first.
        size: how many entries there are, stale ones too.
        part: as in `TaskRecord`.
    """

    part: str | None = None

    __slots__ = (
        "_aside",
        "_turn",
        "_turns",
        "_weigh",
        "groups",
        "priority",
        "route",
        "size",
        "turn_number",
        "withheld",
    )

    def __init__(self, backlog: Backlog, route: Route, priority: int, turn_number: int) -> None:
        self.route = route
        self.priority = priority
        self.turn_number = turn_number
        self.withheld = backlog.withheld
        self._weigh = backlog.weigh
        self.size = 0
        self.groups: dict[Group, Line] = {}
        self._turns: list[tuple[float, int, Group]] = []  # heap
        self._aside: list[tuple[float, int, Group]] = []
        self._turn = 0

    @property
    def waits(self) -> bool:
        """True if anything stands in it, stale or withheld entries too."""
        return bool(self.groups)

    def line(self, key: Group) -> Line:
        """The tasks of a group; one that comes stands behind those that have given least."""
        line = self.groups.get(key)
        if line is None:
            line = self.groups[key] = Line(self._turns[0][0] if self._turns else 0.0)
            self._stand(key, line)
            self._weigh(key[0], LINE)
        return line

    def _stand(self, key: Group, line: Line) -> None:
        self._turn += 1
        heappush(self._turns, (line.served, self._turn, key))

    def _end_line(self, key: Group) -> None:
        del self.groups[key]
        self._weigh(key[0], -LINE)

    def take(self, count: int, size: float = 1e18) -> list[TaskRecord]:
        """Take tasks of one spec and one group, whose turn it is; stale entries are dropped on the way.

        Args:
            count: How many at most, however much of its turn is left.
            size: Bytes of payloads that are enough.
        """
        head = self.head()
        if head is None:
            return []
        key = self._turns[0][2]
        line, spec, queued = self.groups[key], head.spec, State.QUEUED
        each = turn_cost(spec)
        if len(self._turns) > 1:
            left = QUANTUM - line.spent
            count, size = min(count, math.ceil(left / each)), min(size, left * BANDWIDTH)
        taken: list[TaskRecord] = []
        before, room = len(line), size
        while line and len(taken) < count and room > 0:
            record = line[0]
            if record.state is queued:
                if record.spec is not spec:
                    break
                taken.append(record)
                room -= len(record.payload)
            line.popleft()
            record.lined_up = False
        self.size -= before - len(line)
        line.spent += each * len(taken) + (size - room) / BANDWIDTH
        if not line:
            heappop(self._turns)
            self._end_line(key)
        elif line.spent >= QUANTUM:
            line.served += line.spent
            line.spent = 0.0
            heappop(self._turns)
            self._stand(key, line)
        return taken

    def head(self) -> TaskRecord | None:
        """The task whose turn it is, or None; drops stale entries before it."""
        turns, groups, withheld = self._turns, self.groups, self.withheld
        while self._aside:
            _, turn, key = self._aside.pop()
            line = groups[key]
            if turns:
                line.served = max(line.served, turns[0][0])  # it is owed nothing for that time
            heappush(turns, (line.served, turn, key))
        while turns:
            key = turns[0][2]
            line = groups[key]
            while line and line[0].state is not State.QUEUED:
                line.popleft().lined_up = False
                self.size -= 1
            if not line:
                heappop(turns)
                self._end_line(key)
            elif key[0] in withheld:
                self._aside.append(heappop(turns))
            else:
                return line[0]
        return None

    def entries(self) -> Iterator[TaskRecord]:
        """Every entry, stale ones too."""
        for line in self.groups.values():
            yield from line

    def ahead_of(self, record: TaskRecord, most: int) -> int:
        """Count the tasks whose turn comes before that of a queued one, up to `most` of them."""
        place = 0
        for other in islice(self.groups.get(group_of(record), ()), most):
            if other is record:
                break
            place += other.state is State.QUEUED
        others = (line for key, line in self.groups.items() if key != group_of(record))
        return min(most, place + sum(min(place, len(line)) for line in others))

    def oldest(self, most: int) -> TaskRecord | None:
        """Return the task that could have started first, of those at the heads of up to `most` lines."""
        lines = islice(self.groups.values(), most)
        heads = (
            next((one for one in islice(line, most) if one.state is State.QUEUED), None) for line in lines
        )
        return min((head for head in heads if head is not None), key=_ready, default=None)

    def tidy(self) -> None:
        """Drop every stale entry."""
        for key, line in list(self.groups.items()):
            for _ in range(len(line)):
                record = line.popleft()
                record.lined_up = record.state is State.QUEUED
                if record.lined_up:
                    line.append(record)
            if not line:
                self._end_line(key)
        self._turns = [turn for turn in (*self._turns, *self._aside) if turn[2] in self.groups]
        self._aside.clear()
        heapify(self._turns)
        self.size = sum(map(len, self.groups.values()))


class KeyQueue(RouteQueue):
    """The tasks of one key of a limited route; of its only key, the empty one, if no limit is keyed.

    Attributes:
        part: the key.
        counters: of its keyed limits.
        waits_for: the counter that lets none of them go for now; it stands in no rotation then.
    """

    __slots__ = ("_owner", "counters", "part", "waits_for")
    part: str

    def __init__(self, owner: LimitedRouteQueue, part: str, counters: tuple[LimitCounter, ...]) -> None:
        super().__init__(owner.backlog, owner.route, owner.priority, 0)
        self.part = part
        self.counters = counters
        self.waits_for: LimitCounter | None = None
        self._owner = owner

    def reopen(self) -> None:
        """Stand in the rotation again: its counter may have room."""
        self.waits_for = None
        self._owner.turns.append(self)
        self._owner.show()


class LimitedRouteQueue:
    """The tasks of one priority of a route with limits: a route queue for each key, in turn.

    It gives one task at a time, after `head` has found that all limits let it go. When one of those does not
    that all keys have in common it stands aside as a whole, else its keys do, one by one.

    Attributes:
        backlog: where it stands.
        turn_number: as in `RouteQueue`.
        parts: the route queues, by key.
        turns: those of them that do not stand aside.
        counters: of the limits that all keys have in common.
        waits_for: the one of them that lets nothing go for now.
        is_shown: it stands in the rotation of the backlog.
    """

    __slots__ = (
        "backlog",
        "counters",
        "is_shown",
        "parts",
        "priority",
        "route",
        "turn_number",
        "turns",
        "waits_for",
        "withheld",
    )

    def __init__(self, backlog: Backlog, route: Route, priority: int, turn_number: int) -> None:
        self.route = route
        self.priority = priority
        self.turn_number = turn_number
        self.withheld = backlog.withheld
        self.parts: dict[str, KeyQueue] = {}
        self.turns: deque[KeyQueue] = deque()
        self.counters = backlog.limits.of(route[2], "", keyed=False)
        self.waits_for: LimitCounter | None = None
        self.is_shown = False
        self.backlog = backlog

    @property
    def size(self) -> int:
        """The number of entries, stale ones too."""
        return sum(part.size for part in self.parts.values())

    @property
    def waits(self) -> bool:
        """True if anything stands in it that no limit holds back."""
        return bool(self.turns)

    def part(self, key: str) -> KeyQueue:
        found = self.parts.get(key)
        if found is None:
            counters = self.backlog.limits.of(self.route[2], key, keyed=True)
            found = self.parts[key] = KeyQueue(self, key, counters)
            self.turns.append(found)
            self.show()
        return found

    def head(self) -> TaskRecord | None:
        """Return the task whose turn it is and that all limits let go; without one, wait for them."""
        limits, turns = self.backlog.limits, self.turns
        if turns and (counter := limits.full(self.counters)) is not None:
            self.waits_for = counter
            limits.wait(self, counter)
            self.backlog.hide(self)
            return None
        passed_over = 0
        while passed_over < len(turns):
            part = turns[0]
            if (counter := limits.full(part.counters)) is not None:
                turns.popleft()
                part.waits_for = counter
                limits.wait(part, counter)
            elif (record := part.head()) is not None:
                return record
            elif part.waits:  # of clients that are withheld
                turns.rotate(-1)
                passed_over += 1
            else:
                turns.popleft()
                self._drop(part)
        return None

    def take(self, count: int, size: float = 1e18) -> list[TaskRecord]:
        """Take up to `count` tasks of the key whose turn it is; call it with 1, after `head`."""
        part = self.turns.popleft()
        taken = part.take(count, size)
        if part.waits:
            self.turns.append(part)
        else:
            self._drop(part)
        return taken

    def reopen(self) -> None:
        """Stand in the rotation again: the counter that it waited for may have room."""
        self.waits_for = None
        self.show()

    def show(self) -> None:
        if self.waits_for is None and self.turns:
            self.backlog.show(self)

    def tidy(self) -> None:
        """Drop every stale entry, and the keys of which nothing is left."""
        for part in list(self.parts.values()):
            part.tidy()
            if not part.waits:
                self._drop(part)
        self.turns = deque(part for part in self.turns if part.waits)

    def _drop(self, part: KeyQueue) -> None:
        del self.parts[part.part]
        self.backlog.limits.without(part.counters, part)
        if not self.parts:
            self.backlog.drop(self)


AnyRouteQueue = RouteQueue | LimitedRouteQueue


class Backlog:
    """Queued tasks of the hub, by route.

    Args:
        limits: what limited routes ask.
        withheld: see below.
        weigh: counts bytes of a client's lines.

    Attributes:
        routes: what may wait and is not held back by a limit, by route and priority; empty when nothing is.
        limited: route_queues of routes with limits, by route and priority, those too that stand aside.
        withheld: clients of which no queued task starts for now: they have many results to take, or their
            tasks are being cancelled.
        left: tasks that have left it otherwise than by their turn since `tidy` looked: as many entries, at
            most, are stale.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        withheld: set[int] | None = None,
        weigh: Callable[[int, int], None] = lambda _client, _size: None,
    ) -> None:
        self.weigh = weigh
        self.limits = limits or Limits()
        self.limited: dict[tuple[Route, int], LimitedRouteQueue] = {}
        self.withheld: set[int] = set() if withheld is None else withheld
        self.left = 0
        self._turn_numbers = 0
        self.routes: dict[Route, dict[int, AnyRouteQueue]] = {}
        self._of_queue: dict[str, list[Route]] = {}

    @property
    def queues(self) -> Collection[str]:
        return self._of_queue.keys()

    def route_queues(self, queues: Iterable[str] | None = None) -> list[AnyRouteQueue]:
        """Those in which something may wait, all or those of some queues: as their turns come."""
        of_queue, routes = self._of_queue, self.routes
        if queues is None:
            found = [route_queue for priorities in routes.values() for route_queue in priorities.values()]
        else:
            known = [route for queue in queues if queue in of_queue for route in of_queue[queue]]
            found = [route_queue for route in known for route_queue in routes[route].values()]
        if len(found) > 1:
            found.sort(key=_turn)
        return found

    def served(self, route_queue: AnyRouteQueue) -> None:
        """It has had its turn: it stands last of its priority, or goes when nothing waits there any more."""
        self._turn_numbers += 1
        route_queue.turn_number = self._turn_numbers
        self.forget_empty(route_queue)

    def append(self, route: Route, priority: int, group: Group, records: list[TaskRecord]) -> None:
        """Queue new tasks behind the others of their group; all of them know of their entries, or none."""
        if not records[0].lined_up:
            for record in records:
                record.lined_up = True
        part = records[0].part
        route_queue = (
            self._route_queue(route, priority) if part is None else self._part(route, priority, part)
        )
        line = route_queue.line(group)
        before = len(line)
        line.extend(records)
        route_queue.size += len(line) - before

    def push_front(self, route: Route, priority: int, group: Group, record: TaskRecord) -> None:
        """Queue a task that had been on its way before the others of its group, unless it has its place."""
        if not record.lined_up:
            record.lined_up = True
            part = record.part
            route_queue = (
                self._route_queue(route, priority) if part is None else self._part(route, priority, part)
            )
            route_queue.line(group).appendleft(record)
            route_queue.size += 1

    def forget_empty(self, route_queue: AnyRouteQueue) -> None:
        """Drop a route queue in which nothing waits, or nothing but what a limit holds back."""
        if route_queue.waits:
            return
        if isinstance(route_queue, LimitedRouteQueue):
            self.hide(route_queue)
        else:
            self._leave(route_queue)

    def show(self, route_queue: LimitedRouteQueue) -> None:
        if not route_queue.is_shown:
            route_queue.is_shown = True
            self._priorities(route_queue.route)[route_queue.priority] = route_queue

    def hide(self, route_queue: LimitedRouteQueue) -> None:
        if route_queue.is_shown:
            route_queue.is_shown = False
            self._leave(route_queue)

    def drop(self, route_queue: LimitedRouteQueue) -> None:
        """Forget a route queue of a limited route in which nothing waits."""
        self.hide(route_queue)
        del self.limited[route_queue.route, route_queue.priority]
        self.limits.without(route_queue.counters, route_queue)

    def _leave(self, route_queue: AnyRouteQueue) -> None:
        route = route_queue.route
        priorities = self.routes[route]
        del priorities[route_queue.priority]
        if not priorities:
            del self.routes[route]
            others = self._of_queue[route[0]]
            others.remove(route)
            if not others:
                del self._of_queue[route[0]]

    def tidy(self, live: int) -> None:
        """Drop stale entries when they may be as many as there are tasks: each costs one look then."""
        if not self.left or self.left < live:
            return
        self.left = 0
        for route_queue in [one for one in self.route_queues() if isinstance(one, RouteQueue)]:
            route_queue.tidy()
            self.forget_empty(route_queue)
        for limited in list(self.limited.values()):
            limited.tidy()
            self.forget_empty(limited)

    def count(self) -> int:
        """Count the queued tasks. It looks at every entry: for views and checks only."""
        return sum(record.state is State.QUEUED for record in self.entries())

    def entries(self) -> Iterator[TaskRecord]:
        """Every entry, stale ones too."""
        for route_queue in self.every_route_queue():
            yield from route_queue.entries()

    def every_route_queue(self) -> Iterator[RouteQueue]:
        """Those that a limit holds back, too, and of a route with limits those of its keys."""
        for priorities in self.routes.values():
            for route_queue in priorities.values():
                if isinstance(route_queue, RouteQueue):
                    yield route_queue
        for limited in self.limited.values():
            yield from limited.parts.values()

    def _priorities(self, route: Route) -> dict[int, AnyRouteQueue]:
        priorities = self.routes.get(route)
        if priorities is None:
            priorities = self.routes[route] = {}
            self._of_queue.setdefault(route[0], []).append(route)
        return priorities

    def _route_queue(self, route: Route, priority: int) -> RouteQueue:
        priorities = self.routes.get(route)
        if priorities is None:
            priorities = self._priorities(route)
        route_queue = priorities.get(priority)
        if route_queue is None:
            self._turn_numbers += 1
            route_queue = priorities[priority] = RouteQueue(self, route, priority, self._turn_numbers)
        return cast("RouteQueue", route_queue)

    def _part(self, route: Route, priority: int, part: str) -> RouteQueue:
        route_queue = self.limited.get((route, priority))
        if route_queue is None:
            self._turn_numbers += 1
            route_queue = self.limited[route, priority] = LimitedRouteQueue(
                self, route, priority, self._turn_numbers
            )
        return route_queue.part(part)


def _turn(route_queue: AnyRouteQueue) -> tuple[int, int]:
    return -route_queue.priority, route_queue.turn_number


def _ready(record: TaskRecord) -> float:
    return record.ready
