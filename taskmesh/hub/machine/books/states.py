"""A task's states and transitions, as a table: what may happen, and what happens then."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from taskmesh.core.ids import SEQ_BITS
from taskmesh.messages.runs import SUCCESS


class State(enum.IntEnum):
    """The state of a task. The first four are on the way, the others are terminal and absorbing."""

    __hash__ = int.__hash__  # Enum's own is written in Python

    QUEUED = 0
    WAITING = 1
    SENT = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    EXPIRED = 7
    DEAD = 8
    LOST = 9

    @property
    def word(self) -> str:
        """The state as people see it, as `TaskState` has it: what waits, or is next at a pool, is queued."""
        return "queued" if self in (WAITING, SENT) else self.name.lower()


class Cause(enum.IntEnum):
    """The cause of a transition."""

    __hash__ = int.__hash__

    PUSH = 0
    """The ventilator pushed it on a lane."""
    START = 1
    """Its pool reports that it runs."""
    RETURN = 2
    """Its pool handed it back unstarted."""
    REQUEUE = 3
    """It goes round again at once: its session is over, its result is lost, it was refused, or it crashed."""
    RETRY = 4
    """It failed and has retries left, or was killed for lack of memory: it goes round again, later."""
    DUE = 5
    """Its waiting time is over."""
    ADOPT = 6
    """A pool lists the attempt that it still holds: no need to send it again."""
    SUCCEED = 7
    """A pool reports its result."""
    FAIL = 8
    """It failed, and has no retries left."""
    CANCEL = 9
    """Its last waiter has given it up."""
    EXPIRE = 10
    """It has not started in time."""
    BURY = 11
    """It killed its slot, or pools died with it, as often as the limit allows."""
    LOSE = 12
    """At-most-once, and nobody knows whether it ran."""
    DELAY = 14
    """It came with a time before which it is not to start."""
    RECOVER = 13
    """An earlier hub had it: the hub waits for the pools that may hold it."""
    AWAIT = 15
    """It depends on tasks that have not ended, or somebody else is to end it."""
    BLOCK = 16
    """A task that it depends on ended badly: it can never start."""
    SKIP = 17
    """It was to start only if a task that it depends on failed, and none did; or one of these was skipped."""
    FULFIL = 18
    """It is a promise, and somebody has given it its value; or a value, and its sink has room for it."""


QUEUED, WAITING, SENT, SUCCEEDED = State.QUEUED, State.WAITING, State.SENT, State.SUCCEEDED
"""For the hot path: in Python 3.11 an enum's attribute takes 90 ns."""

S, C = State, Cause
ON_ITS_WAY = (S.QUEUED, S.WAITING, S.SENT, S.RUNNING)

TRANSITIONS: dict[tuple[State, Cause], State] = {
    (S.QUEUED, C.PUSH): S.SENT,
    (S.SENT, C.START): S.RUNNING,
    (S.SENT, C.RETURN): S.QUEUED,
    (S.RUNNING, C.RETURN): S.QUEUED,
    (S.SENT, C.REQUEUE): S.QUEUED,
    (S.RUNNING, C.REQUEUE): S.QUEUED,
    (S.SENT, C.RETRY): S.WAITING,
    (S.RUNNING, C.RETRY): S.WAITING,
    (S.QUEUED, C.DELAY): S.WAITING,
    (S.QUEUED, C.RECOVER): S.WAITING,
    (S.QUEUED, C.AWAIT): S.WAITING,
    (S.WAITING, C.BLOCK): S.FAILED,
    (S.WAITING, C.SKIP): S.CANCELLED,
    (S.WAITING, C.DUE): S.QUEUED,
    (S.QUEUED, C.ADOPT): S.SENT,
    (S.WAITING, C.ADOPT): S.SENT,
    (S.WAITING, C.FULFIL): S.SUCCEEDED,
    (S.WAITING, C.FAIL): S.FAILED,
    (S.SENT, C.FAIL): S.FAILED,
    (S.RUNNING, C.FAIL): S.FAILED,
    (S.SENT, C.BURY): S.DEAD,
    (S.RUNNING, C.BURY): S.DEAD,
    (S.SENT, C.LOSE): S.LOST,
    (S.RUNNING, C.LOSE): S.LOST,
    (S.QUEUED, C.EXPIRE): S.EXPIRED,
    (S.WAITING, C.EXPIRE): S.EXPIRED,
    **{(state, C.SUCCEED): S.SUCCEEDED for state in ON_ITS_WAY if state is not S.WAITING},
    **{(state, C.CANCEL): S.CANCELLED for state in ON_ITS_WAY},
}
"""A late success of an older attempt counts in every state on the way (a task that WAITs is due with it): the
first valid success wins."""


SUSPECT = 2
"""Pools lost with a task after which it is given to a pool alone, so that no other task is blamed for it."""


class Attempt(Protocol):
    """A message that names an attempt of a task and how many earlier ones were handed back unstarted."""

    @property
    def attempt(self) -> int:
        """The fencing token."""
        ...

    @property
    def returns(self) -> int:
        """As with `LaneRun`."""
        ...


def handed_back(held: Attempt) -> int:
    """Return how often a pool says the task was handed back before, bounded by what can be true."""
    return max(0, min(held.returns, held.attempt - 1))


class TaskRecord(msgspec.Struct, gc=False, eq=False):
    """One accepted task: the ledger's row.

    A msgspec struct without garbage collection: made in a quarter of the time of a Python class, and a
    million of them cost a full collection nothing. It takes part in no cycle.

    Attributes:
        client, seq: its client, and the counter that this has given it.
        spec: its SpecEntry.
        group: fairness and cancel unit.
        payload: bytes or Blob, never looked into.
        ready: the hub's time from which it could start: when it came, or was due.
        state, attempt, session: where it is; (session, attempt) fences failures.
        returns: attempts handed back unstarted. errors, crashes: what was charged to it.
        losses: pools that died while they had it; from SUSPECT on it is handed out alone.
        lined_up: the backlog has an entry for it, perhaps a stale one, never two; or is about to have it.
        due: while it WAITs for a time, the hub's time at which that is over; 0 for none.
        extra: rarely needed facts, or None.
        part: the key of its keyed limits, an empty text if it has others only; None if it has no limits.
    """

    client: int
    seq: int
    spec: Any
    group: int
    payload: Any
    ready: float = 0.0
    state: State = State.QUEUED
    attempt: int = 0
    returns: int = 0
    session: int = 0
    errors: int = 0
    crashes: int = 0
    losses: int = 0
    lined_up: bool = True
    extra: Any = None
    due: float = 0.0
    part: str | None = None

    def more(self) -> TaskExtra:
        """The rarely needed facts, made when first asked for."""
        extra: TaskExtra | None = self.extra
        if extra is None:
            extra = self.extra = TaskExtra()
        return extra

    @property
    def id(self) -> int:
        return self.client << SEQ_BITS | self.seq

    @property
    def known_as(self) -> int:
        """The id under which the pool that holds its attempt knows it."""
        return self.id if self.extra is None else self.extra.alias or self.id

    @property
    def begun(self) -> int:
        """The number of executions that have begun, or may have; people are shown it as the attempt."""
        return self.attempt - self.returns

    @property
    def has_failed(self) -> bool:
        """True if a failure has been charged: the task has started, whatever comes."""
        return self.extra is not None and bool(self.extra.failed)

    def charge(self, *, errors: int = 0, crashes: int = 0, ooms: int = 0, losses: int = 0) -> None:
        """Count a bad end of an attempt against the task's budgets, or take a loss back that was none."""
        self.errors += errors
        self.crashes += crashes
        self.losses = max(0, self.losses + losses)
        if ooms:
            self.more().ooms += ooms

    def raise_attempts(self, attempt: int, begun: int) -> None:
        """Have the next attempt get a higher number than those that are known of.

        One that is under way keeps its number until it is over: it may be handed back, and have had the same.
        """
        if self.state >= State.SENT:
            if attempt > self.attempt or begun >= self.begun:
                extra = self.more()
                extra.attempts = max(extra.attempts, attempt)
                extra.begun = max(extra.begun, begun)
            return
        begun = max(self.begun, begun)
        self.attempt = max(self.attempt, attempt, begun)
        self.returns = self.attempt - begun

    def unsent(self) -> TaskRecord:
        """Return a copy that is queued once more, with what its memory kills and failures were."""
        copy = msgspec.structs.replace(self, state=State.QUEUED, session=0, lined_up=False, extra=None)
        if self.extra is not None:
            more = copy.more()
            more.failed = self.extra.failed
            more.ooms = self.extra.ooms
            more.history = self.extra.history
        return copy

    @property
    def links(self) -> Links | None:
        extra: TaskExtra | None = self.extra
        return None if extra is None else extra.links

    def link(self) -> Links:
        """Its edges, made when first asked for."""
        extra = self.more()
        links = extra.links
        if links is None:
            links = extra.links = Links()
        return links

    def time_has_come(self) -> None:
        self.due = 0.0
        if self.extra is not None:
            self.extra.at = 0.0

    def is_held_back(self, now: float) -> bool:
        """Return True if a task that WAITs has a reason to go on waiting: a time, or other tasks."""
        links = self.links
        return self.due > now or (links is not None and links.holds_back)

    def started(self) -> None:
        """Forget the requests to cancel the task unless it had started: it had, and goes round again."""
        if self.extra is not None:
            self.extra.unwanted = ()


class Links(msgspec.Struct, gc=False, eq=False):
    """The edges of a task in the graph of dependencies; a struct as `TaskRecord` is.

    Attributes:
        needs: the tasks of its client whose outcomes are among its arguments, by counter.
        after: those besides that it only waits for.
        waits: how many of the tasks that it depends on have not ended.
        when: SUCCESS, DONE or FAILURE, see `Run.when`.
        has_failed: a task that it depends on has ended badly.
        is_settled: it has been decided that it starts, or never does.
        is_blocked: it has been decided that it never starts, and it is to end in the hub's next steps.
        recovers: pools of an earlier hub may hold it, see `Recovery`.
        dependents: tasks that depend on it, by the id under which they know it.
    """

    needs: Sequence[int] = ()
    after: Sequence[int] = ()
    waits: int = 0
    when: int = SUCCESS
    has_failed: bool = False
    is_settled: bool = False
    is_blocked: bool = False
    recovers: bool = False
    dependents: dict[int, list[TaskRecord]] = {}

    @property
    def holds_back(self) -> bool:
        """True while the task may not start for what it depends on."""
        return self.recovers or self.is_blocked or (self.waits > 0 and not self.is_settled)


class TaskExtra(msgspec.Struct, gc=False, eq=False):
    """The rarely needed facts of a task; a struct as `TaskRecord` is.

    Every task of a graph has one: what few of them need is an immutable empty default until it is written.

    Attributes:
        waiters: other ids that wait for its outcome, by `key=`; in order, and found at once.
        history: its failed attempts, in words.
        key: the name and key by which it is found.
        ooms: how often it was killed for lack of memory.
        at: the time on the wall before which it does not start, in seconds since the epoch, 0 for none; `due`
            is infinite then.
        abandoned: its own submitter has given it up, others still wait for it.
        late: it expired while a pool had it, so it ends should it come back unstarted.
        links: its edges to other tasks.
        unwanted: those of its ids that end as well should it come back unstarted: their clients have given
            them up unless it had started.
        alias: a waiter's id under which its pool has it, 0 when that is its own: an earlier hub had it from
            that waiter, and the pool has never heard another.
        pools: those that died while they had it, but for the first, and those that refused it, in words.
        refused: the sessions of the pools that refused it.
        failed: the number of the newest execution whose failure was charged.
        attempts, begun: the attempts and executions of other hubs that have been heard of while one is under
            way, see `TaskRecord.raise_attempts`.
    """

    waiters: dict[int, None] = {}
    history: tuple[str, ...] = ()
    key: tuple[str, str] | None = None
    ooms: int = 0
    at: float = 0.0
    abandoned: bool = False
    late: bool = False
    links: Links | None = None
    unwanted: tuple[int, ...] = ()
    alias: int = 0
    pools: tuple[str, ...] = ()
    refused: frozenset[int] = frozenset()
    failed: int = 0
    attempts: int = 0
    begun: int = 0

    @property
    def is_shared(self) -> bool:
        """True if the outcome goes to anybody but its own submitter, or to the result cache."""
        return bool(self.key or self.waiters or self.abandoned)

    def over(self, record: TaskRecord) -> None:
        """Its attempt is over: what it has in common with the next."""
        self.alias = 0
        if self.attempts or self.begun:
            record.raise_attempts(self.attempts, self.begun)
            self.attempts = self.begun = 0

    def waiting(self, own: int) -> list[int]:
        """The ids that wait for the outcome of the record whose own id this is, that first."""
        return [*self.waiters] if self.abandoned else [own, *self.waiters]
