"""The runner of a slot's tasks: tickets, functions, calls.

The loop over a run's tasks is the hottest code of the pool: for a task with plain arguments
and a plain result it makes no object and calls none of our functions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple, cast
from zlib import crc32

import msgspec

from taskmesh import context
from taskmesh.core.ids import task_id, text_of
from taskmesh.errors import LocalProtocolError, SerializationError, TaskTimeout
from taskmesh.messages.runs import CALL, CHUNK, FIRING, PICKLE, SAFE, LaneRun, Spec
from taskmesh.messages.schedules import split_tick
from taskmesh.messages.slot_messages import SlotFailure, SlotTasks
from taskmesh.middleware import Call
from taskmesh.pool.slots import nested
from taskmesh.pool.slots.coroutines import runnable
from taskmesh.pool.slots.middleware import NO_CALL, SlotMiddleware
from taskmesh.pool.slots.nested import NestedTasks
from taskmesh.pool.slots.outbox import BREAK, OutboxWriter
from taskmesh.pool.slots.result_batch import FLUSH_OFFSET, ResultBatcher, SupervisorLink
from taskmesh.pool.slots.soft_timeout import TimeLimit
from taskmesh.pool.slots.streams import Streams
from taskmesh.pool.slots.task_log import TaskLog, TaskLogHandler
from taskmesh.pool.slots.tickets import ticket
from taskmesh.retry import verdict
from taskmesh.serialize import code, dependencies, payload, sources
from taskmesh.serialize.chunks import BadItem, snapshot
from taskmesh.serialize.exceptions import dumps_exception
from taskmesh.serialize.namespaces import Scope, enter
from taskmesh.serialize.values import FLAT, class_name
from taskmesh.shm.blob import Blob

MOMENT: Final = 0.001
"""Seconds of rest after which the streams are looked at again."""
MOST_WARNED: Final = 1_000
"""Warnings of clients that are remembered."""
_NO_TICKET: Final = b""
_UNKNOWN: Final = Spec(function=b"", name="")
_NONE: Final = payload.dumps(None)


class SlotEnds(NamedTuple):
    """The number of a slot, and its ends of what leads to its supervisor, beside the link."""

    slot: int
    tickets: int
    outbox: OutboxWriter


class TaskRunner:
    """Run the tasks of one slot.

    Args:
        link: to the supervisor.
        ends: of the slot.
        streams: the process's.
        limit: raises TaskTimeout in a task that runs too long.

    Attributes:
        is_forked_child: this process is a child that a task has forked, and no slot.
        middleware: the hooks around its tasks.
        log: what its tasks log.
        children: the tasks that the running one submits.
    """

    is_thread = False

    def __init__(self, link: SupervisorLink, ends: SlotEnds, streams: Streams, limit: TimeLimit) -> None:
        self._limit = limit
        self._batcher = ResultBatcher(link, ends.outbox, limit)
        self.middleware = SlotMiddleware(limit)
        self.children = NestedTasks(link, limit, self.middleware)
        self._tickets = ends.tickets
        self._streams = streams
        self._slot = ends.slot
        self._mended = False
        self._specs: dict[int, Spec] = {}
        self._functions: dict[int, tuple[Callable[..., Any], Scope, str]] = {}
        self._warned: set[tuple[int, str]] = set()
        self._held = _NO_TICKET  # was read, and its message is still to come
        self.is_forked_child = False
        self._depth = sys.getrecursionlimit()
        # what runs
        self._run: LaneRun | None = None
        self._first = 0  # the run's first serial
        self._index = 0
        self._stage = ""
        self._deadline: float | None = None
        self._tick: float | None = None
        self.log = TaskLog(self._serial, self._batcher.log)
        self._batcher.last_lines = self._last_words

    # --- messages and tickets ---

    def run(self, message: SlotTasks) -> None:
        """Run a message's tasks, except those that are taken back meanwhile."""
        for number, spec in message.specs:
            self._functions.pop(number, None)
            if spec is None:
                self._specs.pop(number, None)
            else:
                self._specs[number] = spec
        mine = ticket(message.generation)
        if self._held not in (_NO_TICKET, mine):
            return  # taken back: the ticket in hand is of a later generation
        first = message.first
        for run in message.runs:
            if not self._take(mine):
                break
            self._batcher.begin(first)
            self._run, self._first = run, first
            if not self._perform(run, mine):
                break
            first += len(run.seqs)
        with self.children.lock:
            self._run = None

    def before_wait(self) -> None:
        """Called before a wait for work: sends what is finished."""
        self._batcher.before_wait()
        self._mend()

    def _last_words(self) -> None:
        """Write out what tasks have printed, and say what was dropped of their logs.

        Their outcomes come next: an unended line would be taken for what the next task prints.
        """
        self._limit.block()
        try:
            sys.stdout.flush()
        except Exception:  # noqa: BLE001, S110  what a task has put there may fail as it likes
            pass
        finally:
            self._limit.unblock()
        self.log.budget.tell_dropped()

    def after_wait(self) -> None:
        if self._batcher.after_wait() > MOMENT:
            self._mended = False  # a thread that a task has left behind may have closed them since

    def _take(self, mine: bytes) -> bool:
        """Take the next task's ticket; False when the task has been taken back."""
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

    # --- runs: the first task's ticket has been taken ---

    def _perform(self, run: LaneRun, mine: bytes) -> bool:
        """Run a run's tasks; False when the rest of them has been taken back."""
        self._index = 0
        self._mend()
        self._mended = False
        try:
            spec = self._specs[run.spec]
            self.log.listen(spec.log_level)
            loaded = self._functions.get(run.spec)
            if loaded is None:
                loaded = self._load(run.spec, spec)
            else:
                enter(loaded[1])
            function = loaded[0]
            if loaded[2]:
                self._warn(run.client, loaded[2])
        except BaseException as error:  # noqa: BLE001  an import may raise anything
            return self._refuse(run, mine, error)
        is_plain = spec.kind == CALL and spec.timeout <= 0 and spec.codec == PICKLE and not run.needs
        is_plain = is_plain and not (
            self.is_thread or spec.headers or spec.stream_logs or self.middleware.is_needed
        )
        perform = self._perform_calls if is_plain else self._perform_guarded
        return perform(run, spec, function, mine)

    def _mend(self) -> None:
        """Put things right after other tasks: while nothing waits for it, if there is such a time."""
        if not self._mended:
            self._streams.mend()
            self._deepen()
            self._mended = True

    def _deepen(self) -> None:
        """Take a lower recursion limit back: what other tasks pass and return may be nested deeply."""
        if sys.getrecursionlimit() < self._depth:
            sys.setrecursionlimit(self._depth)

    def _load(self, number: int, spec: Spec) -> tuple[Callable[..., Any], Scope, str]:
        """The spec's function, what its globals stand for, and a warning; its bytes may be large, and go."""
        scope = Scope()
        enter(scope)
        function = runnable(code.load_function(spec.function))
        loaded = self._functions[number] = function, scope, sources.difference(spec.function, spec.source)
        self._specs[number] = msgspec.structs.replace(spec, function=b"")
        return loaded

    def _warn(self, client: int, words: str) -> None:
        """Have a client know, once, by the log of the task that runs."""
        if (client, words) not in self._warned:
            if len(self._warned) >= MOST_WARNED:
                self._warned.clear()
            self._warned.add((client, words))
            logging.getLogger(sources.LOGGER).warning("%s", words)

    def _refuse(self, run: LaneRun, mine: bytes, error: BaseException) -> bool:
        """Fail every task of a run whose function is not to be had."""
        while True:
            self._begin(run, self._specs.get(run.spec, _UNKNOWN))
            self._fail("function", error)
            self._index += 1
            if self._index == len(run.payloads):
                return True
            if not self._take(mine):
                return False

    def _perform_calls(  # noqa: C901, PLR0915  in pieces it would take twice as long
        self, run: LaneRun, spec: Spec, function: Callable[..., Any], mine: bytes
    ) -> bool:
        """Plain calls without a time limit. `_take` and `OutboxWriter.append` are spelt out in the loop."""
        batcher, outbox = self._batcher, self._batcher.outbox
        memory, words, clocks, sums = outbox.memory, outbox.words, outbox.clocks, outbox.sums
        payloads, count, tickets, size = run.payloads, len(run.payloads), self._tickets, len(mine)
        loads, dumps, read, monotonic = payload.loads_call, payload.dumps, os.read, time.monotonic
        results, due, mark, entry, offset = batcher.room()
        checked, what, children = outbox.checked, f"the result of {spec.name}", self.children
        index = 0
        while True:
            try:
                stage = "argument"
                (args, kwargs), payloads[index] = loads(payloads[index]), b""  # a large one's file is free
                stage = "exception"
                result = function(*args, **kwargs) if kwargs else function(*args)
                if children.may_exist:
                    children.wait()
                stage = "result"
                out: Any = _NONE if result is None else dumps(result, what=what)
                if type(out) is not bytes:
                    out.to_fd()  # if there is none to be had, the task fails and not the slot
                del args, kwargs, result  # the next ones may take their memory
            except BaseException as error:  # noqa: BLE001  a task may raise anything
                outbox.index, outbox.offset = entry, offset
                self._fail(stage, error)
                results, due, mark, entry, offset = batcher.room()
            else:
                now = monotonic()
                results.append(out)
                full = type(out) is not bytes or (end := offset + len(out)) > FLUSH_OFFSET
                if not full:
                    clocks[entry] = now  # first: see OutboxWriter.append
                    memory[offset:end] = out
                    if checked:
                        sums[entry] = crc32(out)
                    words[entry] = mark + end - offset
                    entry += 1
                    offset = end
                    mark = outbox.tag
                    full = now > due
                if full:
                    batcher.next = self._first + index + 1
                    batcher.flush()
                    results, due, mark, entry, offset = batcher.room()
            index += 1
            if index == count:
                break
            self._index = index
            try:
                got = read(tickets, size)
            except BlockingIOError:
                got = _NO_TICKET
            if got != mine:
                self._held = got
                break
        outbox.index, outbox.offset = entry, offset
        batcher.next = self._first + index
        return index == count

    def _perform_guarded(self, run: LaneRun, spec: Spec, function: Callable[..., Any], mine: bytes) -> bool:
        """Map chunks, and calls with a limit, a codec, outcomes of other tasks, headers, prints or hooks."""
        try:
            with dependencies.provided(run.values, plain=spec.codec == SAFE):
                return self._perform_each(run, spec, function, mine)
        finally:
            self.middleware.call = NO_CALL

    def _begin(self, run: LaneRun, spec: Spec) -> None:
        """Have middleware know the call that comes next."""
        if spec.headers or self.middleware.is_needed:
            task = text_of(task_id(run.client, run.seqs[self._index]))
            self.middleware.call = Call(spec.name, spec.queue, id=task, attempt=run.attempt - run.returns)

    def _perform_each(self, run: LaneRun, spec: Spec, function: Callable[..., Any], mine: bytes) -> bool:
        flags = BREAK
        while True:
            if spec.kind == FIRING:
                self._tick, run.payloads[self._index] = split_tick(run.payloads[self._index])
            self._limit.fired = False
            self._stage = "argument"
            self._begin(run, spec)
            try:
                if spec.stream_logs:
                    out = self._streams.call_and_flush(self._result, spec, function, run)
                else:
                    out = self._result(spec, function, run)
                if isinstance(out, Blob):
                    out.to_fd()
            except BaseException as error:  # noqa: BLE001  a task may raise anything
                self._fail(self._stage, error)
                flags = BREAK
            else:
                self._batcher.add(out, flags)
                flags = 0
            self._deadline = self._tick = None
            self._index += 1
            if self._index == len(run.payloads):
                return True
            if not self._take(mine):
                return False

    # --- tasks ---

    def _result(self, spec: Spec, function: Callable[..., Any], run: LaneRun) -> payload.Payload:
        if spec.kind == CHUNK:
            return self._chunk(spec, function, run)
        if spec.timeout <= 0:
            return self._one(spec, function, run)
        self._deadline = time.monotonic() + spec.timeout
        return self._limit.call(spec.timeout, self._one, spec, function, run)

    def _argument(self, run: LaneRun) -> payload.Payload:
        """Give up the task's payload: a large one's file may be used again when it has been rebuilt."""
        data: payload.Payload = run.payloads[self._index]
        run.payloads[self._index] = b""
        return data

    def _one(self, spec: Spec, function: Callable[..., Any], run: LaneRun) -> payload.Payload:
        if spec.codec not in (PICKLE, SAFE):
            encoded = payload.loads_encoded(self._argument(run))
            self._stage = "exception"
            answer = self._called(function, (encoded,), {})
            self._stage = "result"
            return payload.dumps_encoded(answer, what=f"the result of {spec.name}")
        args, kwargs = payload.loads_call(self._argument(run))
        if spec.headers:
            self.middleware.call.headers, args = args[-1], args[:-1]
        self._stage = "exception"
        result = self._called(function, args, kwargs)
        self._stage = "result"
        if spec.codec == SAFE:
            return payload.dumps_plain(result, what=f"the result of {spec.name}")
        return payload.dumps(result, what=f"the result of {spec.name}")

    def _chunk(self, spec: Spec, function: Callable[..., Any], run: LaneRun) -> payload.Payload:
        """Call the function for each item; one that fails does not stop the others."""
        items, starred, trailers = payload.loads_chunk(self._argument(run))
        if spec.headers:
            self.middleware.call.headers, trailers = cast("dict[str, str]", trailers[-1]), trailers[:-1]
        if trailers:
            function = _carrying(cast(code.Carried, trailers[0]), function)
        if spec.timeout > 0:
            function = self._limited(spec.timeout, function)
        self._stage, self._limit.fired = "exception", False
        if self.middleware.is_needed:
            self.middleware.call.items = len(items)
        values, failures = self._called(partial(self._each_item, spec, function, starred), (items,), {})
        self._stage = "result"
        return payload.dumps_chunk_result(values, failures, where=spec.name)

    def _each_item(
        self, spec: Spec, function: Callable[..., Any], starred: bool, items: Sequence[Any]
    ) -> tuple[list[Any], dict[int, SlotFailure]]:
        """Return the results of the calls for the items, and the errors by position."""
        values: list[Any] = []
        failures: dict[int, SlotFailure] = {}
        has_bad, what, is_thread = BadItem in map(type, items), f"a result of {spec.name}", self.is_thread
        began = time.monotonic()
        for item in items:
            value = None
            try:
                if has_bad and type(item) is BadItem:
                    raise SerializationError(item.text)
                value = function(*item) if starred else function(item)
            except BaseException as error:  # noqa: BLE001  a task may raise anything
                stage = "argument" if type(item) is BadItem else self._stage
                self.middleware.failed(self.middleware.call, error)
                i, now = len(values), time.monotonic()
                failures[i] = failure_of(i, self._kind(stage, error), error, spec, now - began)
                self._limit.fired = False
            if self.is_forked_child or is_thread:
                self._check_goes_on()
            if spec.ignore_result:
                value = None
            elif type(value) not in FLAT and len(items) > 1:  # the next call may change what it has returned
                value = snapshot(value, what)
            values.append(value)
        return values, failures

    def _check_goes_on(self) -> None:
        """Raise an error if a chunk is not to go on with its next item."""
        if self.is_forked_child:
            raise LocalProtocolError("a child that a task has forked is no slot")

    def _called(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the task's function, and wait for the task's children; the hooks stand around both."""
        if not self.middleware.is_needed:
            return self._complete(function, *args, **kwargs)
        return self.middleware.run(self.middleware.call, partial(self._complete, function), args, kwargs)

    def _complete(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        self.children.wait()
        return result

    def _limited(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self._limit.fired = False
            self._deadline = time.monotonic() + seconds
            return self._limit.call(seconds, function, *args)

        return call

    def _fail(self, stage: str, error: BaseException) -> None:
        self._deepen()
        self.middleware.failed(self.middleware.call, error)
        self.children.cancel()
        kind = self._kind(stage, error)
        spec = self._specs.get(self._run.spec, _UNKNOWN) if self._run else _UNKNOWN
        serial = self._first + self._index
        self._batcher.fail(failure_of(serial, kind, error, spec, self._batcher.elapsed()))

    def _kind(self, stage: str, error: BaseException) -> str:
        if type(error) is code.CarriedUnavailable:
            return "function"
        return "timeout" if self._limit.fired and issubclass(type(error), TaskTimeout) else stage

    # --- the running task ---

    def current(self) -> context.TaskContext | None:
        """Return the context for `current_task()`, made when it is asked for."""
        run = self._run
        spec = None if run is None else self._specs.get(run.spec)
        if run is None or spec is None:  # a thread may ask while its task ends, and its spec is forgotten
            return None
        return context.TaskContext(
            id=text_of(task_id(run.client, run.seqs[self._index])),
            name=spec.name,
            attempt=run.attempt - run.returns,
            queue=spec.queue,
            deadline=self._deadline,
            report=self._progress,
            ask=partial(self._is_cancelled, self._first + self._index),
            slot=self._slot,
            tick=self._tick,
            headers=self.middleware.call.headers,
        )

    def nested_context(self, *, lends: bool) -> nested.NestedContext | None:
        """Return the context for `f.submit()` inside the running task."""
        return None if self.is_forked_child else self.children.context(self._running, lends=lends)

    def _running(self) -> nested.RunningTask | None:
        run = self._run
        if run is None:
            return None
        return nested.RunningTask(self._first + self._index, self._specs[run.spec])

    def _serial(self) -> int | None:
        """Return the serial of the task that runs, None between tasks and in a child that one has forked."""
        return None if self._run is None or self.is_forked_child else self._first + self._index

    def _take_over(self, before: TaskRunner) -> None:
        """Go on in the place of another runner of the slot, with the task that it runs."""
        self._batcher, self.children = before._batcher, before.children
        self._specs, self._functions, self._warned = before._specs, before._functions, before._warned
        self._held, self._mended = before._held, before._mended
        self._run, self._first, self._index = before._run, before._first, before._index
        self.log = TaskLog(self._serial, self._batcher.log)
        self._batcher.last_lines = self._last_words
        self.middleware.call = before.middleware.call

    def _progress(self, done: float, total: float) -> None:
        if (serial := self._serial()) is not None:
            self._batcher.progress(serial, done, total)

    def _is_cancelled(self, serial: int) -> bool:
        return not self.is_forked_child and self._batcher.outbox.is_cancelled(serial)

    def interrupted(self, signum: int, frame: FrameType | None) -> None:
        """SIGINT's handler: a task may get one, a frame that is being sent must not be torn."""
        if self._run is not None and not self._limit.is_blocked:
            raise KeyboardInterrupt

    def close_after_fork(self) -> None:
        """Called in a child that a task has forked: what is the slot's must stay the slot's alone."""
        self.is_forked_child = True
        context.install(None)
        nested.install(None)
        self._batcher.close_after_fork()
        with contextlib.suppress(OSError):
            os.close(self._tickets)


def install(find: Callable[[], TaskRunner | None]) -> None:
    """Have the code of tasks find its task, and what it logs find its way.

    Args:
        find: returns the runner of the task that calls it; None outside of tasks.
    """

    def current() -> context.TaskContext | None:
        runner = find()
        return None if runner is None else runner.current()

    def nested_context(*, lends: bool) -> nested.NestedContext | None:
        runner = find()
        return None if runner is None else runner.nested_context(lends=lends)

    def log() -> TaskLog | None:
        runner = find()
        return None if runner is None else runner.log

    context.install(current)
    nested.install(nested_context)
    logging.getLogger().addHandler(TaskLogHandler(log))


def _carrying(carried: code.Carried, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*args, carried.copy())


def failure_of(serial: int, kind: str, error: BaseException, spec: Spec, elapsed: float) -> SlotFailure:
    """Return the report of an error that ended a task.

    Args:
        serial: of the task.
        kind: as in `SlotFailure`. A result that cannot travel is never retried: it could not the next time
            either.
        error: what was raised; its traceback is dropped, so that the task's values can go.
        spec: of the task, for its retry filter.
        elapsed: seconds that the task took.
    """
    try:
        on, never = payload.loads_filter(spec.retry_filter)
        reported, retryable, retry_after = verdict(error, on, never)
        type_name, text, traceback, pickled = dumps_exception(reported)
    except BaseException as trouble:  # noqa: BLE001  out of memory, or no such classes here
        text = f"(it cannot be described: {class_name(type(trouble))})"
        return SlotFailure(serial, kind, class_name(type(error)), text, elapsed=elapsed)
    finally:
        BaseException.with_traceback(error, None)  # a frozen dataclass forbids the assignment
    retryable = retryable and kind != "result"
    return SlotFailure(serial, kind, type_name, text, traceback, pickled, retryable, retry_after, elapsed)
