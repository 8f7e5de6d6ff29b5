"""What waits in the hub for a lane: by route, then priority, then round-robin over groups, then FIFO.

A route is a queue name with the tags a pool must have. Entries are hints: a task that was cancelled or
adopted stays in its deque and is passed over when its turn comes, so leaving a queue costs nothing; should it
be queued again before that, it has its place already. Where no turn comes, since no pool serves the queue or
all are busy, `tidy` drops them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from taskmesh.core.states import State, TaskRecord

Route = tuple[str, frozenset[str]]

QUANTUM = 64
"""Most tasks that one group gives before the next group's turn; keeps runs long enough to be cheap."""


class Lineup:
    """The groups of one priority of one route, served in turn; those of clients in `full` are passed over."""

    __slots__ = ("full", "groups", "turns")

    def __init__(self, full: set[int]) -> None:
        self.full = full
        self.groups: dict[tuple[int, int], deque[TaskRecord]] = {}
        self.turns: deque[tuple[int, int]] = deque()

    def line(self, key: tuple[int, int]) -> deque[TaskRecord]:
        """The deque of a group, with a turn."""
        line = self.groups.get(key)
        if line is None:
            line = self.groups[key] = deque()
            self.turns.append(key)
        return line

    def take(self, count: int) -> list[TaskRecord]:
        """Up to `count` queued tasks, groups in turn; stale entries are dropped on the way."""
        taken: list[TaskRecord] = []
        queued, full = State.QUEUED, self.full
        passed_over = 0
        while len(taken) < count and passed_over < len(self.turns):
            key = self.turns[0]
            if key[0] in full:
                self.turns.rotate(-1)
                passed_over += 1
                continue
            line = self.groups[key]
            want = count - len(taken)
            if len(self.turns) > 1:
                want = min(want, max(1, min(QUANTUM, count // len(self.turns))))
            for _ in range(min(want, len(line))):  # fewer when some are stale: then there is another turn
                record = line.popleft()
                record.lined_up = False
                if record.state is queued:
                    taken.append(record)
            if line:
                self.turns.rotate(-1)
            else:
                self.turns.popleft()
                del self.groups[key]
        return taken

    def put_back(self, key: tuple[int, int], record: TaskRecord) -> None:
        """Undoes the taking of the record taken last: it is its group's turn again.

        `take` has passed the turn on. Were it left so, a group of which a task is taken only to be put back
        would stand last each time, and never be served while another has tasks.
        """
        self.line(key).appendleft(record)
        if self.turns[-1] == key:
            self.turns.rotate(1)

    def head(self) -> TaskRecord | None:
        """The task whose turn it is, or None; drops stale entries before it."""
        passed_over = 0
        while passed_over < len(self.turns):
            key = self.turns[0]
            if key[0] in self.full:
                self.turns.rotate(-1)
                passed_over += 1
                continue
            line = self.groups[key]
            while line and line[0].state is not State.QUEUED:
                line.popleft().lined_up = False
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


class Backlog:
    """Every queued task of the hub, by route.

    Attributes:
        full: clients that have so many results to take that no more of their tasks are run for now.
        left: tasks that have left it otherwise than by their turn since `tidy` looked: as many entries, at
            most, are stale.
    """

    def __init__(self) -> None:
        self.full: set[int] = set()
        self.left = 0
        self._routes: dict[Route, dict[int, Lineup]] = {}
        self._of_queue: dict[str, list[Route]] = {}

    @property
    def waits(self) -> int:
        """On how many routes something may wait."""
        return len(self._routes)

    def routes(self, queues: Iterable[str] | None = None) -> list[Route]:
        """Routes on which something may wait: all, or those of some queues."""
        if queues is None:
            return list(self._routes)
        of_queue = self._of_queue
        return [route for queue in queues if queue in of_queue for route in of_queue[queue]]

    def priority(self, route: Route) -> int:
        """The highest priority that may wait on a route."""
        return max(self._routes.get(route, ()), default=0)

    def append(
        self, route: Route, priority: int, group: tuple[int, int], records: Iterable[TaskRecord]
    ) -> None:
        """Queues new tasks behind the others of their group."""
        self._lineup(route, priority).line(group).extend(records)

    def push_front(self, route: Route, priority: int, group: tuple[int, int], record: TaskRecord) -> None:
        """Queues a task that had been on its way before the others of its group, unless it has its place."""
        if not record.lined_up:
            record.lined_up = True
            self._lineup(route, priority).line(group).appendleft(record)

    def put_back(self, route: Route, priority: int, group: tuple[int, int], record: TaskRecord) -> None:
        """Undoes `take` for one record; of several, the one taken last is put back first."""
        record.lined_up = True
        self._lineup(route, priority).put_back(group, record)

    def head(self, route: Route) -> TaskRecord | None:
        """The next task of a route, or None; forgets what is empty."""
        priorities = self._routes.get(route)
        if priorities is None:
            return None
        for priority in list(priorities) if len(priorities) == 1 else sorted(priorities, reverse=True):
            head = priorities[priority].head()
            if head is not None:
                return head
            self._forget_empty(route, priority)
        return None

    def take(self, route: Route, count: int) -> list[TaskRecord]:
        """Up to `count` tasks of the highest priority that waits on the route."""
        priorities = self._routes.get(route, {})
        for priority in priorities if len(priorities) == 1 else sorted(priorities, reverse=True):
            taken = priorities[priority].take(count)
            if not priorities[priority].turns:
                self._forget_empty(route, priority)
                return taken or self.take(route, count)
            if taken:
                return taken
        return []

    def _forget_empty(self, route: Route, priority: int) -> None:
        priorities = self._routes[route]
        if not priorities[priority].turns:
            del priorities[priority]
        if not priorities:
            del self._routes[route]
            others = self._of_queue[route[0]]
            others.remove(route)
            if not others:
                del self._of_queue[route[0]]

    def tidy(self, live: int) -> None:
        """Drops stale entries when they may be as many as there are tasks: each costs one look then."""
        if not self.left or self.left < live:
            return
        self.left = 0
        for route, priorities in list(self._routes.items()):
            for priority, lineup in list(priorities.items()):
                lineup.tidy()
                self._forget_empty(route, priority)

    def count(self) -> int:
        """How many queued tasks wait; looks at every entry (for views and checks)."""
        return sum(record.state is State.QUEUED for record in self.entries())

    def entries(self) -> Iterator[TaskRecord]:
        """Every entry, stale ones too."""
        for priorities in self._routes.values():
            for lineup in priorities.values():
                for line in lineup.groups.values():
                    yield from line

    def waiting(self, route: Route, enough: int) -> int:
        """How many entries the route has, counted no further than `enough`."""
        total = 0
        for lineup in self._routes.get(route, {}).values():
            for line in lineup.groups.values():
                total += len(line)
                if total >= enough:
                    return total
        return total

    def _lineup(self, route: Route, priority: int) -> Lineup:
        priorities = self._routes.get(route)
        if priorities is None:
            priorities = self._routes[route] = {}
            self._of_queue.setdefault(route[0], []).append(route)
        lineup = priorities.get(priority)
        if lineup is None:
            lineup = priorities[priority] = Lineup(self.full)
        return lineup
