"""How a slot runs tasks: tickets, functions, results.

The loop over a run's tasks is the hottest code of the pool: it makes no object and calls no function of ours
per task.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Protocol

import msgspec

from taskmesh import context
from taskmesh.errors import LocalProtocolError, SerializationError, TaskTimeout
from taskmesh.ids import task_id, text_of
from taskmesh.pool import orders
from taskmesh.pool.coroutines import runnable
from taskmesh.pool.failure import failure_of
from taskmesh.pool.limits import TimeLimit
from taskmesh.pool.outbox import BREAK, DATA, FAILURE, OutboxWriter
from taskmesh.pool.tickets import ticket
from taskmesh.wire import code, payload
from taskmesh.wire.batches import CHUNK, LaneRun, Spec
from taskmesh.wire.slot_messages import (
    FromSlot,
    SlotFailure,
    SlotProgress,
    SlotResults,
    SlotSegment,
    SlotTasks,
)

_FLUSH_AFTER: Final = 0.002
_FLUSH_OFFSET: Final = DATA + (256 << 10)
_PROGRESS_EVERY: Final = 0.05
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_NO_TICKET: Final = b""
_UNKNOWN: Final = Spec(function=b"", name="")


class Link(Protocol):
    """The way back to the supervisor."""

    def send(self, kind: int, message: FromSlot) -> None:
        """Sends results or progress."""
        ...

    def close(self) -> None:
        """Closes the descriptor."""
        ...


class Executor:
    """Runs the tasks of one slot and reports them."""

    def __init__(self, link: Link, tickets: int, outbox: OutboxWriter) -> None:
        self._link = link
        self._tickets = tickets
        self._outbox = outbox
        self._specs: dict[int, Spec] = {}
        self._functions: dict[int, Callable[..., Any]] = {}
        self._held = _NO_TICKET  # was read, and its message is still to come
        self._limit = TimeLimit()
        self.disowned = False
        # what is to be sent
        self._done: list[SlotSegment] = []
        self._failed: list[SlotFailure] = []
        self._results: list[payload.Payload] = []  # of the segment under way
        self._first = 0  # its first serial
        self._began = 0.0
        self._next = 0  # the serial that comes next
        self._due = 0.0
        self._idle = 0.0
        self._resting = time.monotonic()
        # what runs
        self._run: LaneRun | None = None
        self._run_first = 0
        self._index = 0
        self._stage = ""
        self._deadline: float | None = None
        self._progress_due = 0.0
        context.install(self._current)

    # --- messages ---

    def run(self, message: SlotTasks) -> None:
        """Runs a message's tasks, as far as they are not taken back meanwhile."""
        for number, spec in message.specs:
            self._specs[number] = spec
            self._functions.pop(number, None)
        mine = ticket(message.generation)
        if self._held not in (_NO_TICKET, mine):
            return  # taken back: the ticket in hand is of a later generation
        first = message.first
        for run in message.runs:
            if not self._take(mine):
                break
            self._begin(run, first)
            if not self._perform(run, mine):
                break
            first += len(run.seqs)
        self._run = None

    def rest(self) -> None:
        """Called before a wait for work: sends what is finished."""
        self.flush()
        with contextlib.suppress(Exception):  # what a task has put there may fail as it likes
            sys.stdout.flush()
        self._resting = time.monotonic()

    def resume(self) -> None:
        """Called when work has come."""
        now = self._began = time.monotonic()
        self._idle += now - self._resting
        self._due = now + _FLUSH_AFTER

    def _take(self, mine: bytes) -> bool:
        """Takes the next task's ticket; False when the task has been taken back."""
        got, self._held = self._held, _NO_TICKET
        if not got:
            try:
                got = os.read(self._tickets, len(mine))
            except BlockingIOError:
                return False
        if got != mine:
            self._held = got
            return False
        return True

    def _begin(self, run: LaneRun, first: int) -> None:
        """Begins a segment with the run's first task, whose ticket we have."""
        if first != self._next:
            self.flush()
            self._next = first
        now = time.monotonic()
        self._close_segment(now)
        if not self._outbox.index:
            self._outbox.reset(first, now)
        self._first = self._run_first = first
        self._run = run

    def _perform(self, run: LaneRun, mine: bytes) -> bool:
        """Runs a run's tasks; False when the rest of them has been taken back."""
        self._index = 0
        try:
            spec = self._specs[run.spec]
            function = self._functions.get(run.spec) or self._load(run.spec, spec)
        except BaseException as error:  # noqa: BLE001  an import may raise anything
            return self._refuse(run, mine, error)
        if spec.kind == CHUNK or spec.timeout > 0:
            return self._perform_guarded(run, spec, function, mine)
        return self._perform_calls(run, function, mine)

    def _load(self, number: int, spec: Spec) -> Callable[..., Any]:
        function = self._functions[number] = runnable(code.load_function(spec.function))
        return function

    def _refuse(self, run: LaneRun, mine: bytes, error: BaseException) -> bool:
        """Fails every task of a run whose function is not to be had."""
        while True:
            self._fail("function", error)
            self._index += 1
            if self._index == len(run.payloads):
                return True
            if not self._take(mine):
                return False

    # --- tasks ---

    def _perform_calls(self, run: LaneRun, function: Callable[..., Any], mine: bytes) -> bool:
        """Plain calls without a time limit."""
        payloads, last = run.payloads, len(run.payloads) - 1
        loads, dumps, read, monotonic = payload.loads, payload.dumps, os.read, time.monotonic
        tickets, size, outbox = self._tickets, len(mine), self._outbox
        index = 0
        flags = BREAK
        while True:
            try:
                stage = "argument"
                args, kwargs = loads(payloads[index])
                stage = "exception"
                result = function(*args, **kwargs)
                stage = "result"
                data = dumps(result)
                if not isinstance(data, bytes):
                    data.to_fd()
            except BaseException as error:  # noqa: BLE001  a task may raise anything
                self._fail(stage, error)
                flags = BREAK
            else:
                now = monotonic()
                self._results.append(data)
                if not isinstance(data, bytes) or not outbox.append(data, flags, now):
                    self._next = self._run_first + index + 1
                    self.flush()
                    flags = BREAK
                else:
                    flags = 0
                    if now > self._due or outbox.offset > _FLUSH_OFFSET:
                        self._next = self._run_first + index + 1
                        self.flush()
                        flags = BREAK
            if index == last:
                self._next = self._run_first + index + 1
                return True
            index += 1
            self._index = index
            try:
                got = read(tickets, size)
            except BlockingIOError:
                got = _NO_TICKET
            if got != mine:
                self._held = got
                self._next = self._run_first + index
                return False

    def _perform_guarded(self, run: LaneRun, spec: Spec, function: Callable[..., Any], mine: bytes) -> bool:
        """Map chunks, and calls with a time limit."""
        while True:
            data = run.payloads[self._index]
            self._limit.struck = False
            self._stage = "argument"
            try:
                if spec.kind == CHUNK:
                    out = self._chunk(spec, function, data)
                else:
                    self._deadline = time.monotonic() + spec.timeout
                    out = self._limit.call(spec.timeout, self._one, function, data)
                if not isinstance(out, bytes):
                    out.to_fd()
            except BaseException as error:  # noqa: BLE001  a task may raise anything
                self._fail(self._kind(error), error)
            else:
                self._report(out)
            self._deadline = None
            self._index += 1
            if self._index == len(run.payloads):
                return True
            if not self._take(mine):
                return False

    def _one(self, function: Callable[..., Any], data: payload.Payload) -> payload.Payload:
        """One call, from its payload to its result's."""
        args, kwargs = payload.loads(data)
        self._stage = "exception"
        result = function(*args, **kwargs)
        self._stage = "result"
        return payload.dumps(result)

    def _chunk(self, spec: Spec, function: Callable[..., Any], data: payload.Payload) -> payload.Payload:
        """Calls the function for each item, under the limit; one that fails does not stop the others."""
        values: list[Any] = []
        failures: dict[int, SlotFailure] = {}
        for i, item in enumerate(payload.loads_chunk(data)):
            value = None
            began = time.monotonic()
            self._limit.struck = False
            self._stage = "argument"
            try:
                if isinstance(item, SerializationError):
                    raise item
                self._stage = "exception"
                self._deadline = began + spec.timeout if spec.timeout > 0 else None
                value = self._limit.call(spec.timeout, function, *item)
            except BaseException as error:  # noqa: BLE001  a task may raise anything
                elapsed = time.monotonic() - began
                failures[i] = failure_of(i, self._kind(error), error, spec, elapsed)
            if self.disowned:
                raise LocalProtocolError("a child that a task has forked is no slot")
            values.append(value)
        self._stage = "result"
        return payload.dumps_chunk_result(values, failures, where=spec.name)

    def _kind(self, error: BaseException) -> str:
        return "timeout" if isinstance(error, TaskTimeout) and self._limit.struck else self._stage

    # --- reports ---

    def _report(self, data: payload.Payload) -> None:
        """Adds a result to what is to be sent."""
        now = time.monotonic()
        flags = 0 if self._results else BREAK
        self._results.append(data)
        self._next = self._run_first + self._index + 1
        if not isinstance(data, bytes) or not self._outbox.append(data, flags, now) or now > self._due:
            self.flush()

    def _fail(self, kind: str, error: BaseException) -> None:
        """Adds a failure of the running task to what is to be sent."""
        now = time.monotonic()
        self._next = self._run_first + self._index + 1
        began = self._close_segment(now)
        spec = self._specs.get(self._run.spec, _UNKNOWN) if self._run else _UNKNOWN
        failure = failure_of(self._next - 1, kind, error, spec, now - began)
        self._failed.append(failure)
        self._first = self._next
        self._began = now = time.monotonic()
        if not self._outbox.append(_ENCODE(failure), FAILURE, now) or now > self._due:
            self.flush()

    def _close_segment(self, now: float) -> float:
        """Ends the segment under way; returns when the last of its tasks ended, or it began."""
        began = self._began
        if self._results:
            self._done.append(SlotSegment(self._first, self._results, now - began))
            self._results = []
            began = now
        self._began = now
        return began

    def flush(self) -> None:
        """Sends what is finished."""
        now = time.monotonic()
        self._close_segment(now)
        self._first = self._next
        if self._done or self._failed:
            done, self._done = self._done, []
            failed, self._failed = self._failed, []
            idle, self._idle = self._idle, 0.0
            with self._limit.held_off():
                self._link.send(orders.RESULTS, SlotResults(done, failed, now, idle))
            now = self._began = time.monotonic()
            self._outbox.reset(self._next, now)
        self._due = now + _FLUSH_AFTER

    # --- the running task ---

    def _current(self) -> context.TaskContext | None:
        """What `current_task()` gives: made when it is asked for."""
        run = self._run
        if run is None:
            return None
        spec = self._specs[run.spec]
        return context.TaskContext(
            id=text_of(task_id(run.client, run.seqs[self._index])),
            name=spec.name,
            attempt=run.attempt - run.returns,
            queue=spec.queue,
            deadline=self._deadline,
            report=self._tell_progress,
        )

    def _tell_progress(self, done: float, total: float) -> None:
        """Sends progress, at most every 50 ms: a tight loop must not drown the supervisor."""
        now = time.monotonic()
        if now < self._progress_due and not (total and done >= total):
            return
        self._progress_due = now + _PROGRESS_EVERY
        if not self.disowned:
            with self._limit.held_off():
                self._link.send(orders.PROGRESS, SlotProgress(self._run_first + self._index, done, total))

    def interrupted(self, signum: int, frame: FrameType | None) -> None:
        """SIGINT's handler: a task may get one, a frame that is being sent must not be torn."""
        if self._run is not None and not self._limit.is_held_off:
            raise KeyboardInterrupt

    def disown(self) -> None:
        """Called in a child that a task has forked: what is the slot's must stay the slot's alone."""
        self.disowned = True
        context.install(None)
        self._outbox.disown()
        self._link.close()
        with contextlib.suppress(OSError):
            os.close(self._tickets)
