"""Lanes: what the hub knows of each pool session, and the credit that bounds what it may hold."""

from __future__ import annotations

import enum
from collections import deque

from taskmesh.core.credit import LANE_HORIZON, LONG, MAX_HORIZON, MOST_AHEAD, Credit
from taskmesh.core.hub.ledger import SpecEntry
from taskmesh.core.hub.states import State, TaskRecord
from taskmesh.core.link import ReceiveWindow
from taskmesh.core.state_machine import StateMachine
from taskmesh.wire.messages import Hello
from taskmesh.wire.runs import Held

SILENCE = 0.020
"""Seconds without a finished task after which a lane whose slots are all busy gets no more work."""
OVERDUE = MAX_HORIZON
"""Seconds after which what was sent ahead should have started: it comes back when it has not."""
MOST_EARLY = 10_000
"""Results ahead of a missing one that are taken in; a pool says the others again."""
LARGE = 1 << 16
"""Bytes from which on a lane message's size is remembered until it is received."""
REFUSED_FOR = 60.0
"""Seconds for which a pool gets no tasks of a function that it has refused, while there is another pool."""
MOST_REFUSED = 3
"""Functions refused, and none run in between, after which a pool gets no tasks at all for so long."""


class LaneState(enum.Enum):
    """Whether a lane may get work."""

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
"""What may take work, now or soon: others take none before somebody wants them to."""
READY = LaneState.READY
"""For the hot path: see `states.SENT`."""


class Breaker:
    """A pool's circuit breaker: it keeps functions away from a pool that cannot run them.

    A worker that lacks a module, or has a stale mesh key, refuses a task in no time and asks for the next.
    Without a breaker it takes most of a queue, and tasks fail that another pool would have run. The breaker
    opens for each function that the pool refuses, and for all of them when it refuses one after the other.

    Attributes:
        refused: Spec number -> until when the pool is spared its tasks.
        complaint: The reason in words, or empty.
    """

    __slots__ = ("_in_a_row", "_open_until", "complaint", "refused")

    def __init__(self) -> None:
        self.refused: dict[int, float] = {}
        self.complaint = ""
        self._open_until = 0.0
        self._in_a_row = 0

    def refuses(self, number: int, now: float) -> bool:
        """Whether the pool is spared tasks of a spec: it has refused some, or everything, not long ago."""
        return now < self._open_until or now < self.refused.get(number, 0.0)

    def trip(self, number: int, name: str, reason: str, now: float) -> bool:
        """The pool has refused a task of a spec; returns whether that is news worth telling.

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
        """The pool has run a task of a spec: it can."""
        self._in_a_row = 0
        self._open_until = 0.0
        self.refused.pop(number, None)
        if not self.refused:
            self.complaint = ""


class Lane(StateMachine[LaneState, LaneCause]):
    """One session of one pool.

    Attributes:
        outstanding: tasks pushed and not reported back. sequence: last lane_seq pushed.
        reports: numbers of Results.
        credit: work that each slot may have outstanding: 20 ms, or twice the refill latency.
        heard: when the pool was last heard of. stale: what its inventory listed and nobody waits for.
        warning: in which versions it differs from the hub, in words, or empty.
        wished: the state that an operator wants it in and its beats do not state yet, or empty.
        leaves: its pool drains, which is for good: a beat of before that comes late says nothing.
        user: whose key the pool shows, empty without keys.
        other_hubs: addresses of those that its pool serves as well, and of those that are away.
        unwanted: it may hold tasks that are to be cancelled unless they have started.
        alone_until: so long it is given nothing while it has work: it is to have one task for itself, or has.
        breaker: which functions its pool could not load, or whose tasks it does not trust.
        full: it had no room for any task when it was looked at, and nothing has ended there since. Of
            hundreds of pools most are: to weigh each for every task that ends anywhere cost a millisecond.
    """

    table = LANE_TRANSITIONS

    def __init__(self, session: int, hello: Hello, now: float, user: str = "") -> None:
        self.session = session
        self.user = user
        self.pool = hello.pool
        self.instance = hello.instance
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
        self.progress = now
        self.lost_at: float | None = None
        self.recall_after = 0.0
        self.recalls = 0
        self.alone_until = 0.0
        self.breaker = Breaker()
        self.credit = Credit(LANE_HORIZON, fall=0.05)
        self.busy_slots = 0
        self.stale: list[Held] = []
        self.wished = ""
        self.leaves = False
        self.warning = ""
        self.unwanted = self.full = False
        self.other_hubs: tuple[list[str], list[str]] = ([], [])
        self._pushed: list[TaskRecord] = []
        self._flying: deque[tuple[int, int]] = deque()

    # --- credit -------------------------------------------------------------------------------------------

    def load(self, specs: dict[int, SpecEntry]) -> float:
        """Seconds of slot time outstanding, no task counted for more than the horizon."""
        total, cost = 0.0, self.credit.cost
        for number, count in self.counts.items():
            entry = specs[number]
            total += count * cost(entry.service, entry.result_size)
        return total

    def has_room(self, entry: SpecEntry, specs: dict[int, SpecEntry]) -> bool:
        """Whether the lane is available to a task (RFC 30: its queue, the credit window, is not full)."""
        if self.outstanding < self.slots:
            return True
        slots, credit = self.slots, self.credit
        self.full = self.outstanding >= slots * MOST_AHEAD or self.load(specs) >= slots * credit.horizon
        return not self.full and credit.cost(entry.service, entry.result_size) < credit.horizon

    def sized(self, slots: int) -> None:
        """Takes in how many slots its pool has now; -1 if it does not say.

        More than usual: what runs there waits for tasks of its own, so these must not wait for it.
        """
        if slots > self.hello.slots and self.alone_until:
            self.alone_until = min(self.alone_until, self.heard)
        if slots >= 0:
            self.slots = slots
            self.full = False

    def is_silent(self, now: float) -> bool:
        """All of its slots are busy with tasks that turn out long: nothing more may be put behind them.

        What it hands back unstarted is no sign of progress, or it would be given the same tasks again.
        """
        after = max(SILENCE, 2.0 * self.credit.latency)
        return self.outstanding >= self.slots and now - self.progress >= after

    def is_stalled(self, now: float) -> bool:
        """Whether all of its slots are busy, and none has reported a task for half a second."""
        after = max(OVERDUE, 2.0 * self.credit.horizon)
        return self.outstanding >= self.slots and now - self.progress >= after

    def is_overdue(self, now: float, specs: dict[int, SpecEntry]) -> bool:
        """Whether tasks were sent ahead by an estimate that has turned out wrong: they do not start in time.

        One ahead for each slot waits for a task that takes a second, as tasks do that are not LONG.
        """
        unstarted = self.outstanding - self.slots
        if unstarted <= self.slots:
            return unstarted > 0 and now - self.progress >= LONG and self.is_stalled(now)
        if self.is_stalled(now):
            return True
        seconds = sum(count * (specs[number].service or 0.0) for number, count in self.counts.items())
        return seconds > self.slots * (OVERDUE + self.credit.horizon)

    def wish(self, verb: str) -> None:
        """Notes an operator's command; no more work from now on if it says so. Who is to leave leaves."""
        if verb == "ping" or self.wished == "draining":
            return
        self.wished = {"pause": "paused", "resume": "ready", "drain": "draining"}[verb]
        if self.state is LaneState.READY and verb != "resume":
            self.move(LaneCause.PAUSE if verb == "pause" else LaneCause.DRAIN)

    def serves(self, route: tuple[str, frozenset[str]]) -> bool:
        """Whether the pool serves the queue and has the tags."""
        return route[0] in self.queues and route[1] <= self.tags

    def may_take(self, entry: SpecEntry) -> bool:
        """Whether tasks of a spec may go to it, now or soon."""
        refuses = self.breaker.refuses(entry.number, self.heard)
        return self.state in MAY_TAKE and self.serves(entry.route) and not refuses

    # --- what it holds ------------------------------------------------------------------------------------

    def hold(self, records: list[TaskRecord]) -> None:
        """Takes note of tasks that are this session's now."""
        for record in records:
            self.charge(record.spec.number, 1)
        self.remember(records)

    def charge(self, number: int, count: int) -> None:
        """Takes note of `count` more tasks of a spec outstanding."""
        self.outstanding += count
        self.counts[number] = self.counts.get(number, 0) + count

    def remember(self, records: list[TaskRecord]) -> None:
        """Keeps records that this session may hold; those it does not hold any more go when they are many.

        Not many at all: each keeps its spec, and with it a function of perhaps megabytes.
        """
        self._pushed += records
        if len(self._pushed) > 8 * self.outstanding + 64:
            session, last = self.session, State.RUNNING
            self._pushed = [kept for kept in self._pushed if kept.session == session and kept.state <= last]

    def release(self, number: int, count: int) -> None:
        """Takes note that `count` tasks of a spec are not this session's any more."""
        self.outstanding -= count
        self.full = False
        if not self.outstanding:
            self.alone_until = 0.0
        left = self.counts.get(number, 0) - count
        if left > 0:
            self.counts[number] = left
        else:
            self.counts.pop(number, None)

    def held(self) -> list[TaskRecord]:
        """The tasks that this session holds."""
        session = self.session
        seen: set[int] = set()
        found = []
        for record in self._pushed:
            if (
                record.session == session
                and State.SENT <= record.state <= State.RUNNING
                and record.id not in seen
            ):
                seen.add(record.id)
                found.append(record)
        return found

    def holds_unwanted(self) -> bool:
        """Whether it has tasks that are to be cancelled unless they have started, which may not have."""
        sent = (record for record in self.held() if record.state is State.SENT)
        self.unwanted = any(record.extra is not None and record.extra.unwanted for record in sent)
        return self.unwanted

    def pushed(self, size: int) -> None:
        """Takes note of one more lane message with so many bytes of payload."""
        self.sequence += 1
        if size >= LARGE:
            self._flying.append((self.sequence, size))

    def flying(self, received: int) -> int:
        """Bytes of large messages that the pool has not received yet."""
        while self._flying and self._flying[0][0] <= received:
            self._flying.popleft()
        return sum(size for _, size in self._flying)

    def latency(self, sample: float | None, lag: float) -> None:
        """Takes in a measured round trip, if there is one, and the time that the pool's slots wait for it."""
        self.credit.measured(sample, lag)
        self.full = False
