"""A hub, pools with any number of slots, and clients, in time that is counted and not measured.

Machines are the real ones. What they do takes time here, as it does on a processor of their own: a loop that
is busy takes in what has come meanwhile, then acts. So rates, messages and waits of 64 slots show on any
machine, and are the same each time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.link.shell import SPELL, Machine
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run, Spec
from taskmesh.messages.slot_messages import SlotResults, SlotSegment, SlotTasks
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.settings import PoolSettings
from tests.core.rig import number_of

LINK = 100e-6
"""Seconds of a message on its way."""
PIPE = 30e-6
"""The same between a pool and its slots."""
MESSAGE, TASK = 20e-6, 0.7e-6
"""Seconds that a loop takes for a message, and for each task in it: the hub handles each task three times."""
PORTION = 1000
"""Tasks in a Submit."""
FLUSH = 0.002
"""Seconds after which a slot reports although more tasks wait."""


class Loop:
    """A loop with a machine: it is busy for as long as what it has to do takes."""

    def __init__(self, mesh: TimedMesh, machine: Machine, perform: Callable[[Any], None]) -> None:
        self.mesh = mesh
        self.machine = machine
        self.used = 0.0
        self._perform = perform
        self._inbox: deque[Any] = deque()
        self._free_at = 0.0
        self._turns_at: float | None = None

    def tell(self, event: object) -> None:
        self._inbox.append(event)
        self._wake(max(self.mesh.now, self._free_at))

    def _wake(self, when: float) -> None:
        if self._turns_at is None or when < self._turns_at:
            self._turns_at = when
            self.mesh.at(when, self._turn, when)

    def _turn(self, when: float) -> None:
        if when != self._turns_at:
            return
        self._turns_at = None
        now, busy = self.mesh.now, 0.0
        if not self._inbox:
            self._inbox.append(ev.Tick())
        while self._inbox and busy < SPELL:
            event = self._inbox.popleft()
            busy += cost(event)
            self.machine.take(event, now)
        actions = self.machine.act(now)
        busy += sum(map(cost, actions))
        self.used += busy
        self._free_at = now + busy
        self.mesh.at(self._free_at, self._finish, actions)

    def _finish(self, actions: list[Any]) -> None:
        for action in actions:
            self._perform(action)
        self._wake(self._free_at if self._inbox else max(self._free_at, self.machine.deadline + 1e-9))


def cost(what: Any) -> float:
    """Return the seconds that a loop takes for an event or an action."""
    message = getattr(what, "message", None) or getattr(what, "results", None)
    if message is None:
        return 0.0
    tasks = 0
    if isinstance(message, m.Submit | m.Tasks | SlotTasks):
        tasks = sum(len(run.seqs) for run in message.runs)
    elif isinstance(message, m.Results | m.Deliver):
        tasks = sum(len(run.seqs) for run in message.done)
    elif isinstance(message, SlotResults):
        tasks = sum(len(segment.payloads) for segment in message.done)
    return MESSAGE + TASK * tasks


class Slot:
    """A slot: it runs its tasks one after the other, and reports when it is idle, or every 2 ms."""

    def __init__(self, number: int, pool: Pool) -> None:
        self.number = number
        self.busy = 0.0
        self._pool = pool
        self._tasks: deque[tuple[int, float]] = deque()  # serial, seconds
        self._done: list[tuple[int, float]] = []
        self._reported = 0.0
        self._running = False

    def hand(self, message: SlotTasks) -> None:
        serial = message.first
        for run in message.runs:
            seconds = self._pool.mesh.seconds[run.spec]
            for _ in run.seqs:
                self._tasks.append((serial, seconds))
                serial += 1
        if not self._running:
            self._reported = self._pool.mesh.now
            self._go_on()

    def _go_on(self) -> None:
        """Run what is here until the next report is due; a recall may take the rest away until then."""
        mesh = self._pool.mesh
        took, count = 0.0, 0
        while count < len(self._tasks) and mesh.now + took < self._reported + FLUSH:
            took += self._tasks[count][1]
            count += 1
        if not count:
            self._running = False
            return
        self._running = True
        started = [self._tasks.popleft() for _ in range(count)]
        self.busy += took
        mesh.at(mesh.now + took, self._ended, started)

    def _ended(self, started: list[tuple[int, float]]) -> None:
        self._done += started
        mesh = self._pool.mesh
        if not self._tasks or mesh.now >= self._reported + FLUSH:
            self.peek()
        self._go_on()

    def peek(self) -> None:
        """Report what is done."""
        done, self._done = self._done, []
        mesh = self._pool.mesh
        self._reported = mesh.now
        segments: list[SlotSegment] = []
        for serial, seconds in done:
            if segments and segments[-1].first + len(segments[-1].payloads) == serial:
                segments[-1].payloads.append(b"r")
                segments[-1].elapsed += seconds
            else:
                segments.append(SlotSegment(serial, [b"r"], seconds))
        if segments:
            report = SlotResults(segments, [], mesh.now)
            mesh.at(mesh.now + PIPE, self._pool.loop.tell, ev.SlotFinished(self.number, report))

    def recall(self) -> None:
        """Give back what is not started."""
        count = len(self._tasks)
        self._tasks.clear()
        mesh = self._pool.mesh
        mesh.at(mesh.now + PIPE, self._pool.loop.tell, ev.SlotRecalled(self.number, count))


class Pool:
    """A pool and its slots."""

    def __init__(self, mesh: TimedMesh, name: str, slots: int) -> None:
        self.mesh = mesh
        self.slots = [Slot(number, self) for number in range(slots)]
        self.loop = Loop(mesh, PoolMachine(PoolSettings(name, 1, slots), mesh.now), self._perform)
        self.loop.tell(ev.Tick())

    def _perform(self, action: object) -> None:
        mesh = self.mesh
        match action:
            case act.SendHub(message=message) | act.SendBeat(message=message):
                mesh.at(mesh.now + LINK, mesh.hub.tell, ev.FromPool(message))
            case act.StartSlot(slot=slot):
                self.loop.tell(ev.SlotReady(slot, 100 + slot))
            case act.HandOver(slot=slot, message=message):
                mesh.at(mesh.now + PIPE, self.slots[slot].hand, message)
            case act.PeekSlot(slot=slot):
                self.slots[slot].peek()
            case act.RecallSlot(slot=slot):
                self.slots[slot].recall()


class TimedMesh:
    """The mesh.

    Attributes:
        now: the time.
        seconds: those that a task of a spec takes, by its number.
        ended: of each client, the times at which its outcomes came.
        counts: of messages, runs, and tasks that the hub has sent to pools.
    """

    def __init__(self, *slots: int) -> None:
        self.now = 100.0
        self.seconds: dict[int, float] = {}
        self.ended: dict[int, list[float]] = {}
        self.counts: Counter[str] = Counter()
        self._steps: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = itertools.count()
        self._submits: Counter[int] = Counter()
        self._next: Counter[int] = Counter()
        self.hub = Loop(self, HubMachine(HubSettings(1), self.now), self._perform)
        self.pools = [Pool(self, f"p{number}", count) for number, count in enumerate(slots)]
        self.until(self.now + 3.0)

    def at(self, when: float, what: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._steps, (when, next(self._number), what, arguments))

    def until(self, when: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until a moment, or until something has happened."""
        while self._steps and self._steps[0][0] <= when and not stop():
            self.now, _, what, arguments = heapq.heappop(self._steps)
            what(*arguments)
        self.now = max(self.now, when) if not stop() else self.now

    def client(self, number: int) -> None:
        self.ended[number] = []
        self.hub.tell(ev.FromClient(number, m.ClientHello(number, 0)))

    def submit(self, client: int, count: int, one: Spec, seconds: float, *, pace: float = 5e-6) -> None:
        """Have a client submit tasks that take some seconds, in portions; it takes `pace` for each."""
        self.seconds[number_of(one)] = seconds
        when = self.now
        while count:
            size = min(count, PORTION)
            count -= size
            seqs = list(range(self._next[client] + 1, self._next[client] + size + 1))
            self._next[client] += size
            self._submits[client] += 1
            run = Run(number_of(one), 0, seqs, [b"x"] * size)
            message = m.Submit(self._submits[client], [(number_of(one), one)], [run])
            when += pace * size
            self.at(when + LINK, self.hub.tell, ev.FromClient(client, message))

    def finished(self, client: int, count: int) -> bool:
        return len(self.ended[client]) >= count

    def _perform(self, action: object) -> None:
        match action:
            case act.PushTasks(session=session, message=message):
                self.counts["messages"] += 1
                self.counts["runs"] += len(message.runs)
                self.counts["sent"] += sum(len(run.seqs) for run in message.runs)
                self.at(self.now + LINK, self._pool(session).loop.tell, ev.FromHub(message))
            case act.Publish(pool=name, message=message):
                self.counts[type(message).__name__] += 1
                for pool in self.pools:
                    if name in ("", pool.loop.machine.config.pool):  # type: ignore[attr-defined]
                        self.at(self.now + LINK, pool.loop.tell, ev.FromHub(message))
            case act.OpenLane(session=session):
                self.hub.tell(ev.LaneOpened(session, str(session)))
            case act.SendClient(client=client, message=m.Deliver() as deliver):
                self.counts["delivers"] += 1
                for run in deliver.done:
                    self.ended[client] += [self.now + LINK] * len(run.seqs)

    def _pool(self, session: int) -> Pool:
        return next(pool for pool in self.pools if pool.loop.machine.session == session)  # type: ignore[attr-defined]
