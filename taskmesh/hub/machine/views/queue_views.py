"""Queues as people see them: how many tasks wait there and for how long, and which pools serve them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain

from taskmesh.hub.machine.books.lanes import Lane, LaneState
from taskmesh.hub.machine.books.states import SUSPECT, TaskRecord
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.status import QueueStatus

MOST_QUEUES = 20
"""Queues that are shown: those where most tasks wait."""
MOST_LINES = 100
"""Lines of a queue of which one is asked for the oldest task."""


@dataclass(slots=True)
class QueueView:
    """Tasks that wait in one queue for pools with the same tags.

    Attributes:
        queue: its name.
        tags: tags that a pool must have.
        waiting: how many tasks wait; some of them may have ended.
        oldest: seconds since the first of them could have started, of those without limits.
        sinks: sinks that their outcomes go to.
        lanes: pools that serve it.
    """

    queue: str
    tags: frozenset[str]
    waiting: int = 0
    oldest: float = 0.0
    sinks: set[str] = field(default_factory=set)
    lanes: list[Lane] = field(default_factory=list)

    @property
    def ready(self) -> list[Lane]:
        """The pools that take work."""
        return [lane for lane in self.lanes if lane.state is LaneState.READY]

    @property
    def wanted(self) -> str:
        """The queue and the tags, in words."""
        return wanted(self.queue, self.tags)

    @property
    def refusal(self) -> str:
        """The reason why no pool takes its tasks, with the cure; empty if one does."""
        return refusal(self.queue, self.tags, [(lane.pool, lane.state.value) for lane in self.lanes])

    def view(self) -> QueueStatus:
        return {
            "queue": self.queue,
            "tags": sorted(self.tags),
            "waiting": self.waiting,
            "oldest": round(self.oldest, 3),
            "pools": len(self.lanes),
            "slots": sum(lane.slots for lane in self.ready),
            "busy": sum(len(lane.running) for lane in self.ready),
        }


def wanted(queue: str, tags: frozenset[str]) -> str:
    """Return a queue and the tags that its tasks require, in words."""
    return f"queue {queue!r}" + (f" with tags {', '.join(sorted(tags))}" if tags else "")


def refusal(queue: str, tags: frozenset[str], serving: list[tuple[str, str]]) -> str:
    """Return the reason why no pool takes the tasks of a queue, with the cure; empty if one does.

    Args:
        queue: its name.
        tags: tags that the tasks require.
        serving: names and states of the pools that serve it.
    """
    if not serving:
        worker = f"taskmesh worker --queues {queue}" + (f" --tags {','.join(sorted(tags))}" if tags else "")
        return f"no pool serves it: {worker}"
    if any(state == LaneState.READY.value for _, state in serving):
        return ""
    states = ", ".join(f"{pool} is {state}" for pool, state in serving[:3])
    paused = [pool for pool, state in serving if state == LaneState.PAUSED.value]
    cure = f"taskmesh pool resume {paused[0]}" if paused else "taskmesh pool list"
    return f"no pool that serves it takes work: {states}: {cure}"


def queues(hub: HubState, now: float) -> list[QueueView]:
    """Return the queues where tasks wait, those with most first, and then others that pools serve."""
    found: dict[tuple[str, frozenset[str]], QueueView] = {}
    ledger = hub.ledger
    for each in chain(ledger.backlog.every_route_queue(), ledger.suspects.every_route_queue()):
        queue, tags, _, sink = each.route
        view = found.setdefault((queue, tags), QueueView(queue, tags))
        view.waiting += each.size
        view.sinks.add(sink)
        oldest = each.oldest(MOST_LINES) if each.part is None else None  # a limit is meant to hold tasks back
        view.oldest = max(view.oldest, now - oldest.ready if oldest else 0.0)
    serving: dict[str, list[Lane]] = defaultdict(list)
    for lane in hub.lanes.values():
        for queue in lane.queues:
            serving[queue].append(lane)
    for queue in serving:
        found.setdefault((queue, frozenset()), QueueView(queue, frozenset()))
    shown = sorted(found.values(), key=lambda view: -view.waiting)[:MOST_QUEUES]
    for view in shown:
        view.lanes = [lane for lane in serving[view.queue] if view.tags <= lane.tags]
    return shown


def place(hub: HubState, record: TaskRecord, most: int) -> int:
    """Count the queued tasks of its route whose turn comes before that of a task, up to `most`."""
    backlog = hub.ledger.suspects if record.losses >= SUSPECT else hub.ledger.backlog
    route, priority = hub.ledger.route_of(record), record.spec.priority
    before = 0
    for each in backlog.every_route_queue():
        if each.route == route and each.part == record.part and each.priority >= priority:
            before += each.ahead_of(record, most) if each.priority == priority else each.size
    return min(most, before)
