"""The ventilator: RFC 30's round-robin over available peers; a peer is a pool, its queue the credit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from taskmesh.core.actions import PushTasks
from taskmesh.core.ids import plain
from taskmesh.hub.machine.books.backlog import AnyRouteQueue, LimitedRouteQueue, group_of
from taskmesh.hub.machine.books.lanes import READY, Lane, LaneState
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import SUSPECT, State, TaskRecord
from taskmesh.hub.machine.state import HubState
from taskmesh.messages.mesh_messages import Tasks
from taskmesh.messages.runs import LaneRun

MAX_MESSAGE = 512
"""Most tasks in one lane message: its pool hands them out while the next one is made."""
MOST_AT_ONCE = 1 << 30
"""Tasks that may start where no sink bounds them."""
UNSEEN = 1 << 20
"""Bytes that a result is taken for that goes to a sink, until one of its task function has come."""
MAX_MESSAGE_BYTES = 4 << 20
"""Payload bytes after which a lane message is closed."""
RECALL_AFTER = 0.005
"""A lane that reports nothing for so long while another is idle gives its unstarted tasks back."""
RECALL_AGAIN = 0.020
"""Then again, later and later while it has nothing to report: what came back may be its own to run."""
MAX_RECALLS = 6
FEW_QUEUES = 8
"""Queues of which the lanes are looked up one by one; with more of them every lane is looked at."""
NO_LANES: Mapping[int, Lane] = {}
ALONE = 10.0
"""Seconds that suspects wait for an empty lane before one goes beside others, and then has it for itself."""


class Load:
    """The tasks of one lane message while it is filled.

    Attributes:
        runs: for the message. records: their tasks. size: their payloads' bytes.
    """

    __slots__ = ("_before", "_cost", "_lane", "_seconds", "records", "runs", "size")

    def __init__(self, lane: Lane, specs: dict[int, SpecEntry]) -> None:
        self.runs: list[LaneRun] = []
        self.records: list[TaskRecord] = []
        self.size = 0
        self._lane = lane
        self._seconds = lane.load(specs)
        self._cost = 0.0
        self._before = 0

    def room(self, entry: SpecEntry, idle: int) -> int:
        """Return how many tasks of a spec fit; at least one for each idle slot."""
        taken, horizon = len(self.records), self._lane.credit.horizon
        self._seconds += self._cost * (taken - self._before)
        self._cost, self._before = self._lane.credit.cost(entry.service, entry.result_size), taken
        free = self._lane.slots * horizon - self._seconds
        fits = math.ceil(free / self._cost) if self._cost < horizon and free > 0 else 0
        return max(fits, idle - taken)

    def begin(
        self, entry: SpecEntry, client: int, attempt: int, returns: int
    ) -> tuple[list[int], list[object]]:
        """A new run; returns the lists that its tasks' numbers and payloads go into."""
        run = LaneRun(entry.number, client, attempt, returns, [], [])
        self.runs.append(run)
        return run.seqs, run.payloads


class Ventilator:
    """Pushes queued tasks to lanes with room, in rotation; recalls from lanes that are stuck."""

    def __init__(self, hub: HubState) -> None:
        self._hub = hub
        self._ledger = hub.ledger
        self._last = 0
        self._alone_by = math.inf
        self._stuck_lanes: list[Lane] = []
        self.lone: TaskRecord | None = None

    def offer(self, record: TaskRecord) -> bool:
        """Take a task that comes alone past the queue, if nothing waits; return False if it is to be queued.

        It spares the hub two fifths of what it does before a lone task leaves.
        """
        if self.lone is not None:
            self._queue_lone()
        ledger = self._ledger
        if ledger.backlog.routes or ledger.suspects.routes or record.part is not None or record.spec.route[3]:
            return False  # limits and sinks are asked in the queue
        self.lone = record
        return True

    def _queue_lone(self) -> None:
        lone, self.lone = self.lone, None
        if lone is not None and lone.state is State.QUEUED:
            self._ledger.backlog.push_front(
                self._ledger.route_of(lone), lone.spec.priority, group_of(lone), lone
            )

    def dispatch(self, now: float) -> list[PushTasks]:
        """Push what can be pushed; one message per lane and round."""
        pushes: list[PushTasks] = []
        if self.lone is not None:
            push = self._push_lone(self.lone, now)
            if push is not None:
                self.lone = None
                return [push]
            self._queue_lone()
        reserved: set[int] = set()
        backlog, suspects = self._ledger.backlog, self._suspects()
        queues = {*backlog.queues, *self._ledger.suspects.queues} if suspects else backlog.queues
        able = self._serving(queues)
        lanes = [lane for lane in able if lane.slots and not lane.full and self._is_open(lane, now)]
        for route_queue in suspects:
            self._dispatch_route_queue(route_queue, lanes, now, pushes, reserved, alone=True)
        if pushes or not reserved:
            self._alone_by = math.inf
        elif self._alone_by == math.inf:
            self._alone_by = now + ALONE
        for route_queue in self._in_turn(lanes):
            self._dispatch_route_queue(route_queue, lanes, now, pushes, reserved)
        return pushes

    def _suspects(self) -> list[AnyRouteQueue]:
        """Route queues of suspects; those at their heads whose pool turned out to live are none any more."""
        suspects = self._ledger.suspects
        for route_queue in suspects.route_queues() if suspects.routes else ():
            while (head := route_queue.head()) is not None and head.losses < SUSPECT:
                route_queue.take(1)
                self._ledger.backlog.push_front(route_queue.route, route_queue.priority, group_of(head), head)
            suspects.forget_empty(route_queue)
        return suspects.route_queues() if suspects.routes else []

    def _serving(self, queues: Collection[str]) -> Iterable[Lane]:
        """Lanes by session, all that serve one of some queues: there may be a thousand others."""
        serving = self._hub.serving
        if len(queues) == 1:
            return serving.get(next(iter(queues)), NO_LANES).values()
        if len(queues) > FEW_QUEUES:
            return self._hub.lanes.values()
        found: dict[int, Lane] = {}
        for queue in queues:
            found.update(serving.get(queue, NO_LANES))
        return [found[session] for session in sorted(found)]

    def _in_turn(self, lanes: list[Lane]) -> list[AnyRouteQueue]:
        """Route queues by their priority, equal ones in turn: a busy queue starves no other.

        Of several routes only those of queues that these serve: of others there may be thousands.
        """
        backlog = self._ledger.backlog
        if len(backlog.routes) < 2 or not lanes:
            return backlog.route_queues() if lanes else []
        return backlog.route_queues(dict.fromkeys(queue for lane in lanes for queue in lane.hello.queues))

    def _dispatch_route_queue(
        self,
        route_queue: AnyRouteQueue,
        every: list[Lane],
        now: float,
        pushes: list[PushTasks],
        reserved: set[int],
        *,
        alone: bool = False,
    ) -> None:
        """Push what can be pushed of one route queue.

        Tasks with limits go to idle slots only, one at a time: sent ahead, one would take permits while it
        waits. Suspects go to lanes that have nothing else, one each; but not for ever, since what runs there
        may take hours, or wait for tasks of its own.

        Args:
            every: the lanes that may be given anything.
            reserved: sessions for which a route queue waits whose turn comes first. A task that goes to a
                free slot only would never find one, were another queue's put behind running ones.
            alone: it has suspects.
        """
        route, before = route_queue.route, len(pushes)
        room = self._room_in_sink(route_queue) if route[3] else MOST_AT_ONCE
        lanes = [lane for lane in every if lane.session not in reserved and lane.serves(route)]
        idle_only = alone or isinstance(route_queue, LimitedRouteQueue)
        waiting: list[Lane] = []
        empty = [lane for lane in lanes if not lane.outstanding] if alone else []
        if alone and (empty or now < self._alone_by):
            waiting, lanes = [lane for lane in lanes if lane.outstanding], empty
        again: deque[Lane] = deque()
        turns = self._turns(lanes, again)
        while room > 0 and (head := route_queue.head()) is not None:
            lane = self._next_lane(turns, head.spec, waiting, idle_only=idle_only)
            if lane is None:
                reserved.update(self._reserve(waiting, idle_only=idle_only))
                break
            if idle_only:
                records = route_queue.take(1)
                push = self._push(lane, [self._run(head)], records, len(head.payload), now)
            else:
                share, left = MAX_MESSAGE, len(lanes) - len(waiting)
                if left > 1:
                    share = max(route_queue.size // (2 * left), lane.worth(head.spec))
                load = self._load(lane, route_queue, min(share, MAX_MESSAGE, room), head.spec)
                records = load.records
                push = self._push(lane, load.runs, records, load.size, now)
            room -= len(records)
            pushes.append(push)
            if alone:
                lane.alone_until = now + ALONE
                reserved.add(lane.session)
            else:
                again.append(lane)
        backlog = self._ledger.suspects if alone else self._ledger.backlog
        if len(pushes) > before:
            backlog.served(route_queue)
        else:
            backlog.forget_empty(route_queue)

    def _turns(self, lanes: Collection[Lane], again: deque[Lane]) -> Iterator[Lane]:
        """Yield the lanes, the one after the lane served last first, and then those of `again`."""
        last = self._last
        for lane in lanes:
            if lane.session > last:
                yield lane
        for lane in lanes:
            if lane.session <= last:
                yield lane
        while again:
            yield again.popleft()

    def _next_lane(
        self, turns: Iterator[Lane], entry: SpecEntry, waiting: list[Lane], *, idle_only: bool
    ) -> Lane | None:
        """Return the first lane in turn that has room for a task of a spec, as the one served last.

        Args:
            turns: lanes that may be given its tasks. waiting: gets those that have no room.
            idle_only: room is a slot that is idle, not credit.
        """
        for lane in turns:
            if lane.breaker.refused and self._is_spared(lane, entry):
                continue
            if lane.outstanding >= lane.slots and (idle_only or not lane.has_room(entry, self._hub.specs)):
                waiting.append(lane)
                continue
            self._last = lane.session
            return lane
        return None

    def _reserve(self, waiting: list[Lane], *, idle_only: bool) -> list[int]:
        """Return the sessions of lanes that get nothing else meanwhile; of idle slots the first is enough."""
        if idle_only and waiting:
            specs = self._hub.specs  # a lane of long tasks is idle late, one of many short ones soon
            waiting = [min(waiting, key=lambda lane: lane.load(specs) / lane.slots)]
        return [lane.session for lane in waiting]

    def _load(self, lane: Lane, route_queue: AnyRouteQueue, count: int, first: SpecEntry) -> Load:
        """Take up to `count` tasks that the lane has room for, at least one, as runs: they are SENT.

        Args:
            first: the spec of the task whose turn it is.
        """
        idle, load = lane.slots - lane.outstanding, Load(lane, self._hub.specs)
        window = min(count, lane.most - lane.outstanding)
        records, size = load.records, 0
        entry, left = first, load.room(first, idle)
        seqs: list[int] = []
        payloads: list[object] = []
        client = attempt = returns = -1
        while (taken := len(records)) < window and (head := route_queue.head()) is not None:
            if head.spec is not entry:
                if lane.breaker.refused and self._is_spared(lane, head.spec):
                    break
                entry, client = head.spec, -1
                left = load.room(entry, idle)
            if left <= 0 or (size > MAX_MESSAGE_BYTES and taken >= idle):
                break
            part = route_queue.take(min(window - taken, left), max(1, MAX_MESSAGE_BYTES - size))
            left -= len(part)
            for record in part:
                if record.attempt != attempt or record.client != client or record.returns != returns:
                    client, attempt, returns = record.client, record.attempt, record.returns
                    seqs, payloads = load.begin(entry, client, attempt + 1, returns)
                records.append(record)
                seqs.append(record.seq)
                payloads.append(record.payload)
                size += len(record.payload)
        load.size = size
        return load

    def _push_lone(self, record: TaskRecord, now: float) -> PushTasks | None:
        """Push a task alone that needs no queue: a slot is idle, and nothing waits."""
        ledger, route = self._ledger, record.spec.route
        if record.state is not State.QUEUED or ledger.backlog.routes or ledger.suspects.routes:
            return None
        turns = self._turns(self._hub.serving.get(route[0], NO_LANES).values(), deque())
        able = (lane for lane in turns if lane.serves(route) and self._is_open(lane, now))
        lane = self._next_lane(able, record.spec, [], idle_only=True)
        if lane is None:
            return None
        return self._push(lane, [self._run(record)], [record], len(record.payload), now)

    def _run(self, record: TaskRecord) -> LaneRun:
        """Return a task's next attempt, alone; it has its permits from now on."""
        number, attempt = record.spec.number, record.attempt + 1
        run = LaneRun(number, record.client, attempt, record.returns, [record.seq], [record.payload])
        if record.part is not None:
            run.part = record.part
            self._ledger.limits.start(record)
        return run

    def _push(
        self, lane: Lane, runs: list[LaneRun], records: list[TaskRecord], size: int, now: float
    ) -> PushTasks:
        if self._hub.dependencies.values:
            size += self._hub.dependencies.attach(runs, records, lane.session)
        lane.pushed(size)
        return PushTasks(lane.session, self._message(lane, runs, records, now))

    @staticmethod
    def _is_open(lane: Lane, now: float) -> bool:
        """Return True if the lane may be given work."""
        alone = lane.alone_until > now and lane.outstanding
        return lane.state is READY and not alone and not lane.is_silent(now)

    def _is_spared(self, lane: Lane, entry: SpecEntry) -> bool:
        """Return True if the pool has refused tasks of a spec and another pool can take them."""
        refuses = lane.breaker.refuses(entry.number, lane.heard)
        return refuses and any(other.may_take(entry) for other in self._hub.lanes.values())

    def _room_in_sink(self, route_queue: AnyRouteQueue) -> int:
        """Return how many tasks of a route queue may start for what its sink still takes."""
        sinks, sink, head = self._hub.sinks, route_queue.route[3], route_queue.head()
        left = sinks.room(sink)
        each = UNSEEN if head is None else 2 * head.spec.result_size or UNSEEN
        room = MOST_AT_ONCE
        if self._ledger.count * each > left:
            under_way = self._under_way(sink)
            room = max(0, int(left / each) - under_way)
            if not room and not under_way and sinks.takes_any(sink):
                room = 1  # larger than a sink may be, and one at a time
        (sinks.closed.discard if room else sinks.closed.add)(sink)
        return room

    def _under_way(self, sink: str) -> int:
        """Return how many tasks that pools have will put their outcomes into a sink."""
        specs, lanes, name = self._hub.specs, self._hub.lanes.values(), plain(sink)
        numbers = {number for lane in lanes for number in lane.counts if specs[number].route[3] == name}
        if name == sink:
            return sum(lane.counts.get(number, 0) for lane in lanes for number in numbers)
        held = (one for lane in lanes if not numbers.isdisjoint(lane.counts) for one in lane.held())
        return sum(one.spec.number in numbers and self._ledger.route_of(one)[3] == sink for one in held)

    def _message(self, lane: Lane, runs: list[LaneRun], records: list[TaskRecord], now: float) -> Tasks:
        self._ledger.push(records, lane.session)
        specs = []
        if not lane.outstanding:
            lane.progress = now
        first = 0
        for run in runs:
            count = len(run.seqs)
            lane.charge(run.spec, count)
            oldest = records[first]
            if oldest.attempt == 1 and (oldest.extra is None or oldest.extra.links is None):
                oldest.spec.figures.wait.add(now - oldest.ready, count)
            first += count
            if run.spec not in lane.known_specs:
                lane.known_specs.add(run.spec)
                specs.append((run.spec, self._hub.specs[run.spec].spec))
        lane.remember(records)
        message = Tasks(
            self._hub.config.epoch, lane.session, lane.sequence, lane.reports.to, now, specs, runs
        )
        if self._hub.dependencies.unused:
            message.unused = self._hub.dependencies.take_unused(lane.session)
        return message

    def forget_unused(self, now: float) -> list[PushTasks]:
        """Tell idle lanes which outcomes no task needs any more; the others hear it with their next tasks."""
        pushes = []
        for session in list(self._hub.dependencies.unused):
            lane = self._hub.lanes.get(session)
            if lane is None or lane.state is not READY:
                self._hub.dependencies.take_unused(session)  # the next session begins without
            elif not lane.outstanding:
                lane.pushed(0)
                pushes.append(PushTasks(session, self._message(lane, [], [], now)))
        return pushes

    # --- recall -------------------------------------------------------------------------------------------

    def recalls(self, now: float) -> list[tuple[Lane, int]]:
        """Lanes that should give unstarted tasks back, and how many, because another lane has idle slots."""
        found = []
        stuck = list(self._stuck(now))
        self._stuck_lanes = [lane for lane, _ in stuck]
        for lane, idle in stuck:
            due = max(lane.progress + RECALL_AFTER, lane.recall_after)
            if due <= now:
                self._recalled(lane, now)
                surplus = lane.outstanding - lane.slots
                share = surplus if lane.is_silent(now) else max(idle, lane.outstanding // 2)
                found.append((lane, min(surplus, share)))
        return found

    def overdue(self, now: float) -> list[tuple[Lane, int]]:
        """Lanes that should give all unstarted tasks back, since these were sent ahead by a wrong estimate.

        In the hub they wait behind what is more urgent, take turns with others, and may expire.
        """
        found = []
        for lane in self._hub.lanes.values():
            if lane.state is READY and lane.recall_after <= now and lane.is_overdue(now, self._hub.specs):
                self._recalled(lane, now)
                found.append((lane, lane.outstanding - lane.slots))
        return found

    @staticmethod
    def _recalled(lane: Lane, now: float) -> None:
        lane.recall_after = now + RECALL_AGAIN * (1 << min(lane.recalls, MAX_RECALLS))
        lane.recalls += 1

    def recall_deadline(self) -> float | None:
        """Return the time at which `recalls`, which has just been asked, should be asked again."""
        return min(
            (max(lane.progress + RECALL_AFTER, lane.recall_after) for lane in self._stuck_lanes),
            default=None,
        )

    def _stuck(self, now: float) -> Iterator[tuple[Lane, int]]:
        if len(self._hub.lanes) < 2:
            return
        specs = self._hub.specs
        crowded = [
            lane
            for lane in self._hub.lanes.values()
            if lane.outstanding > lane.slots and lane.state is not LaneState.OPENING
        ]
        queues = {specs[number].route[0] for lane in crowded for number in lane.counts}
        idle = [
            lane for lane in self._serving(queues) if lane.state is READY and lane.outstanding < lane.slots
        ]
        if not idle:
            return
        free: dict[frozenset[int], int] = {}  # most lanes hold tasks of the same specs
        for lane in crowded:
            held = frozenset(lane.counts)
            if held not in free:
                free[held] = sum(
                    other.slots - other.outstanding for other in idle if self._helps(other, held)
                )
            if free[held]:
                yield lane, free[held]

    def _helps(self, idle: Lane, held: frozenset[int]) -> bool:
        return any(idle.may_take(self._hub.specs[number]) for number in held)
