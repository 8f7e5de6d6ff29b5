"""The ventilator: RFC 30's round-robin over available peers; a peer is a pool, its queue the credit."""

from __future__ import annotations

from collections.abc import Iterator

from taskmesh.core.actions import Push
from taskmesh.core.backlog import Route
from taskmesh.core.lanes import MAX_WINDOW, Lane, LaneState
from taskmesh.core.ledger import Ledger, SpecEntry
from taskmesh.core.states import Cause, State, TaskRecord
from taskmesh.ids import SEQ_BITS, SEQ_MASK
from taskmesh.wire.messages import LaneRun, Spec, Tasks

MAX_MESSAGE = 4096
"""Most tasks in one lane message."""
CHUNK_TAKEN = 256
"""Tasks taken from the backlog at a time: what does not fit goes back, so little may be in hand."""
MAX_MESSAGE_BYTES = 4 << 20
"""Payload bytes after which a lane message is closed."""
RECALL_AFTER = 0.005
"""A lane that reports nothing for so long while another is idle gives its unstarted tasks back."""
RECALL_AGAIN = 0.020
"""Then again, later and later while it has nothing to report: what came back may be its own to run."""
MAX_RECALLS = 6


class Ventilator:
    """Pushes queued tasks to lanes with room, in rotation; recalls from lanes that are stuck."""

    def __init__(self, ledger: Ledger, specs: dict[int, SpecEntry], epoch: int) -> None:
        self.lanes: dict[int, Lane] = {}
        self._ledger = ledger
        self._specs = specs
        self._epoch = epoch
        self._turn = 0
        self._first_route = 0

    def dispatch(self, now: float) -> list[Push]:
        """Pushes what can be pushed; one message per lane and round."""
        pushes: list[Push] = []
        for route in self._in_turn(self._ledger.backlog.routes()):
            self._dispatch_route(route, now, pushes)
        return pushes

    def _in_turn(self, routes: list[Route]) -> list[Route]:
        """Routes by the priority of what waits there, equal ones in turn: a busy queue starves no other."""
        if len(routes) < 2:
            return routes
        self._first_route += 1
        first = self._first_route % len(routes)
        priority = self._ledger.backlog.priority
        return sorted(routes[first:] + routes[:first], key=lambda route: -priority(route))

    def _dispatch_route(self, route: Route, now: float, pushes: list[Push]) -> None:
        backlog = self._ledger.backlog
        lanes = [
            lane
            for lane in self.lanes.values()
            if lane.state is LaneState.READY and lane.serves(route) and not lane.is_silent(now)
        ]
        if not lanes:
            return
        while lanes:
            head = backlog.head(route)
            if head is None:
                return
            self._turn += 1
            lane = lanes[self._turn % len(lanes)]
            if not lane.has_room(head.spec, lane.load(self._specs)):
                lanes.remove(lane)
                continue
            share = MAX_MESSAGE
            if len(lanes) > 1:
                waiting = backlog.waiting(route, 2 * len(lanes) * MAX_MESSAGE)
                share = max(1, waiting // (2 * len(lanes)))
            batch, size = self._fill(lane, route, min(share, MAX_MESSAGE))
            lane.pushed(size)
            pushes.append(Push(lane.session, self._message(lane, batch, now)))

    def _fill(self, lane: Lane, route: Route, count: int) -> tuple[list[TaskRecord], int]:
        """Takes up to `count` tasks that the lane has room for, at least one; and their bytes."""
        backlog = self._ledger.backlog
        horizon, idle = lane.horizon, lane.slots - lane.outstanding
        limit, load = lane.slots * horizon, lane.load(self._specs)
        batch: list[TaskRecord] = []
        entry: SpecEntry | None = None
        cost, size = horizon, 0
        window = min(count, lane.slots * MAX_WINDOW - lane.outstanding)
        while len(batch) < window:
            chunk = backlog.take(route, min(CHUNK_TAKEN, window - len(batch)))
            if not chunk:
                break
            for index, record in enumerate(chunk):
                if record.spec is not entry:
                    entry = record.spec
                    cost = lane.cost(record.spec)
                if len(batch) >= idle and (load >= limit or cost >= horizon or size > MAX_MESSAGE_BYTES):
                    for left in reversed(chunk[index:]):
                        self._ledger.requeue(left)
                    return batch, size
                batch.append(record)
                load += cost
                size += len(record.payload)
        return batch, size

    def _message(self, lane: Lane, batch: list[TaskRecord], now: float) -> Tasks:
        session, counts = lane.session, self._ledger.counts
        runs: list[LaneRun] = []
        specs: list[tuple[int, Spec]] = []
        entry: SpecEntry | None = None
        client = attempt = returns = -1
        seqs: list[int] = []
        payloads: list[object] = []
        for record in batch:
            record.state = State.SENT
            record.session = session
            record.attempt += 1
            task = record.id
            if (
                record.attempt != attempt
                or record.spec is not entry
                or task >> SEQ_BITS != client
                or record.returns != returns
            ):
                client, attempt, returns = task >> SEQ_BITS, record.attempt, record.returns
                if record.spec is not entry:
                    entry = record.spec
                    if record.spec.number not in lane.known_specs:
                        lane.known_specs.add(record.spec.number)
                        specs.append((record.spec.number, record.spec.spec))
                seqs, payloads = [], []
                runs.append(LaneRun(record.spec.number, client, attempt, returns, seqs, payloads))
            seqs.append(task & SEQ_MASK)
            payloads.append(record.payload)
        key = (State.QUEUED, Cause.PUSH)
        counts[key] = counts.get(key, 0) + len(batch)
        if not lane.outstanding:
            lane.progress = now
        for run in runs:
            lane.charge(run.spec, len(run.seqs))
        lane.remember(batch)
        lane.acked = lane.results
        return Tasks(self._epoch, session, lane.sequence, lane.results, now, specs, runs)

    # --- recall -------------------------------------------------------------------------------------------

    def recalls(self, now: float) -> list[tuple[Lane, int]]:
        """Lanes that should give unstarted tasks back, and how many, because another lane has idle slots."""
        found = []
        for lane, idle in self._stuck(now):
            due = max(lane.progress + RECALL_AFTER, lane.recall_after)
            if due <= now:
                lane.recall_after = now + RECALL_AGAIN * (1 << min(lane.recalls, MAX_RECALLS))
                lane.recalls += 1
                surplus = lane.outstanding - lane.slots
                share = surplus if lane.is_silent(now) else max(idle, lane.outstanding // 2)
                found.append((lane, min(surplus, share)))
        return found

    def recall_deadline(self, now: float) -> float | None:
        """When `recalls` should be asked again."""
        return min(
            (max(lane.progress + RECALL_AFTER, lane.recall_after) for lane, _ in self._stuck(now)),
            default=None,
        )

    def _stuck(self, now: float) -> Iterator[tuple[Lane, int]]:
        if len(self.lanes) < 2:
            return
        idle = [
            lane
            for lane in self.lanes.values()
            if lane.state is LaneState.READY and lane.outstanding < lane.slots
        ]
        if not idle:
            return
        for lane in self.lanes.values():
            if lane.outstanding <= lane.slots or lane.state is LaneState.OPENING:
                continue
            helpers = [other for other in idle if other is not lane and self._can_help(other, lane)]
            if helpers:
                yield lane, sum(other.slots - other.outstanding for other in helpers)

    def _can_help(self, idle: Lane, lane: Lane) -> bool:
        return any(idle.serves(self._specs[number].route) for number in lane.counts)
