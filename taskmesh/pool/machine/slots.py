"""Slots as the pool machine sees them: what each was handed, what of it has come back.

A slot works first in, first out, so its results need no ids: the next serials are the next tasks. Tasks are
kept as pieces of lane runs; taking a hundred results off a piece is two list slices.
"""

from __future__ import annotations

import enum
import math
import signal
from collections import deque
from collections.abc import Iterator, Sequence

from taskmesh.core.events import SlotExited
from taskmesh.core.specs import evicted
from taskmesh.core.state_machine import StateMachine
from taskmesh.errors import LocalProtocolError
from taskmesh.messages.runs import DoneRun, Failed, Held, LaneRun, Spec
from taskmesh.messages.slot_messages import SlotFailure, SlotProgress, SlotResults, SlotSegment

BROKEN_AFTER = 3
"""Starts in a row that failed, after which the hub is not to count on a slot."""
GENERATIONS = 1 << 16
"""Tickets have room for so many; no slot is recalled as often while one task runs."""
MOST_SPECS = 1000
"""Specs that a slot knows, at most, but for those of its tasks; their functions live in its process."""
SPEC_BYTES = 128 << 20
"""The same in bytes of functions that travel by value."""
MAX_LOG = 4000
"""Characters of a dead slot's output that its task's error quotes."""


class SlotState(enum.Enum):
    """The state of a slot's process."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    RETIRING = "retiring"
    STOPPING = "stopping"


class SlotCause(enum.Enum):
    """An event in the life of a slot's process."""

    START = "start"
    """The pool asks the fork server for a process."""
    READY = "ready"
    """The process waits for tasks."""
    RETIRE = "retire"
    """The process is to be replaced: it finishes what it has started, and is given nothing more."""
    STOP = "stop"
    """The process may end: the pool leaves, it has finished, or the slot has had no permit for long."""
    EXIT = "exit"
    """The process is gone, or could not be had."""


SLOT_TRANSITIONS: dict[tuple[SlotState, SlotCause], SlotState] = {
    (SlotState.DOWN, SlotCause.START): SlotState.STARTING,
    (SlotState.STARTING, SlotCause.READY): SlotState.UP,
    (SlotState.STARTING, SlotCause.EXIT): SlotState.DOWN,
    (SlotState.UP, SlotCause.STOP): SlotState.STOPPING,
    (SlotState.UP, SlotCause.EXIT): SlotState.DOWN,
    (SlotState.UP, SlotCause.RETIRE): SlotState.RETIRING,
    (SlotState.RETIRING, SlotCause.STOP): SlotState.STOPPING,
    (SlotState.RETIRING, SlotCause.EXIT): SlotState.DOWN,
    (SlotState.STOPPING, SlotCause.EXIT): SlotState.DOWN,
}


UP, RETIRING = SlotState.UP, SlotState.RETIRING
"""For the hot path: see `states.SENT`."""
ANY_NUMBER = 1 << 62
"""Tasks that a slot's process may run, if it is not to be replaced after so many."""
TASKS, RELOAD = "tasks", "reload"
"""Reasons to replace a slot: it has run as many tasks as it may, or its modules have changed."""


class Piece:
    """Consecutive tasks of one lane run.

    Attributes:
        run: The lane run.
        low: Index of the first task.
        high: Index after the last one.
        first: Serial of the task at `low`, once the piece has been handed to a slot.
    """

    __slots__ = ("first", "high", "low", "run")

    def __init__(self, run: LaneRun, low: int, high: int, first: int = 0) -> None:
        self.run = run
        self.low = low
        self.high = high
        self.first = first

    def __len__(self) -> int:
        return self.high - self.low

    def split(self, count: int) -> Piece:
        """Take the first `count` tasks off as a piece of their own."""
        head = Piece(self.run, self.low, self.low + count, self.first)
        self.low += count
        self.first += count
        return head

    def split_tail(self, count: int) -> Piece:
        """Take the last `count` tasks off as a piece of their own."""
        tail = Piece(self.run, self.high - count, self.high, self.first + len(self) - count)
        self.high -= count
        return tail

    def part(self) -> LaneRun:
        run = self.run
        if self.low == 0 and self.high == len(run.seqs):
            return run
        low, high = self.low, self.high
        seqs, payloads, needs = run.seqs[low:high], run.payloads[low:high], run.needs[low:high]
        return LaneRun(run.spec, run.client, run.attempt, run.returns, seqs, payloads, needs, part=run.part)

    def held(self) -> Held:
        """Return the tasks as a line of an inventory."""
        run = self.run
        seqs = run.seqs[self.low : self.high]
        return Held(run.client, run.attempt, seqs, returns=run.returns, part=run.part)


class HandedTasks:
    """Tasks that a slot was handed and has not reported, and the specs that it knows.

    Attributes:
        number: The slot's place in its pool.
        pieces: The tasks, oldest first.
        count: Number of tasks.
        work: Number of tasks by spec.
        serial: Serial that the next task gets.
        progress: Newest progress of the task that runs.
        specs: Specs that the slot knows, with the sizes of their functions, oldest first.
        spec_bytes: Sum of these sizes.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.pieces: deque[Piece] = deque()
        self.count = 0
        self.work: dict[int, int] = {}
        self.serial = 0
        self.progress: SlotProgress | None = None
        self.specs: dict[int, int] = {}
        self.spec_bytes = 0

    def running(self) -> tuple[LaneRun, int] | None:
        """Return the task that it runs, as far as is known: the oldest that has not been reported."""
        if not self.pieces:
            return None
        piece = self.pieces[0]
        return piece.run, piece.run.seqs[piece.low]

    def tasks(self, serial: int) -> Iterator[tuple[LaneRun, int]]:
        """Yield the task of a serial, with its run, unless it is not in the slot any more."""
        for piece in self.pieces:
            if piece.first <= serial < piece.first + len(piece):
                yield piece.run, piece.run.seqs[piece.low + serial - piece.first]

    def serials(self, held: Held) -> Iterator[int]:
        """Yield the serials of an attempt's tasks that are in the slot."""
        for piece in self.pieces:
            run = piece.run
            if (run.client, run.attempt) == (held.client, held.attempt):
                for ahead, seq in enumerate(run.seqs[piece.low : piece.high]):
                    if seq in held.seqs:
                        yield piece.first + ahead

    def take_back(self, count: int) -> list[Piece]:
        """The `count` tasks handed over last are not this slot's any more; returns them, oldest first."""
        taken: deque[Piece] = deque()
        while count:
            last = self.pieces[-1]
            piece = self.pieces.pop() if len(last) <= count else last.split_tail(count)
            taken.appendleft(piece)
            count -= len(piece)
            self._less(piece.run.spec, len(piece))
        return list(taken)

    def progressed(self, progress: SlotProgress | None) -> None:
        """Keep the progress of the task that it runs; None when that has been told with its end."""
        if progress is None or (self.pieces and progress.serial >= self.pieces[0].first):
            self.progress = progress

    def take_report(self, results: SlotResults, worker: str) -> tuple[list[DoneRun], list[Failed]]:
        """Return what a slot's report says of which tasks; serials reported before are passed over."""
        done: list[DoneRun] = []
        failed: list[Failed] = []
        reports: Sequence[SlotSegment | SlotFailure] = results.done
        if results.failed:
            reports = sorted(
                [*results.done, *results.failed],
                key=lambda report: report.first if isinstance(report, SlotSegment) else report.serial,
            )
        for report in reports:
            if isinstance(report, SlotSegment):
                self._succeeded(report, worker, done)
            else:
                failed += self._failed(report, worker)
        return done, failed

    def _succeeded(self, segment: SlotSegment, worker: str, done: list[DoneRun]) -> None:
        payloads, at = segment.payloads, 0
        total = len(payloads)
        while at < total and self.pieces:
            piece = self.pieces[0]
            ahead = segment.first + at - piece.first
            if ahead < 0:
                at += 1
                continue
            if ahead:
                raise LocalProtocolError(
                    f"slot {self.number} reports {segment.first + at} before {piece.first}"
                )
            run, low = piece.run, piece.low
            size = piece.high - low
            count = min(total - at, size)
            if count == size:
                self.pieces.popleft()
            else:
                piece.split(count)
            self._less(run.spec, count)
            done.append(
                DoneRun(
                    run.spec,
                    run.client,
                    run.attempt,
                    worker,
                    run.seqs[low : low + count],
                    payloads if count == total else payloads[at : at + count],
                    segment.elapsed * count / total,
                    run.returns,
                )
            )
            at += count

    def _failed(self, failure: SlotFailure, worker: str) -> Iterator[Failed]:
        if not self.pieces or failure.serial < self.pieces[0].first:
            return
        piece = self.pieces[0].split(1)
        if not len(self.pieces[0]):
            self.pieces.popleft()
        self._less(piece.run.spec, 1)
        yield Failed(
            piece.run.client,
            piece.run.seqs[piece.low],
            piece.run.attempt,
            failure.kind,
            failure.type_name,
            failure.text,
            failure.traceback,
            failure.pickled,
            failure.retryable,
            failure.retry_after,
            worker,
            returns=piece.run.returns,
            output=failure.output,
        )

    def _less(self, spec: int, count: int) -> None:
        self.count -= count
        left = self.work[spec] - count
        if left:
            self.work[spec] = left
        else:
            del self.work[spec]

    def learn(self, number: int, spec: Spec) -> None:
        self.specs[number] = size = len(spec.function)
        self.spec_bytes += size

    def evict(self) -> list[int]:
        """Take off and return what it is to forget: the oldest specs beyond the bounds that no task needs.

        They are sent again before their next use.
        """
        if len(self.specs) <= MOST_SPECS and self.spec_bytes <= SPEC_BYTES:
            return []
        gone = evicted(self.specs, self.work.__contains__, most=MOST_SPECS, most_bytes=SPEC_BYTES)
        for number in gone:
            self.spec_bytes -= self.specs.pop(number)
        return gone


class PermittedTasks(StateMachine[SlotState, SlotCause], HandedTasks):
    """A slot's permit to take tasks: lent, given up, or about to go to another.

    Attributes:
        recalling: True while its tasks are being taken back.
        parent: Serial of its task that submits tasks of its own and has lent the permit, or None.
        spare_since: Time since when another slot has its permit, None while it takes work.
        due: Why its process is to be replaced; empty if it is not.
        is_relief: True while it starts to take the place of another.
    """

    def __init__(self, number: int, *, is_relief: bool) -> None:
        super().__init__(number)
        self.recalling = False
        self.parent: int | None = None
        self.spare_since: float | None = None
        self.due = ""
        self.is_relief = is_relief

    @property
    def is_up(self) -> bool:
        """True if its process is there and has not been told to stop."""
        return self.state is UP or self.state is SlotState.RETIRING

    @property
    def is_surplus(self) -> bool:
        """True if its process is up for nothing: it is spare and has no task."""
        return self.spare_since is not None and not self.count and self.state is UP

    @property
    def has_finished(self) -> bool:
        """True if its process may stop, as it is due or retires and has no task."""
        retires = self.state is SlotState.RETIRING or (bool(self.due) and self.is_surplus)
        return retires and not self.count and not self.recalling

    @property
    def wants_relief(self) -> bool:
        """True if another is to take its permit."""
        return bool(self.due) and self.is_up and self.parent is None and self.spare_since is None

    def spare_until(self, seconds: float) -> float:
        """Return when it has been spare for so long; infinite if it is not."""
        return math.inf if self.spare_since is None else self.spare_since + seconds

    def fall_due(self, reason: str) -> None:
        """Its process is to be replaced for this reason; "" if it is not any more."""
        self.due = reason

    def lend(self, parent: int | None) -> None:
        """The task of this serial submits tasks: another slot takes work meanwhile. None: it has ended."""
        self.parent = parent
        if parent is not None:
            self.spare_since = None

    def spare(self, since: float | None) -> None:
        """Another slot has its permit since then; None if it has one again, or for the first time."""
        self.is_relief, self.spare_since = False, since


class Slot(PermittedTasks):
    """One slot. Its methods alone write its attributes: tests/architecture/test_writers.py.

    A number below 0 is that of a slot for suspects: see `pool.machine.sharing`.

    Attributes:
        pid: Process id, 0 if there is no process.
        generation: Number on the tickets that tasks are handed over with.
        heard: Time when it last reported, or was given a task while it had none.
        quiet: True if it was recalled because it was silent, and has not reported since.
        peeked: True if its outbox has been read since it was last heard of.
        refilled: True if it was handed tasks since the last recall; if not, all that it has is started.
        kill_at: Time when it is killed unless its task has returned: by a hard limit, or because the task was
            cancelled and had time to clean up.
        reason: Why it is killed, or is going to be; empty if it is not.
        failures: Starts in a row that failed.
        start_at: Time before which it is not started.
        has_submitted: True if a task of its process may have submitted tasks.
        end: Serial from which on its process may not be handed tasks.

    Args:
        number: Its place in its pool.
        most: Number of tasks after which its process is replaced.
    """

    table = SLOT_TRANSITIONS

    def __init__(self, number: int, most: int = ANY_NUMBER, *, is_relief: bool = False) -> None:
        super().__init__(number, is_relief=is_relief)
        self.state = SlotState.DOWN
        self.pid = 0
        self.generation = 0
        self.heard = 0.0
        self.quiet = False
        self.peeked = False
        self.refilled = False
        self.kill_at: float | None = None
        self.reason = ""
        self.failures = 0
        self.start_at = 0.0
        self.has_submitted = False
        self.end = self._most = most

    # --- what it may be asked to do -----------------------------------------------------------------------

    @property
    def takes_work(self) -> bool:
        """True if it may be given tasks: it is up and has a permit, nothing is being taken back or killed."""
        return (
            self.state is UP
            and not self.recalling
            and not self.reason
            and self.kill_at is None
            and self.parent is None
            and self.spare_since is None
            and self.number >= 0
        )

    @property
    def can_give(self) -> bool:
        """True if a recall may find something: it was handed tasks since the last one, not one alone."""
        is_up = self.state is UP or self.state is RETIRING  # `self.is_up` would be a call
        return self.count >= 2 and self.refilled and is_up and not self.recalling

    @property
    def idle(self) -> bool:
        return not self.count and self.takes_work

    @property
    def wants_start(self) -> bool:
        return self.state is SlotState.DOWN and self.spare_since is None

    @property
    def is_broken(self) -> bool:
        """True if it could not be started again and again: nobody should wait for it."""
        return self.failures >= BROKEN_AFTER and not self.is_up and not self.is_relief

    @property
    def may_be_killed(self) -> bool:
        """True if it has not been killed yet, even if it is going to be."""
        return not self.reason or self.kill_at is not None

    @property
    def deadline(self) -> float:
        """Time when it is to be started, or killed."""
        if self.wants_start:
            return self.start_at
        return math.inf if self.kill_at is None else self.kill_at

    # --- its process --------------------------------------------------------------------------------------

    def started(self, pid: int, now: float) -> None:
        """A new process is up: serials, generations and specs begin anew."""
        self.move(SlotCause.READY)
        self.pid, self.heard = pid, now
        self.serial = self.generation = 0
        self.specs.clear()
        self.spec_bytes = 0
        self.end = self._most
        self.reason = ""
        self.kill_at = None
        self.recalling = self.quiet = self.peeked = False

    def ended(self, start_at: float, *, failed: bool = False) -> None:
        """Its process is gone, or could not be started; the next one starts at `start_at`."""
        self.failures += failed
        self.move(SlotCause.EXIT)
        self.pid = 0
        self.reason = ""
        self.kill_at = None
        self.recalling = self.quiet = self.peeked = self.refilled = False
        self.progress = None
        self.has_submitted = False
        self.due = ""
        self.start_at = start_at

    def kill(self, reason: str, at: float | None = None) -> None:
        """It is killed now, or at this time if its task has not returned by then; "": it is not."""
        self.reason, self.kill_at = reason, at

    def asked(self) -> None:
        self.has_submitted = True

    # --- its tasks ----------------------------------------------------------------------------------------

    def hand(self, pieces: list[Piece], now: float, limit: float = 0.0) -> int:
        """Note tasks as handed over; return the serial of the first.

        Args:
            pieces: The tasks.
            now: The time.
            limit: Hard limit of the only task among them in seconds, 0 if none has one.
        """
        if not self.count:
            self.heard = now
            self.quiet = self.peeked = False
        if limit:
            self.kill_at = now + limit
        first = self.serial
        for piece in pieces:
            size = piece.high - piece.low
            piece.first = self.serial
            self.serial += size
            self.count += size
            self.work[piece.run.spec] = self.work.get(piece.run.spec, 0) + size
            self.pieces.append(piece)
        self.refilled = True
        if self.serial >= self.end:
            self.due = TASKS
            self.move(SlotCause.RETIRE)
        return first

    def recall(self, *, silent: bool = True) -> int:
        """Every unstarted task is taken back, since it is silent or another slot is idle.

        Returns:
            The generation of its tickets from now on.
        """
        self.recalling, self.quiet = True, silent
        self.refilled = False
        self.generation = (self.generation + 1) % GENERATIONS
        return self.generation

    def recalled(self, count: int) -> list[Piece]:
        """A recall has found `count` tasks; returns them, oldest first."""
        self.recalling = False
        self.end += count
        taken = self.take_back(count)
        if not self.count:
            self.quiet, self.kill_at = False, None
        return taken

    def peek(self) -> None:
        self.peeked = True

    def finished(self, results: SlotResults, worker: str, now: float) -> tuple[list[DoneRun], list[Failed]]:
        """Take in a report; return what it says of which tasks, nothing if all of it is known."""
        done, failed = self.take_report(results, worker)
        if done or failed:
            self.heard = now
            self.quiet = self.peeked = False
            self.failures = 0
            if not self.count:
                self.kill_at = None
        return done, failed


def exit_text(exited: SlotExited, kind: str, spec: Spec) -> str:
    if kind == "hard_timeout":
        return f"killed after its hard_timeout of {spec.hard_timeout:g} s"
    text = how_ended(exited)
    return f"{text}; last output: {exited.log[-MAX_LOG:]}" if exited.log else text


def how_ended(exited: SlotExited) -> str:
    """Return the end of a slot's process in words."""
    if exited.oom:
        return "killed for lack of memory"
    if exited.status < 0:
        name = signal.strsignal(-exited.status) or "unknown"
        return f"its process ended with signal {-exited.status} ({name})"
    return f"its process ended with exit code {exited.status}"
