"""A simulated slot: its process, and the supervisor's handle of it (`taskmesh.pool.slots.slot_handle`).

It keeps to the contract that the pool machine relies on: one ticket a task, taken before it starts; results
flushed when nothing is left to do or after 2 ms; an outbox that can be read at any time; at its end all that
it had sent, then the exit with the tickets that nobody took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from taskmesh.core import events as ev
from taskmesh.messages.runs import FAILURE, LaneRun, Value
from taskmesh.messages.slot_messages import SlotFailure, SlotProgress, SlotResults, SlotSegment, SlotTasks
from tests.simulation.audit import Violation
from tests.simulation.setting import Setting
from tests.simulation.workload import Act, Plan

FLUSH_AFTER = 0.002
CLEAN_UP = 0.1
"""Seconds that a cancelled task needs to return."""
GIVEN_UP = 5.0
"""Seconds after which a cancelled task that looks at `cancelled` is left to its thread."""
CHILDREN = 1.0
"""Seconds that a task may wait for tasks of its own."""


@dataclass(slots=True)
class Item:
    """One task in the slot's queue."""

    serial: int
    plan: Plan
    attempt: int
    returns: int
    handed: dict[int, Value]

    @property
    def is_superseded(self) -> bool:
        """True if an outcome that it needs is gone: its hub needs no outcome of it any more."""
        return self.plan.when != FAILURE and len(self.handed) < len(set(self.plan.needs))


@dataclass(slots=True)
class OpenRun:
    """One SlotTasks message, as far as it is not done."""

    generation: int
    items: deque[Item]


class SlotProcess:
    """One life of one slot. `tell` takes its events, in order; `clock` is its machine's; `fall`: its pool's.

    `pool`: its pool's process.

    Attributes:
        mates: the slots of its process, which die together; it is one of them.
        alive: the process is there. buried: its end has been told. paused: it is stopped by a signal.
        most: the number of tasks that it may run; 0 for any.
    """

    def __init__(
        self,
        slot: int,
        world: Setting,
        tell: Callable[[object], None],
        clock: Callable[[], float],
        fall: Callable[[], None],
        pool: str,
    ) -> None:
        self.slot = slot
        self.mates = [self]
        self.is_thread = False
        self._pool = pool
        self.alive = True
        self.buried = False
        self.paused = False
        self._world = world
        self._tell = tell
        self._clock = clock
        self._fall = fall
        self._tickets: deque[int] = deque()
        self._held: int | None = None
        self._inbound: deque[OpenRun] = deque()
        self._queue: deque[OpenRun] = deque()
        self._running: Item | None = None
        self._over = False
        self._unsent: list[tuple[Item, bytes | SlotFailure]] = []
        self._socket: deque[object] = deque()
        self._due = 0.0
        self._asking: Item | None = None
        self.most = 0
        self._started = 0

    # --- what the supervisor does -------------------------------------------------------------------------

    def hand_over(self, message: SlotTasks) -> None:
        """Writes the tickets at once; the message takes its time."""
        items: deque[Item] = deque()
        serial = message.first
        for run in message.runs:
            for item in self._items(run, serial):
                items.append(item)
                serial += 1
        self._tickets.extend([message.generation] * len(items))
        self._inbound.append(OpenRun(message.generation, items))
        self._world.timetable.after(0.00002 + 0.0001 * self._world.chance.random(), self._came)

    def _items(self, run: LaneRun, serial: int) -> list[Item]:
        of_task = self._world.workload.of_task
        handed = {value.seq: value for value in run.values}
        needs = run.needs or [[]] * len(run.payloads)
        return [
            Item(
                serial + index,
                of_task(run.client, run.seqs[index], payload),
                run.attempt,
                run.returns,
                {seq: handed[seq] for seq in needs[index] or () if seq in handed},
            )
            for index, payload in enumerate(run.payloads)
        ]

    def recall(self) -> None:
        """Reads every ticket that is left."""
        if not self.buried:
            count = len(self._tickets)
            self._tickets.clear()
            self._tell(ev.SlotRecalled(self.slot, count))

    def peek(self) -> None:
        """Reads the socket, then what stands in the outbox."""
        if self._unsent and not self.buried:
            self._read_all()
            self._tell(ev.SlotFinished(self.slot, self._results()))

    def answered(self, *, granted: bool) -> None:
        """Whether its task has a place for tasks of its own: it waits for them then, or runs them itself."""
        item, self._asking = self._asking, None
        if item is not None and self._running is item:
            seconds = CHILDREN * self._world.chance.random() if granted else 0.0
            self._world.audit.faults["place given" if granted else "place refused", "slot"] += 1
            self._world.timetable.after(item.plan.seconds + seconds, self._finish, item)

    def cancel(self, serial: int) -> None:
        """Half of all tasks look at `cancelled`, and most of these clean up and return."""
        item = self._running
        if self.is_thread:
            wait = 0.0 if serial % 2 else GIVEN_UP
            if item is not None and item.serial == serial:
                self._world.timetable.after(wait, self._give_up, item)
        elif serial % 2:
            self.end(-9)
        elif serial % 8 and item is not None and item.serial == serial:
            self._world.timetable.after(CLEAN_UP, self._finish, item)

    def _give_up(self, item: Item) -> None:
        """The slot goes on without a task that was cancelled."""
        if self.alive and not self.paused and self._running is item:
            self._running = None
            self._unsent.append((item, SlotFailure(item.serial, "exception", "TaskMeshError", "cancelled")))
            self._work()

    def end(self, status: int, *, oom: bool = False, lose: bool = False) -> None:
        """The process dies now, with all its slots; the supervisor learns of it a little later."""
        if not self.alive:
            return
        mates, delay = self.mates, 0.003 * self._world.chance.random()
        suspects = sum(mate._running is not None for mate in mates)
        for mate in mates:
            mate._dies(lose=lose, spared=suspects > 1)
        self._world.timetable.after(delay, self._bury, mates, status, oom, suspects)

    def stop(self) -> None:
        """It is told to end, and has nothing to do; its process goes on if it has others."""
        mates, self.mates = self.mates, [self]
        mates.remove(self)
        self.end(0)

    def _dies(self, *, lose: bool, spared: bool) -> None:
        """Dies with its process; `spared`: nobody knows whose fault it is."""
        self.alive = False
        if self._running is not None:
            self._world.audit.died(self._running.plan, self._running.attempt, spared=spared)
            if lose:
                self._unsent.clear()

    def _bury(self, mates: list[SlotProcess], status: int, oom: bool, suspects: int) -> None:
        for mate in mates:
            mate._read_all()
            if mate._unsent:
                mate._tell(ev.SlotFinished(mate.slot, mate._results()))
        for mate in mates:
            mate.buried = True
            left = len(mate._tickets)
            mate._tell(ev.SlotExited(mate.slot, left, status, oom, suspects=max(1, suspects)))

    def vanish(self) -> None:
        """Dies with its supervisor: nobody is told."""
        self.alive = False
        self._tell = _nobody

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self.paused = False
        if not self.alive:
            return
        if self._over and self._running is not None:
            self._finish(self._running)
        elif self._running is None:
            self._work()

    # --- what the slot does -------------------------------------------------------------------------------

    def _came(self) -> None:
        if not self.alive:
            return
        self._queue.append(self._inbound.popleft())
        if self._running is None and not self.paused:
            self._due = self._world.timetable.now + FLUSH_AFTER
            self._work()

    def _work(self) -> None:
        """Starts tasks until one takes time or nothing is left."""
        while self._queue and self.alive:
            batch = self._queue[0]
            if not batch.items or not self._take(batch.generation):
                self._queue.popleft()
                continue
            item = batch.items.popleft()
            self._started += 1
            if self.most and self._started > self.most:
                raise Violation(f"slot {self.slot} of {self._pool} runs more than {self.most} tasks")
            self._world.audit.started(
                item.plan, item.attempt, item.returns, self._pool, self._world.timetable.now
            )
            if item.plan.upstream and not item.is_superseded:
                self._world.audit.handed(item.plan, item.handed)
            self._running = item
            self._over = False
            if item.plan.seconds == 0.0 and item.plan.act is Act.OK:
                self._done(item)
                continue
            self._begin(item)
            return
        if self.alive:
            self._flush()

    def _take(self, generation: int) -> bool:
        got, self._held = self._held, None
        if got is None:
            if not self._tickets:
                return False
            got = self._tickets.popleft()
        if got != generation:
            self._held = got
            return False
        return True

    def _begin(self, item: Item) -> None:
        plan, chance = item.plan, self._world.chance
        misbehaves = plan.act not in (Act.OK, Act.FLAKY, Act.FAILS, Act.BAD) and (
            plan.act in (Act.POISON, Act.HOG, Act.HANGS) or plan.runs <= plan.times
        )
        seconds = plan.seconds
        if plan.act is Act.PLAGUE:
            self._world.timetable.after(seconds, self._take_pool, item)
            return
        if misbehaves and plan.act in (Act.HANGS, Act.STALLS):
            return
        if misbehaves:
            oom = plan.act in (Act.HOG, Act.GREEDY)
            self._world.timetable.after(seconds, self._die, item, oom)
            return
        if seconds > 0.02 and chance.random() < 0.2:
            progress = ev.SlotReported(self.slot, SlotProgress(item.serial, 1.0, 2.0))
            self._world.timetable.after(seconds / 2, self._report, item, progress)
        if seconds > 0.0 and not plan.kind.spec.hard_timeout and chance.random() < self._world.parents:
            self._asking = item
            self._tell(ev.SlotAsked(self.slot, item.serial))
            return
        self._world.timetable.after(seconds, self._finish, item)

    def _die(self, item: Item, oom: bool) -> None:
        if self.alive and self._running is item:
            lose = self._world.chance.random() < 0.3 and not self._world.calm
            if oom:
                self._world.audit.faults["oom", "slot"] += 1
            self.end(-9 if oom else -11, oom=oom, lose=lose)

    def _take_pool(self, item: Item) -> None:
        if self.alive and self._running is item:
            self._fall()

    def _report(self, item: Item, report: ev.SlotReported) -> None:
        if self.alive and self._running is item and not self.paused:
            self._tell(report)

    def _finish(self, item: Item) -> None:
        if not self.alive or self._running is not item:
            return
        self._over = True
        if self.paused:
            return
        self._done(item)
        if self._world.timetable.now > self._due:
            self._flush()
        self._work()

    def _done(self, item: Item) -> None:
        self._running = None
        self._unsent.append((item, self._outcome(item)))

    def _outcome(self, item: Item) -> bytes | SlotFailure:
        plan = item.plan
        if item.is_superseded:
            return SlotFailure(item.serial, "argument", "SerializationError", "an outcome is gone")
        if plan.act is Act.BAD:
            return SlotFailure(item.serial, plan.bad_kind, "TypeError", "cannot be rebuilt")
        if plan.act is Act.FAILS or (plan.act is Act.FLAKY and plan.runs <= plan.times):
            kind = "timeout" if plan.seq % 4 == 0 else "exception"
            return SlotFailure(
                item.serial, kind, "ValueError", "as planned", "Traceback", b"p", retryable=True
            )
        plan.successes += 1
        return plan.result

    # --- results ------------------------------------------------------------------------------------------

    def _results(self) -> SlotResults:
        """What is unsent, as one report."""
        done: list[SlotSegment] = []
        failed: list[SlotFailure] = []
        previous: Item | None = None
        for item, outcome in self._unsent:
            if isinstance(outcome, SlotFailure):
                failed.append(outcome)
                previous = None
                continue
            same = previous is not None and previous.plan.kind is item.plan.kind
            if same and previous is not None and previous.serial + 1 == item.serial:
                done[-1].payloads.append(outcome)
                done[-1].elapsed += item.plan.seconds + 1e-6
            else:
                done.append(SlotSegment(item.serial, [outcome], item.plan.seconds + 1e-6))
            previous = item
        return SlotResults(done, failed, self._clock())

    def _flush(self) -> None:
        self._due = self._world.timetable.now + FLUSH_AFTER
        if not self._unsent:
            return
        self._socket.append(ev.SlotFinished(self.slot, self._results()))
        self._unsent = []
        delay = 0.00002 + 0.0001 * self._world.chance.random()
        self._world.timetable.after(delay, self._readable)

    def _readable(self) -> None:
        if self._socket:
            self._tell(self._socket.popleft())

    def _read_all(self) -> None:
        while self._socket:
            self._tell(self._socket.popleft())


def _nobody(event: object) -> None:
    """Takes the events of a slot whose supervisor is gone."""
