"""The outcome of a task for its caller: the final state, and the exception that a record describes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from taskmesh.context import current_task
from taskmesh.core.ids import client_of, parse, task_id, text_of
from taskmesh.errors import (
    BadSignature,
    DependencyError,
    FunctionUnavailable,
    NotDurable,
    SerializationError,
    TaskExpired,
    TaskLost,
    TaskMeshError,
    TaskTimeout,
    TooLarge,
    UnknownTask,
    WorkerCrashed,
)
from taskmesh.messages.runs import DEPENDENCY, NOT_DURABLE, UNKNOWN, DoneRun, Failed, Value
from taskmesh.messages.slot_messages import SlotFailure
from taskmesh.serialize.dependencies import is_plain, loads_value, provided_value
from taskmesh.serialize.exceptions import load_exception
from taskmesh.serialize.payload import Payload, loads_chunk_values

T = TypeVar("T")

_log = logging.getLogger("taskmesh")


class TaskState(StrEnum):
    """The state of a task, as far as its client knows it. The last six are final."""

    PENDING = "pending"
    """Submitted; the hub has not confirmed it yet."""
    QUEUED = "queued"
    """In the hub's ledger."""
    RUNNING = "running"
    """Known to have started."""
    UNREACHABLE = "unreachable"
    """Open, and its state is not known here, since the hub does not answer."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD = "dead"
    """Given up after it had crashed its worker too often."""
    LOST = "lost"
    """Its worker vanished, and it has acks="early". It may have run or not."""


_ENDS = {
    "crash": TaskState.DEAD,
    "oom": TaskState.DEAD,
    "expired": TaskState.EXPIRED,
    "lost": TaskState.LOST,
    "cancelled": TaskState.CANCELLED,
}

_ERRORS: dict[str, tuple[type[TaskMeshError], str]] = {
    "function": (FunctionUnavailable, "the worker could not load the task's function"),
    "argument": (SerializationError, "the worker could not rebuild an argument"),
    "result": (SerializationError, "the result cannot be pickled"),
    "signature": (BadSignature, "its signature does not hold"),
    "hard_timeout": (TaskTimeout, "killed: it ran longer than its hard_timeout"),
    "crash": (WorkerCrashed, "its worker process died while running it"),
    "oom": (WorkerCrashed, "its worker process was killed for lack of memory"),
    DEPENDENCY: (DependencyError, "a task that it depends on ended badly"),
    NOT_DURABLE: (
        NotDurable,
        "durable=True, and the hub has no journal: start that with --journal, or open Mesh(journal=FILE)",
    ),
    UNKNOWN: (UnknownTask, "nothing is known of it"),
    "expired": (TaskExpired, "it had not started when its `expires` was over"),
    "lost": (TaskLost, 'its worker vanished, and acks="early" forbids a second attempt: it may have run'),
}


_TOO_LARGE = f"{TooLarge.__module__}.{TooLarge.__qualname__}"


class Outcome(Generic[T]):
    """The end of a task, as one that waited for it with `when="done"` or `"failure"` gets it as an argument.

    Attributes:
        task_id: the id of the task.
        name: the name of its task function.
        attempt: the number of the attempt that gave the outcome; 0 if none began.
        state: its final state; UNREACHABLE if it had not ended when this task started.
    """

    def __init__(self, task_id: str, value: Value | None, *, plain: bool = False) -> None:
        self._value = value
        self._is_plain = plain
        self.task_id = task_id
        self.name = value.name if value is not None else ""
        self.attempt = value.attempt if value is not None else 0
        self.state = TaskState.UNREACHABLE
        if value is not None:
            self.state = TaskState.SUCCEEDED if value.failed is None else end_state(value.failed)

    def __repr__(self) -> str:
        return f"<Outcome of {self.name} {self.task_id}: {self.state}>"

    def result(self) -> T:
        """Return the task's value.

        Raises:
            InvalidStateError: it had not ended when this task started.
            BaseException: its own exception, or a TaskError that says how it ended.
        """
        error = self.exception()
        if error is not None:
            raise error
        return cast(T, loads_value(self._checked(), plain=self._is_plain))

    def exception(self) -> BaseException | None:
        """Return the error that ended the task, None for a value.

        Raises:
            InvalidStateError: it had not ended when this task started.
        """
        failed = self._checked().failed
        if failed is None:
            return None
        if failed.kind == "cancelled":
            return CancelledError()
        return error_of(failed, f"{self.name} {self.task_id}")

    def _checked(self) -> Value:
        if self._value is None:
            raise InvalidStateError(f"task {self.task_id} had not ended when this task started")
        return self._value


def arrived(seq: int, key: str = "") -> Outcome[Any]:
    """Return the outcome of a task on which the running one depends: called in a slot, by its arguments."""
    task = text_of(task_id(client_of(parse(current_task().id)), seq))
    return Outcome(task, provided_value(seq, key), plain=is_plain())


class Success(NamedTuple):
    """The attempt that led to a result: the part of a DoneRun that all its tasks share, without payloads.

    Attributes:
        attempt: its number, as the task saw it: attempts that were handed back do not count.
        worker: the pool and the slot.
        seconds: the time that each task took.
    """

    attempt: int
    worker: str
    seconds: float

    @classmethod
    def of(cls, run: DoneRun) -> Success:
        """Return the attempt of a run."""
        return cls(run.attempt - run.returns, run.worker, run.elapsed / max(1, len(run.seqs)))


class Unretrieved:
    """The record of a task that failed, until its error is asked for; if it never is, it is logged.

    Only failed futures have one, and so a future that succeeds pays nothing for it.

    Args:
        label: name and id of the task, for people.
        later: runs jobs in another thread, since this one may be anywhere when it drops the future; it
            returns False if it cannot.
    """

    __slots__ = ("_failed", "_label", "_later", "retrieved")

    def __init__(self, failed: Failed, label: str, later: Callable[[list[Callable[[], None]]], bool]) -> None:
        self.retrieved = False
        self._failed = failed
        self._label = label
        self._later = later

    def record(self, *, plain: bool) -> Failed:
        """Return the record, and note that it has been asked for.

        Args:
            plain: without the pickled exception: the error becomes a RemoteError, and nothing is unpickled.
        """
        self.retrieved = True
        return msgspec.structs.replace(self._failed, pickled=b"") if plain else self._failed

    def __del__(self) -> None:
        if self.retrieved:
            return
        with suppress(Exception):  # the interpreter may be ending
            tell = partial(_tell_unretrieved, self._label, self._failed)
            if not self._later([tell]):
                tell()


def _tell_unretrieved(label: str, failed: Failed) -> None:
    what = f"{failed.type_name}: {failed.text}" if failed.type_name else failed.text or failed.kind
    trace = f"\n{failed.traceback.rstrip()}" if failed.traceback else ""
    _log.error("task %s failed, and its result was never asked for: %s%s", label, what, trace)


def end_state(origin: Success | Failed | None) -> TaskState:
    """Return the final state of a task with this outcome."""
    if isinstance(origin, Failed):
        return _ENDS.get(origin.kind, TaskState.FAILED)
    return TaskState.SUCCEEDED if isinstance(origin, Success) else TaskState.FAILED


def noted(error: BaseException, task: str, origin: Success | Failed | None) -> BaseException:
    """Add a note to the error that names its task and worker, and return it."""
    attempt, worker = (origin.attempt, origin.worker) if origin is not None else (0, "")
    error.add_note(_origin_note(task, attempt, worker))
    return error


def error_of(failed: Failed, task: str) -> BaseException:
    """Return the exception of a task that did not succeed, with notes on its attempts.

    Args:
        failed: the hub's record.
        task: name and id of the task, for people.
    """
    return _error(failed, task=task, worker=failed.worker, attempt=failed.attempt, history=failed.history)


class ChunkResult(NamedTuple):
    """The outcomes of a chunk's items.

    Attributes:
        values: the items' results, in order.
        errors: by the item's index.
        retryable: the errors that the retry policy admits: the seconds that the task asks for, or -1.
    """

    values: list[Any]
    errors: dict[int, BaseException]
    retryable: dict[int, float]


def chunk_of(payload: Payload, task: str, origin: Success) -> ChunkResult:
    """Return the results of a chunk.

    Raises:
        SerializationError: nothing of it can be rebuilt here.
    """
    values, failures = loads_chunk_values(payload)
    errors = {
        index: _error(failure, task=task, worker=origin.worker, attempt=origin.attempt, history=())
        for index, failure in failures.items()
    }
    retryable = {
        index: failure.retry_after
        for index, failure in failures.items()
        if failure.retryable and failure.kind in {"exception", "timeout"}
    }
    return ChunkResult(values, errors, retryable)


def _error(
    record: Failed | SlotFailure, *, task: str, worker: str, attempt: int, history: Sequence[str]
) -> BaseException:
    known = _ERRORS.get(record.kind)
    if known is None:
        error = load_exception(
            record.type_name,
            record.text,
            record.traceback,
            record.pickled,
            task=task,
            worker=worker,
            attempt=attempt,
        )
    else:
        kind, summary = known
        if record.type_name == _TOO_LARGE:
            kind = TooLarge
        error = kind(f"{task}: {record.text or summary}")
        error.add_note(_origin_note(task, attempt, worker))
    for line in history if len(history) > 1 else ():  # of a single attempt the error itself tells all
        error.add_note(line)
    return error


def _origin_note(task: str, attempt: int, worker: str) -> str:
    return f"task {task}, attempt {attempt}, worker {worker or 'unknown'}"
