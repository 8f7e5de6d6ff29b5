"""The two places where a stream's pieces run: the mesh, and this process itself."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from taskmesh import context
from taskmesh.client.group import TaskGroup
from taskmesh.errors import TaskMeshError
from taskmesh.future import TaskFuture
from taskmesh.outcomes.outcome import Success, error_of
from taskmesh.serialize.code import load_function
from taskmesh.serialize.payload import Payload
from taskmesh.serialize.values import class_name, error_text
from taskmesh.shm.blob import Blob
from taskmesh.spark.jobs.connection import mesh_of
from taskmesh.spark.jobs.remote_task import RemoteTask
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.spark_task import SparkTask
from taskmesh.spark.jobs.watchdog import Watchdog
from taskmesh.spark.steps.errors import MeshSchemaError, MeshTaskError
from taskmesh.wire.runs import Failed

KEPT_S: Final = 600.0
"""Seconds for which the hub keeps what pieces ended with."""


@dataclass(frozen=True)
class Dedupe:
    """Under which key a piece is submitted.

    Results are shared by content alone, and only where the settings say so: a Spark task that is tried again,
    or has a twin, gets them from the hub. Failures are remembered within a partition of one stage, once
    `remember_errors` tries of Spark's have failed: before that, the next try may go better; without it, Spark
    would have the same rows fail four times before it gives a job up.

    Attributes:
        shared: as in `Spec`. prefix: of the keys.
    """

    shared: str
    prefix: str

    @classmethod
    def of(cls, settings: Settings, trace: SparkTask) -> Self | None:
        """As the settings say; None if this try shares nothing."""
        if settings.dedupe == "result":
            return cls("all", "")
        if not 0 < settings.remember_errors <= trace.attempt + 1:
            return None
        return cls("errors", f"{trace.app} {trace.stage} {trace.partition} ")

    def key(self, number: int, payload: Payload) -> str:
        """The key of a payload under a spec."""
        made = hashlib.blake2b(digest_size=20) if self.shared == "all" else _quick()
        for part in payload.parts if isinstance(payload, Blob) else (payload,):
            made.update(part)
        return f"{self.prefix}{number:x} {made.hexdigest()}"


def _quick() -> hashlib._Hash:
    """Twice as fast, and good enough to find the rows of one partition again."""
    return hashlib.sha1(usedforsecurity=False)


LATER_TRIES_FASTER: Final = 4.0
"""By how much Spark's later tries of a task wait less for pools and hub than its first one."""

TEXT_LIMIT: Final = 32 << 10
_SCHEMA_ERROR: Final = class_name(MeshSchemaError)


class Engine(Protocol):
    """Runs pieces."""

    @property
    def sent(self) -> int:
        """Bytes that have been submitted so far; 0 where nothing travels."""
        ...

    def submit(self, data: Any) -> Any:
        """Starts one; what it returns stands for it."""
        ...

    def is_done(self, piece: Any) -> bool:
        """Return whether its outcome is there."""
        ...

    def wait(self, pieces: Sequence[Any]) -> None:
        """Returns when one of them is done."""
        ...

    def outcome(self, piece: Any, where: str) -> tuple[Any, Success]:
        """Its result and how it ran; raises what it failed with."""
        ...

    def cancel(self, pieces: Sequence[Any]) -> None:
        """Gives them up."""
        ...


def engine_of(settings: Settings, remote_task: RemoteTask) -> Engine:
    """The engine that the settings ask for, ready to run the work's pieces.

    Raises:
        HubUnreachable: no hub answers.
    """
    return LocalEngine(remote_task) if settings.engine == "local" else MeshEngine(settings, remote_task)


class MeshEngine:
    """Pieces are tasks of one group on the mesh."""

    def __init__(self, settings: Settings, remote_task: RemoteTask) -> None:
        self._spark_task = SparkTask.here(remote_task.app)
        speed_up = LATER_TRIES_FASTER if self._spark_task.attempt else 1.0
        mesh = mesh_of(settings, speed_up)
        self._dedupe = Dedupe.of(settings, self._spark_task)
        self._group = TaskGroup(
            mesh,
            remote_task.function,
            remote_task.name,
            remote_task.options,
            remote_task.codec,
            keep=KEPT_S if self._dedupe else 0.0,
            shared=self._dedupe.shared if self._dedupe else "all",
        )
        self._watchdog = Watchdog(mesh._client, settings, remote_task.options, speed_up)

    @property
    def sent(self) -> int:
        """Bytes of all payloads so far."""
        return self._group.sent

    def submit(self, data: Any) -> TaskFuture[Any]:
        """Submits a task."""
        dedupe = self._dedupe
        if dedupe is None:
            return self._group.submit(data)
        return self._group.submit(data, lambda payload: dedupe.key(self._group.number, payload))

    def is_done(self, piece: TaskFuture[Any]) -> bool:
        """Return whether it has ended."""
        return piece.done()

    def wait(self, pieces: Sequence[TaskFuture[Any]]) -> None:
        """Wait; raise NoMeshWorkers or MeshGatewayLost if no result can come."""
        self._watchdog.wait(pieces)

    def outcome(self, piece: TaskFuture[Any], where: str) -> tuple[Any, Success]:
        """Result and how it ran; an error is made of its record, and nothing of it unpickled."""
        failed = self._group.failure(piece)
        if failed is not None:
            raise _error_of(failed, self._group.name, f"{where}, {self._spark_task}")
        try:
            return piece.result(), self._group.success(piece)
        except CancelledError:
            text = f"task {self._group.name} was cancelled on the mesh ({where}, {self._spark_task})"
            raise MeshTaskError(text) from None

    def cancel(self, pieces: Sequence[TaskFuture[Any]]) -> None:
        """Gives tasks up, running or not."""
        self._group.cancel(list(pieces))


class LocalEngine:
    """Pieces are run here and now, as they are submitted: the oracle, and the way without a mesh."""

    sent = 0

    def __init__(self, remote_task: RemoteTask) -> None:
        self._name = remote_task.name
        self._function = load_function(remote_task.function)
        self._spark_task = SparkTask.here(remote_task.app)
        self._context = context.TaskContext(
            id="0" * 32,
            name=remote_task.name,
            attempt=self._spark_task.attempt + 1,
            queue=remote_task.options.queue,
        )

    def submit(self, data: Any) -> tuple[Any, Success | BaseException]:
        """Runs it."""
        began = time.perf_counter()
        try:
            with context.running(self._context):
                result = self._function(data)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  a task may raise anything
            return None, error
        return result, Success(1, "", time.perf_counter() - began)

    def is_done(self, piece: object) -> bool:
        """It is."""
        return True

    def wait(self, pieces: Sequence[object]) -> None:
        """There is nothing to wait for."""

    def outcome(self, piece: tuple[Any, Success | BaseException], where: str) -> tuple[Any, Success]:
        """Result, or the error as a mesh would tell it."""
        result, error = piece
        if isinstance(error, Success):
            return result, error
        text = "".join(traceback.format_exception(error))
        place = f"{where}, {self._spark_task}"
        if isinstance(error, MeshSchemaError):
            raise MeshSchemaError(_told(self._name, str(error), place, text))
        raise MeshTaskError(_told(self._name, error_text(error), place, text))

    def cancel(self, pieces: Sequence[object]) -> None:
        """Nothing runs any more."""


def _error_of(failed: Failed, name: str, where: str) -> TaskMeshError:
    """The exception that tells of a record all there is to tell."""
    place = f"{where}; pool {failed.worker or 'unknown'}, attempt {failed.attempt}"
    if failed.kind in {"exception", "timeout"}:
        text = f"{failed.type_name}: {failed.text}" if failed.text else failed.type_name
    else:
        error = error_of(failed, name)
        text = f"{type(error).__name__}: {error}"
    history = "\n".join(failed.history) if len(failed.history) > 1 else ""
    trace = "\n".join(filter(None, (failed.traceback, history)))
    if failed.type_name == _SCHEMA_ERROR:
        return MeshSchemaError(_told(name, failed.text, place, trace))
    return MeshTaskError(_told(name, text, place, trace))


def _told(name: str, text: str, where: str, trace: str) -> str:
    """One text with everything, cut at 32 KiB in the middle of the traceback."""
    head = f"task {name}: {text}\n  ({where})"
    if not trace:
        return head[:TEXT_LIMIT]
    room = max(0, TEXT_LIMIT - len(head) - 100) // 2
    if len(trace) > 2 * room:
        trace = f"{trace[:room]}\n  ... {len(trace) - 2 * room} characters left out ...\n{trace[-room:]}"
    return f"{head[:TEXT_LIMIT]}\nOn the worker:\n{trace}"
