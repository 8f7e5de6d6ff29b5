"""Fairness: the turns of queues and groups, compared with the tasks that the hub pushes and lets wait."""

from __future__ import annotations

from collections.abc import Sequence

from taskmesh.core.actions import PushTasks
from taskmesh.core.credit import LONG
from taskmesh.core.ids import SEQ_BITS
from taskmesh.core.state_machine import require
from taskmesh.hub.machine.books.backlog import (
    BANDWIDTH,
    QUANTUM,
    Group,
    Route,
    RouteQueue,
    group_of,
    turn_cost,
)
from taskmesh.hub.machine.books.states import SUSPECT, State
from taskmesh.hub.machine.machine import HubMachine

Name = tuple[Route, int]
"""Of a route queue: its route and priority."""


class Waiting:
    """The groups of one route queue that wait.

    Attributes:
        route_queue: itself. One that was empty meanwhile has not waited: what comes then stands last.
        heads: each one's first task, with its attempt: while that is the same, the group has waited.
        others: the route queues that were served meanwhile, on lanes that serve this one too.
    """

    def __init__(self, route_queue: RouteQueue) -> None:
        self.route_queue = route_queue
        self.heads: dict[Group, tuple[int, int]] = {}
        self.others: set[Name] = set()


PLENTY = 1 << 20
"""Bytes that a sink has room for which is not full soon."""


class Fairness:
    """Service that others got while a route queue, or a group in one, has waited.

    While a group waits, no other group of its route queue gives more work than a turn and a task beyond what
    that group has given itself; one that comes is owed nothing of what others have given before. While a
    route queue waits, each other one of its priority has one turn at most on the lanes that serve both, and
    none of a lower priority has any there: a lane without room for who is first in turn is kept for it.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._waiting: dict[Name, Waiting] = {}

    def pushed(self, hub: HubMachine, pushes: Sequence[PushTasks]) -> None:
        """Looks at what one event had pushed, and at what waits after it."""
        if hub.config.epoch != self._epoch:
            self._epoch = hub.config.epoch
            self._waiting.clear()
        served: dict[Name, dict[Group, float]] = {}
        order: list[tuple[Name, int]] = []
        for push in pushes:
            for run in push.message.runs:
                entry = hub.state.specs[run.spec]
                name = entry.route, entry.priority
                records = [hub.state.ledger.by_id(run.client << SEQ_BITS | seq) for seq in run.seqs]
                if any(record is not None and record.losses >= SUSPECT for record in records):
                    continue  # it goes alone, when there is a pool for it
                of_route_queue = served.setdefault(name, {})
                for record in records:
                    if record is not None:
                        group, cost = group_of(record), turn_cost(entry) + len(record.payload) / BANDWIDTH
                        of_route_queue[group] = max(cost, of_route_queue.get(group, 0.0))
                order.append((name, push.session))
        former, self._waiting = self._waiting, {}
        for route_queue in hub.state.ledger.backlog.route_queues():
            if not isinstance(route_queue, RouteQueue):
                continue  # a limited one: its keys have turns of their own
            name = route_queue.route, route_queue.priority
            waiting = self._look(route_queue, former.get(name), served.get(name, {}))
            sink = name[0][3]
            bounded = sink and hub.state.sinks.room(sink) < PLENTY  # it may take nothing more
            if waiting.heads and not bounded:
                self._waiting[name] = waiting
                _let_by(name, waiting, _others(hub, name, order))

    def excuse(self, full: set[int]) -> None:
        """Clients that have no turns for now, since they do not take their results."""
        for waiting in self._waiting.values():
            waiting.heads = {group: head for group, head in waiting.heads.items() if group[0] not in full}

    def _look(self, route_queue: RouteQueue, former: Waiting | None, served: dict[Group, float]) -> Waiting:
        """Returns the groups that wait in a route queue, with the route queues served since they came.

        Args:
            served: the most that a task of each group served counts for.
        """
        waiting = Waiting(route_queue)
        if former is not None and former.route_queue is not route_queue:
            former = None
        given = {group: line.served + line.spent for group, line in route_queue.groups.items()}
        known = set() if former is None else former.heads.keys()
        least = min((given[group] for group in known if group in given), default=0.0)
        for group, line in route_queue.groups.items():
            is_new = group not in known and group not in served
            require(
                not is_new or line.served + QUANTUM + LONG >= least,
                "a group is owed what was before it",
                group,
            )
            head = next((record for record in line if record.state is State.QUEUED), None)
            if head is None or group[0] in route_queue.withheld:
                continue
            waiting.heads[group] = head.id, head.attempt
            if former is None or former.heads.get(group) != (head.id, head.attempt) or group in served:
                continue
            if not served:
                waiting.others = former.others
            for other, most in served.items():
                ahead = given.get(other, 0.0) - given[group]
                require(ahead <= QUANTUM + most, "a group gave more than its turn", other, group, ahead)
        return waiting


def _others(hub: HubMachine, name: Name, order: list[tuple[Name, int]]) -> set[Name]:
    """Other route queues served on this one's lanes since its own last turn."""
    others: set[Name] = set()
    for other, session in reversed(order):
        if other == name:
            break
        lane = hub.state.lanes[session]
        if lane.serves(name[0]) and not lane.breaker.refused:  # else it may be spared what waits
            others.add(other)
    return others


def _let_by(name: Name, waiting: Waiting, others: set[Name]) -> None:
    """A route queue still waits, and these others were given something on lanes that serve it."""
    for other in others:
        require(other[1] >= name[1], "a queue had a turn before what is more urgent", other, name)
        if other[1] == name[1]:
            again = other in waiting.others
            require(not again, "a queue had two turns while another waited", other, name)
            waiting.others.add(other)
