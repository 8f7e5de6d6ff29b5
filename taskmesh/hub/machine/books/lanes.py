"""Lanes: the hub's books of each pool session, and the credit that bounds what it may hold."""

from __future__ import annotations

import enum
from collections import deque

from taskmesh.core.credit import LANE_HORIZON, LONG, MAX_HORIZON, MOST_AHEAD, PACE, WORTH, Credit
from taskmesh.core.state_machine import StateMachine
from taskmesh.hub.machine.books.backlog import Route
from taskmesh.hub.machine.books.spec_entry import SpecEntry
from taskmesh.hub.machine.books.states import State, TaskRecord
from taskmesh.link.link import ReceiveWindow
from taskmesh.messages.mesh_messages import Hello
from taskmesh.messages.runs import Held, Progress

SILENCE = 0.020
"""Seconds without a finished task after which a lane whose slots are all busy gets no more work."""
OVERDUE = MAX_HORIZON
"""Seconds after which tasks that were sent ahead should have started; they come back if they have not."""
MOST_EARLY = 10_000
"""Results ahead of a missing one that are taken in; a pool repeats the others."""
LARGE = 1 << 16
"""Bytes from which on a lane message's size is remembered until it is received."""
REFILL = 4
"""A lane that was full gets tasks again when one in so many of those beyond two for each slot has ended."""
REFUSED_FOR = 60.0
"""Seconds for which a pool that has refused a function gets no tasks of it, if there is another pool."""
MOST_REFUSED = 3
"""Functions refused in a row after which a pool gets no tasks at all for as long."""


class LaneState(enum.Enum):
    """The state of a lane: it may get work, or why it may not."""

    OPENING = "opening"
    READY = "ready"
    PAUSED = "paused"
    DRAINING = "draining"
    SILENT = "silent"
    CUT = "cut"
    """Its lane or all of its links are closed; it has a second to say Hello."""


class LaneCause(enum.Enum):
    """An event that changes a lane's state."""

    WORK = "work"
    """Its pool takes work: a beat says so, or an operator has asked for it."""
    PAUSE = "pause"
    """Its pool is paused, or is about to be."""
    DRAIN = "drain"
    """Its pool leaves, or is about to be told so."""
    SILENCE = "silence"
    """Several beats have not come."""
    LINK_LOST = "link lost"
    """The lane is closed, or all links of the pool are."""


_COMES_AND_GOES = (LaneState.OPENING, LaneState.READY, LaneState.PAUSED, LaneState.SILENT)

LANE_TRANSITIONS: dict[tuple[LaneState, LaneCause], LaneState] = {
    **{(state, LaneCause.WORK): LaneState.READY for state in _COMES_AND_GOES},
    **{(state, LaneCause.PAUSE): LaneState.PAUSED for state in _COMES_AND_GOES},
    **{(state, LaneCause.DRAIN): LaneState.DRAINING for state in (*_COMES_AND_GOES, LaneState.DRAINING)},
    (LaneState.READY, LaneCause.SILENCE): LaneState.SILENT,
    **{(state, LaneCause.LINK_LOST): LaneState.CUT for state in LaneState},
}
"""A pool that drains takes no work again, and a lane that is cut is never mended: the pool gets a new one."""


MAY_TAKE = (LaneState.READY, LaneState.OPENING, LaneState.SILENT)
"""States of lanes that take work now or soon; others take none until a pool or an operator changes that."""
LEAVING = (LaneState.DRAINING, LaneState.CUT)
"""States of lanes that never take work again."""
READY = LaneState.READY
"""For the hot path: see `states.SENT`."""


class Breaker:
    """A pool's circuit breaker: it keeps functions away from a pool that cannot run them.

    A worker that lacks a module, or has a stale mesh key, refuses a task in no time and asks for the next.
    Without a breaker it takes most of a queue, and tasks fail that another pool would have run. The breaker
    opens for each function that the pool refuses, and for all of them when it refuses one after the other.

    Attributes:
        refused: Times until which the pool is spared the tasks of a spec, by its number.
        complaint: The reason in words, or empty.
    """

    __slots__ = ("_in_a_row", "_open_until", "complaint", "refused")

    def __init__(self) -> None:
        self.refused: dict[int, float] = {}
        self.complaint = ""
        self._open_until = 0.0
        self._in_a_row = 0

    def refuses(self, number: int, now: float) -> bool:
        """Return True if the pool is spared tasks of a spec: it has lately refused some, or everything."""
        return now < self._open_until or now < self.refused.get(number, 0.0)

    def trip(self, number: int, name: str, reason: str, now: float) -> bool:
        """Take in that the pool has refused a task of a spec; return True if that is worth logging.

        Args:
            name: The function's, for people.
            reason: Why it cannot be run there.
        """
        known, was_open = self.refuses(number, now), now < self._open_until
        first = not self.refused
        self.refused[number] = now + REFUSED_FOR
        self._in_a_row += not known
        if self._in_a_row >= MOST_REFUSED:
            self._open_until = now + REFUSED_FOR
        is_open = now < self._open_until
        self.complaint = f"does not run {'any function' if is_open else name}: {reason}"
        return first or was_open != is_open

    def close(self, number: int) -> None:
        """Take in that the pool has run a task of a spec."""
        self._in_a_row = 0
        self._open_until = 0.0
        self.refused.pop(number, None)
        if not self.refused:
            self.complaint = ""


class Lane(StateMachine[LaneState, LaneCause]):
    """One session of one pool.

    Args:
        session: The session.
        hello: The Hello that has asked for it.
        now: The time.
        user: User whose key the pool shows, empty where no keys are in use.
        token: Token of the pool's process, empty likewise.
        beat: Seconds between two of its beats.

    Attributes:
        session: As given.
        user: As given.
        token: As given.
        hello: As given, without what it lists.
        pool: Name of the pool.
        first_epoch: Hub that its process spoke of when it was heard here first, whose work it may have.
        slots: Number of slots that take work now.
        queues: Queues that it serves.
        tags: Tags that it has.
        endpoint: Endpoint of the lane, empty until it is bound.
        sequence: Number of the last lane message that was pushed.
        received: Number of the last one that the pool has received.
        received_moved: Time when that last rose, or was all that there was.
        reports: Numbers of its Results.
        outstanding: Number of tasks pushed and not reported back.
        counts: Number of these by spec.
        known_specs: Specs that the pool has.
        heard: Time when the pool was last heard of.
        beat: As given.
        progress: Time when it last reported an end, or was given work while it had none.
        lost_at: Time when all of its links were lost, None if they are not.
        recall_after: Time before which nothing is recalled again.
        recalls: Recalls since its last report.
        alone_until: Time until which it is given nothing while it has work: a suspect has it for itself.
        breaker: Functions that its pool could not load, or whose tasks it does not trust.
        nearest: Seconds of the shortest round trip to it.
        credit: Work that each slot may have outstanding: 20 ms, or twice the refill latency.
        running: Tasks that its slots ran at its last beat.
        stale: Tasks that its inventory listed and nobody waits for.
        wished: State that an operator wants it in and its beats do not state yet, or empty.
        is_draining: True once its pool drains, which is final: a late beat cannot clear it.
        warning: Versions in which it differs from the hub, in words, or empty.
        unwanted: True if it may hold tasks that are to be cancelled unless they have started.
        full: True if it had no room for any task when it was last weighed, and too little has ended there
            since. Of hundreds of pools most are: weighing each for every task that ends anywhere cost a
            millisecond. And what it gets when it has room again is worth a message.
    """

    table = LANE_TRANSITIONS

    def __init__(
        self,
        session: int,
        hello: Hello,
        now: float,
        user: str = "",
        token: bytes = b"",
        *,
        beat: float = 1.0,
    ) -> None:
        self.session = session
        self.user = user
        self.token = token
        self.pool = hello.pool
        self.first_epoch = hello.epoch
        self.hello = hello
        self.slots = hello.slots
        self.queues = frozenset(hello.queues)
        self.tags = frozenset(hello.tags)
        self.state = LaneState.OPENING
        self.endpoint = ""
        self.sequence = 0
        self.received = 0
        self.received_moved = now
        self.reports = ReceiveWindow(MOST_EARLY)
        self.outstanding = 0
        self.counts: dict[int, int] = {}
        self.known_specs: set[int] = set()
        self.heard = now
        self.beat = beat
        self.progress = now
        self.lost_at: float | None = None
        self.recall_after = 0.0
        self.recalls = 0
        self.alone_until = 0.0
        self.breaker = Breaker()
        self.nearest = MAX_HORIZON
        self.credit = Credit(LANE_HORIZON, fall=0.05)
        self.running: list[Progress] = []
        self.stale: list[Held] = []
        self.wished = ""
        self.is_draining = False
        self.warning = ""
        self.unwanted = self.full = False
        self._refill_at = 0
        self._weighed = 0.0  # the horizon when it was full
        self._pushed: list[TaskRecord] = []
        self._flying: deque[tuple[int, int]] = deque()

    # --- credit -------------------------------------------------------------------------------------------

    def load(self, specs: dict[int, SpecEntry]) -> float:
        """Return the seconds of slot time outstanding; no task counts for more than the horizon."""
        total, cost = 0.0, self.credit.cost
        for number, count in self.counts.items():
            entry = specs[number]
            total += count * cost(entry.service, entry.result_size)
        return total

    @property
    def most(self) -> int:
        """The most tasks that it may have, however short: as many as its pool's loop handles in a horizon.

        The shortest round trip counts: others may have been measured behind thousands of tasks.
        """
        handled = (LANE_HORIZON + self.nearest) / PACE
        return min(self.slots * MOST_AHEAD, max(2 * self.slots, int(handled)))

    def worth(self, entry: SpecEntry) -> int:
        """Return how many tasks of a spec are worth a message; a smaller share of what waits is not sent."""
        cost = self.credit.cost(entry.service, entry.result_size)
        return max(1, int(WORTH / max(PACE, cost / max(1, self.slots))))

    def has_room(self, entry: SpecEntry, specs: dict[int, SpecEntry]) -> bool:
        """Return True if the lane is available to a task (RFC 30: its queue, the credit, is not full)."""
        if self.outstanding < self.slots:
            return True
        slots, credit = self.slots, self.credit
        self.full = self.outstanding >= self.most or self.load(specs) >= slots * credit.horizon
        self._weighed = credit.horizon
        self._refill_at = self.outstanding - max(1, (self.outstanding - 2 * slots) // REFILL)
        return not self.full and credit.cost(entry.service, entry.result_size) < credit.horizon

    def sized(self, slots: int) -> None:
        """Take in how many slots its pool has now; -1 if it does not say.

        If it has more than usual, a task there waits for tasks of its own, which must not wait for it.
        """
        if slots > self.hello.slots and self.alone_until:
            self.alone_until = min(self.alone_until, self.heard)
        if slots >= 0:
            self.slots = slots
            self.full = False

    def is_silent(self, now: float) -> bool:
        """Return True if all slots are busy with tasks that turn out long: none may be put behind them.

        A task that is handed back unstarted is no progress, or it would be given the same tasks again.
        """
        after = max(SILENCE, 2.0 * self.credit.latency)
        return self.outstanding >= self.slots and now - self.progress >= after

    def is_stalled(self, now: float) -> bool:
        """Return True if all of its slots are busy, and none has reported a task for half a second."""
        after = max(OVERDUE, 2.0 * self.credit.horizon)
        return self.outstanding >= self.slots and now - self.progress >= after

    def is_overdue(self, now: float, specs: dict[int, SpecEntry]) -> bool:
        """Return True if tasks were sent ahead by a wrong estimate, so that they do not start in time.

        One ahead for each slot may wait for a task that takes a second, as tasks do that are not LONG.
        """
        unstarted = self.outstanding - self.slots
        if unstarted <= self.slots:
            return unstarted > 0 and now - self.progress >= LONG and self.is_stalled(now)
        if self.is_stalled(now):
            return True
        seconds = sum(count * (specs[number].service or 0.0) for number, count in self.counts.items())
        return seconds > self.slots * (OVERDUE + self.credit.horizon)

    def wish(self, verb: str) -> None:
        """Note an operator's command; no more work from now on if it says so. Draining is final."""
        if self.wished == "draining":
            return
        self.wished = {"pause": "paused", "resume": "ready", "drain": "draining"}[verb]
        if self.state is LaneState.READY and verb != "resume":
            self.move(LaneCause.PAUSE if verb == "pause" else LaneCause.DRAIN)

    def serves(self, route: Route) -> bool:
        return route[0] in self.queues and route[1] <= self.tags

    def may_take(self, entry: SpecEntry) -> bool:
        """Return True if tasks of a spec may go to it, now or soon."""
        refuses = self.breaker.refuses(entry.number, self.heard)
        return self.state in MAY_TAKE and self.serves(entry.route) and not refuses

    # --- what it holds ------------------------------------------------------------------------------------

    def hold(self, records: list[TaskRecord]) -> None:
        for record in records:
            self.charge(record.spec.number, 1)
        self.remember(records)

    def charge(self, number: int, count: int) -> None:
        self.outstanding += count
        self.counts[number] = self.counts.get(number, 0) + count

    def remember(self, records: list[TaskRecord]) -> None:
        """Keep records that this session may hold.

        Those that it does not hold any more go when they are more than a few, for each keeps its spec, and
        with it a function of perhaps megabytes.
        """
        self._pushed += records
        if len(self._pushed) > 8 * self.outstanding + 64:
            session, last = self.session, State.RUNNING
            self._pushed = [kept for kept in self._pushed if kept.session == session and kept.state <= last]

    def release(self, number: int, count: int) -> None:
        """Note that this session does not have `count` tasks of a spec any more."""
        self.outstanding -= count
        if self.outstanding <= self._refill_at:
            self.full = False
        if not self.outstanding:
            self.alone_until = 0.0
        left = self.counts.get(number, 0) - count
        if left > 0:
            self.counts[number] = left
        else:
            self.counts.pop(number, None)

    def held(self) -> list[TaskRecord]:
        session = self.session
        found = (
            record
            for record in self._pushed
            if record.session == session and State.SENT <= record.state <= State.RUNNING
        )
        return list(dict.fromkeys(found))

    def holds_unwanted(self) -> bool:
        """Return True if it may have unstarted tasks that are to be cancelled unless they have started."""
        sent = (record for record in self.held() if record.state is State.SENT)
        self.unwanted = any(record.extra is not None and record.extra.unwanted for record in sent)
        return self.unwanted

    def pushed(self, size: int) -> None:
        """Note one more lane message with so many bytes of payload."""
        self.sequence += 1
        if size >= LARGE:
            self._flying.append((self.sequence, size))

    def bytes_in_flight(self, received: int) -> int:
        """Return the bytes of large messages that the pool has not received yet."""
        while self._flying and self._flying[0][0] <= received:
            self._flying.popleft()
        return sum(size for _, size in self._flying)

    def latency(self, sample: float | None, lag: float) -> None:
        """Take in a measured round trip, if there is one, and the time that the pool's slots wait for it."""
        if sample is not None:
            self.nearest = min(self.nearest, max(0.0, sample))
        self.credit.measured(sample, lag)
        if self.credit.horizon > self._weighed * (1.0 + 1.0 / REFILL):
            self.full = False
