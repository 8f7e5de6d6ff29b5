"""The hub's queue of tasks: by priority, then routes in turn, then groups in turn, then FIFO.

A route is a queue name with the tags a pool must have. Entries are hints: a task that was cancelled or
adopted stays in its deque and is passed over when its turn comes, so leaving a queue costs nothing; should it
be queued again before that, it has its place already. Where no turn comes, since no pool serves the queue or
all are busy, `tidy` drops them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from taskmesh.core.hub.states import State, TaskRecord
from taskmesh.core.ids import SEQ_BITS

Route = tuple[str, frozenset[str]]
Group = tuple[int, int]

QUANTUM = 64
"""Most tasks that one group gives before the next group's turn; keeps runs long enough to be cheap."""


def group_of(record: TaskRecord) -> Group:
    """Return the unit of fairness that a task belongs to: its client and group."""
    return record.id >> SEQ_BITS, record.group


class Lineup:
    """The groups of one priority of one route, served in turn; those of `withheld` clients are passed over.

    Attributes:
        place: among the lineups of its priority, the lowest first.
        size: how many entries there are, stale ones too.
    """

    __slots__ = ("groups", "place", "priority", "route", "size", "turns", "withheld")

    def __init__(self, route: Route, priority: int, place: int, withheld: set[int]) -> None:
        self.route = route
        self.priority = priority
        self.place = place
        self.withheld = withheld
        self.size = 0
        self.groups: dict[Group, deque[TaskRecord]] = {}
        self.turns: deque[Group] = deque()

    def line(self, key: Group) -> deque[TaskRecord]:
        """The deque of a group, with a turn."""
        line = self.groups.get(key)
        if line is None:
            line = self.groups[key] = deque()
            self.turns.append(key)
        return line

    def take(self, count: int) -> list[TaskRecord]:
        """Up to `count` queued tasks, groups in turn; stale entries are dropped on the way."""
        taken: list[TaskRecord] = []
        queued, withheld = State.QUEUED, self.withheld
        passed_over = 0
        while len(taken) < count and passed_over < len(self.turns):
            key = self.turns[0]
            if key[0] in withheld:
                self.turns.rotate(-1)
                passed_over += 1
                continue
            line = self.groups[key]
            want = count - len(taken)
            if len(self.turns) > 1:
                want = min(want, max(1, min(QUANTUM, count // len(self.turns))))
            before = len(line)
            while line and want:
                record = line.popleft()
                record.lined_up = False
                if record.state is queued:
                    taken.append(record)
                    want -= 1
            passed_over = 0
            self.size -= before - len(line)
            if line:
                self.turns.rotate(-1)
            else:
                self.turns.popleft()
                del self.groups[key]
        return taken

    def put_back(self, taken: list[TaskRecord], kept: int) -> None:
        """Undoes the taking of all but the first few of what `take` has returned last.

        It has passed the turns on. Were they left so, a group of which a task is taken only to be put back
        would stand last each time, and never be served while another has tasks. But a turn of which a part is
        kept has been had: a group whose turn never fits into one message would not let go of it.
        """
        for record in reversed(taken[kept:]):
            key = group_of(record)
            record.lined_up = True
            self.line(key).appendleft(record)
            self.size += 1
            while self.turns[0] != key:
                self.turns.rotate(1)
        if 0 < kept < len(taken) and group_of(taken[kept - 1]) == group_of(taken[kept]):
            self.turns.rotate(-1)

    def head(self) -> TaskRecord | None:
        """The task whose turn it is, or None; drops stale entries before it."""
        passed_over = 0
        while passed_over < len(self.turns):
            key = self.turns[0]
            if key[0] in self.withheld:
                self.turns.rotate(-1)
                passed_over += 1
                continue
            line = self.groups[key]
            while line and line[0].state is not State.QUEUED:
                line.popleft().lined_up = False
                self.size -= 1
            if line:
                return line[0]
            self.turns.popleft()
            del self.groups[key]
        return None

    def tidy(self) -> None:
        """Drops every stale entry."""
        for key, line in list(self.groups.items()):
            for record in line:
                record.lined_up = record.state is State.QUEUED
            queued = deque(record for record in line if record.lined_up)
            if queued:
                self.groups[key] = queued
            else:
                del self.groups[key]
        self.turns = deque(key for key in self.turns if key in self.groups)
        self.size = sum(map(len, self.groups.values()))


class Backlog:
    """Queued tasks of the hub, by route.

    Attributes:
        routes: what may wait, by route and priority; empty when nothing does.
        withheld: clients of which no queued task starts for now: they have many results to take, or their
            tasks are being cancelled.
        left: tasks that have left it otherwise than by their turn since `tidy` looked: as many entries, at
            most, are stale.
    """

    def __init__(self, withheld: set[int] | None = None) -> None:
        self.withheld: set[int] = set() if withheld is None else withheld
        self.left = 0
        self._places = 0
        self.routes: dict[Route, dict[int, Lineup]] = {}
        self._of_queue: dict[str, list[Route]] = {}

    def lineups(self, queues: Iterable[str] | None = None) -> list[Lineup]:
        """Those in which something may wait, all or those of some queues: as their turns come."""
        of_queue, routes = self._of_queue, self.routes
        if queues is None:
            found = [lineup for priorities in routes.values() for lineup in priorities.values()]
        else:
            known = [route for queue in queues if queue in of_queue for route in of_queue[queue]]
            found = [lineup for route in known for lineup in routes[route].values()]
        if len(found) > 1:
            found.sort(key=_turn)
        return found

    def served(self, lineup: Lineup) -> None:
        """It has had its turn: it stands last of its priority, or goes when nothing waits there any more."""
        self._places += 1
        lineup.place = self._places
        self.forget_empty(lineup)

    def append(self, route: Route, priority: int, group: Group, records: list[TaskRecord]) -> None:
        """Queues new tasks behind the others of their group; all of them know of their entries, or none."""
        if not records[0].lined_up:
            for record in records:
                record.lined_up = True
        lineup = self._lineup(route, priority)
        line = lineup.line(group)
        before = len(line)
        line.extend(records)
        lineup.size += len(line) - before

    def push_front(self, route: Route, priority: int, group: Group, record: TaskRecord) -> None:
        """Queues a task that had been on its way before the others of its group, unless it has its place."""
        if not record.lined_up:
            record.lined_up = True
            lineup = self._lineup(route, priority)
            lineup.line(group).appendleft(record)
            lineup.size += 1

    def forget_empty(self, lineup: Lineup) -> None:
        """Drops a lineup in which nothing waits."""
        if lineup.turns:
            return
        route = lineup.route
        priorities = self.routes[route]
        del priorities[lineup.priority]
        if not priorities:
            del self.routes[route]
            others = self._of_queue[route[0]]
            others.remove(route)
            if not others:
                del self._of_queue[route[0]]

    def tidy(self, live: int) -> None:
        """Drops stale entries when they may be as many as there are tasks: each costs one look then."""
        if not self.left or self.left < live:
            return
        self.left = 0
        for lineup in self.lineups():
            lineup.tidy()
            self.forget_empty(lineup)

    def count(self) -> int:
        """Count the queued tasks. It looks at every entry: for views and checks only."""
        return sum(record.state is State.QUEUED for record in self.entries())

    def entries(self) -> Iterator[TaskRecord]:
        """Every entry, stale ones too."""
        for priorities in self.routes.values():
            for lineup in priorities.values():
                for line in lineup.groups.values():
                    yield from line

    def _lineup(self, route: Route, priority: int) -> Lineup:
        priorities = self.routes.get(route)
        if priorities is None:
            priorities = self.routes[route] = {}
            self._of_queue.setdefault(route[0], []).append(route)
        lineup = priorities.get(priority)
        if lineup is None:
            self._places += 1
            lineup = priorities[priority] = Lineup(route, priority, self._places, self.withheld)
        return lineup


def _turn(lineup: Lineup) -> tuple[int, int]:
    return -lineup.priority, lineup.place
