"""Slots that are calls in the thread of an inline mesh: one task after the other, by a real runner each.

A runner believes to be alone in its process. So what a process has one of is the slot's while its task runs,
and the program's again afterwards: the sources of the running task, the current meshes, the middleware, the
loop of coroutines, and the handlers of logs.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final, Protocol

import msgspec

from taskmesh import context, middleware
from taskmesh.client import current_mesh
from taskmesh.client.client import MeshDriver
from taskmesh.core.events import SlotAsked, SlotExited, SlotFinished, SlotReady, SlotRecalled, SlotReported
from taskmesh.messages import frames
from taskmesh.messages.runs import LaneRun, Spec
from taskmesh.messages.slot_messages import FromSlot, SlotResults, SlotTasks
from taskmesh.pool.slots import coroutines, nested
from taskmesh.pool.slots.messages import PermitReply
from taskmesh.pool.slots.outbox import OutboxWriter
from taskmesh.pool.slots.runner import SlotEnds, TaskRunner, install
from taskmesh.pool.slots.soft_timeout import SoftTimeout
from taskmesh.pool.slots.streams import Streams
from taskmesh.pool.slots.tickets import TicketPipe
from taskmesh.serialize import namespaces

KILLED: Final = -9
BEFORE: Final = "its slot was killed before it began"
AFTER: Final = "its slot was killed after it ended"
POOL: Final = "its pool died"
_ROOT: Final = logging.getLogger()
_LISTS: Final[tuple[list[Any], ...]] = (
    context._sources,
    nested._sources,
    current_mesh._everywhere,
    middleware._installed,
    middleware._values,
    middleware._stops,
    coroutines._loops,
    namespaces._running,
    _ROOT.handlers,
)
"""Things of which a process has one."""


class InlineStreams(Streams):
    """The streams of slots that have none of their own: what tasks print is printed here."""

    def __init__(self) -> None:
        """Leave the program's as they are."""

    def mend(self) -> None:
        """Do nothing: they are the program's."""

    def call_and_flush(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


class InlineSlot:
    """One slot: the supervisor's handle of it, and its runner's link to the supervisor.

    Args:
        slot: its number.
        slots: those of its pool.

    Attributes:
        queue: its tasks that have not started, each with serial and generation.
        specs: those that its runner does not have yet.
        is_busy: its task runs, or waits for tasks of its own.
        is_interrupted: its task has ended by Ctrl-C, which is meant for the program.
        status: how it is to end when its task has returned; None while it goes on.
        reply: the pool's answer to its task, which wants to submit tasks of its own.
    """

    def __init__(self, slot: int, slots: InlineSlots) -> None:
        self.slot = slot
        self.queue: deque[tuple[int, int, LaneRun]] = deque()
        self.specs: list[tuple[int, Spec | None]] = []
        self.is_busy = self.is_interrupted = False
        self.status: int | None = None
        self.reply: PermitReply | None = None
        self._slots = slots
        self._outbox = OutboxWriter(-1)
        self._lists: list[list[Any]] = [[] for _ in _LISTS]
        self._level = _ROOT.level
        with self._as_process():
            ends = SlotEnds(slot, slots.tickets.reader, self._outbox)
            self._limit = SoftTimeout()
            self._runner = TaskRunner(self, ends, InlineStreams(), self._limit)
            self._runner.children.place.driver = slots.driver
            install(lambda: self._runner)
            Context().run(self._runner.middleware.start, slots.middleware)

    @contextmanager
    def _as_process(self) -> Iterator[None]:
        """Have what a process has one of be the slot's within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for one, (index, kept) in zip(_LISTS, enumerate(self._lists), strict=True):
            self._lists[index], one[:] = one[:], kept
        if self._level != _ROOT.level:
            level, self._level = self._level, _ROOT.level
            _ROOT.setLevel(level)

    def run(self) -> None:
        """Run the next task, from its ticket to its outcome."""
        serial, generation, run = self.queue.popleft()
        specs, self.specs = self.specs, []
        self._slots.tickets.write(1, generation)
        self.is_busy = True
        try:
            with self._as_process():
                Context().run(self._run, SlotTasks(serial, generation, specs, [run]))
        finally:
            self.is_busy = False

    def _run(self, message: SlotTasks) -> None:
        self._runner.after_wait()
        self._runner.run(message)
        self._runner.before_wait()

    def cancel(self, serial: int) -> bool:
        """Mark the running task as cancelled; return False if it has not looked for that."""
        cancellation = self._outbox._cancellation
        cancellation[1] = serial + 1
        return self.is_busy and cancellation[0] == serial + 1

    def close(self) -> None:
        """End what the slot's tasks had in common: their client, and the loop of coroutines."""
        with self._as_process():
            self._limit.close()
            while coroutines._loops:
                coroutines._loops.pop().close()
            self._runner.children.place.close()
            middleware.stop()

    # --- the runner's link ----------------------------------------------------------------------------------

    def send(self, kind: int, message: FromSlot) -> None:
        if self.status is not None:  # it is killed: nothing of it comes
            return
        if isinstance(message, SlotResults):
            message.sent = self._slots.driver.now
            self.is_interrupted = any(each.type_name == "KeyboardInterrupt" for each in message.failed)
            self._slots.events.append(SlotFinished(self.slot, message))
        else:
            self._slots.events.append(SlotReported(self.slot, message))

    def ask(self, serial: int, *, lends: bool = True) -> PermitReply:
        self.reply = None
        self._slots.events.append(SlotAsked(self.slot, serial, lends))
        self._slots.driver.settle()
        return self.reply or PermitReply(granted=False, address="", trouble="its pool does not answer")


class Fate(Protocol):
    """Decides what happens to tasks and messages: `taskmesh.testing.explore`."""

    def choose(self, ready: Sequence[InlineSlot]) -> InlineSlot:
        """Choose the slot whose task is next."""
        ...

    def of(self, name: str, run: LaneRun) -> str:
        """Return what happens: BEFORE, AFTER or POOL, or nothing."""
        ...

    def carry(self, message: object) -> Sequence[float]:
        """Return after how many seconds a message arrives, each time that it does."""
        ...


class SlotDriver(MeshDriver):
    """The driver of an inline mesh, as its slots use it.

    Attributes:
        fate: decides what happens to tasks and messages; None if nothing does.
    """

    fate: Fate | None = None

    @abstractmethod
    def settle(self) -> None:
        """Have client, hub and pool take in what has come; no task runs."""

    @abstractmethod
    def lose_pool(self) -> None:
        """Have the pool die with its slots, and another one come in its place."""


class InlineSlots:
    """A pool's slots; see `taskmesh.pool.shell.Slots`.

    Args:
        driver: of the mesh.
        events: the pool machine's.
        middleware: references of the slots' middleware.

    Attributes:
        running: the slot whose task this thread runs; the innermost one, while tasks wait for others.
        tickets: the pipe from which runners take a ticket for each task.
    """

    def __init__(self, driver: SlotDriver, events: deque[object], middleware: Sequence[str]) -> None:
        self.driver = driver
        self.events = events
        self.middleware = middleware
        self.running: InlineSlot | None = None
        self.tickets = TicketPipe()
        self._slots: dict[int, InlineSlot] = {}
        self._names: dict[int, str] = {}

    def run_one(self) -> bool:
        """Run one task; return False if none waits in a slot that is free."""
        ready = [slot for slot in self._slots.values() if slot.queue and not slot.is_busy]
        if not ready:
            return False
        fate = self.driver.fate
        slot, what = ready[0], ""
        if fate is not None:
            slot = fate.choose(ready)
            run = slot.queue[0][2]
            what = fate.of(self._names.get(run.spec, ""), run)
        if what == BEFORE:
            slot.queue.popleft()  # its ticket is taken
        else:
            self._run(slot, is_lost=bool(what))
        if what == POOL and self.running is None:
            self.driver.lose_pool()
        elif what or slot.status is not None:
            self._exit(slot, KILLED if what else slot.status or 0)
        return True

    def _run(self, slot: InlineSlot, *, is_lost: bool) -> None:
        """Run a slot's next task; nobody hears of what becomes of it if it is lost."""
        outer, self.running = self.running, slot
        if is_lost:
            slot.status = KILLED
        try:
            slot.run()
        finally:
            self.running = outer
        if slot.is_interrupted:
            slot.is_interrupted = False
            raise KeyboardInterrupt

    def _exit(self, slot: InlineSlot, status: int) -> None:
        del self._slots[slot.slot]
        slot.close()
        self.events.append(SlotExited(slot.slot, len(slot.queue), status))

    def _end(self, number: int, status: int) -> None:
        """End a slot: now, or when its task has returned."""
        slot = self._slots.get(number)
        if slot is not None:
            slot.status = status
            if not slot.is_busy:
                self._exit(slot, status)

    # --- the pool's actions ---------------------------------------------------------------------------------

    def start(self, slot: int, number: int | None = None) -> None:
        self._slots[slot] = InlineSlot(slot, self)
        self.events.append(SlotReady(slot, os.getpid()))

    def hand_over(self, slot: int, message: SlotTasks) -> None:
        """Give tasks to a slot, as they come over its socket: with nothing of the pool's own."""
        body, blobs = frames.encode_local(message)
        message = frames.to_slot.decode_local(body, [os.dup(blob.to_fd()) for blob in blobs])
        found, serial = self._slots[slot], message.first
        found.specs += message.specs
        self._names.update((number, spec.name) for number, spec in message.specs if spec is not None)
        for run in message.runs:
            for index in range(len(run.seqs)):
                found.queue.append((serial, message.generation, _single(run, index)))
                serial += 1

    def recall(self, slot: int, generation: int) -> None:
        found = self._slots.get(slot)
        if found is not None:
            self.events.append(SlotRecalled(slot, len(found.queue)))
            found.queue.clear()

    def reply(self, slot: int, reply: PermitReply) -> None:
        found = self._slots.get(slot)
        if found is not None:
            found.reply = reply

    def peek(self, slot: int) -> None:
        """Do nothing: what has ended has been reported."""

    def ask_stack(self, slot: int, serial: int) -> None:
        """Do nothing: the task that runs is below on this thread's own stack."""

    def cancel(self, slot: int, serial: int) -> None:
        found = self._slots.get(slot)
        if found is not None and not found.cancel(serial):
            self.kill(slot)

    def kill(self, slot: int) -> None:
        self._end(slot, KILLED)

    def stop(self, slot: int) -> None:
        self._end(slot, 0)

    def close(self, timeout: float = 0.0) -> None:
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        self.tickets.close()


def _single(run: LaneRun, index: int) -> LaneRun:
    """Return one task of a run as a run, so that others may come between: one may wait for them."""
    return msgspec.structs.replace(
        run,
        seqs=[run.seqs[index]],
        payloads=[run.payloads[index]],
        needs=run.needs[index : index + 1],
    )
