"""The two places where a partition's pieces run: the mesh, and this process itself."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any, Final, NamedTuple, Protocol

from taskmesh import context
from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.futures.outcome import Success, error_of
from taskmesh.client.group import TaskGroup
from taskmesh.client.submitter import client_of
from taskmesh.errors import TaskMeshError
from taskmesh.messages.runs import Failed
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

KEPT_S: Final = 600.0
"""Seconds for which the hub keeps the outcomes of pieces."""
LATER_TRIES_FASTER: Final = 4.0
"""Spark's later tries of a task wait for pools and hub for the first try's time divided by this."""
TEXT_LIMIT: Final = 32 << 10
_SCHEMA_ERROR: Final = class_name(MeshSchemaError)


class Engine(Protocol):
    """Runs pieces, each of which has the `done` of a future."""

    @property
    def sent(self) -> int:
        """Bytes that have been submitted so far; 0 where nothing travels."""
        ...

    @property
    def slots(self) -> int:
        """The number of slots that serve the pieces; 0 if that is not known."""
        ...

    def submit(self, data: Any) -> Any: ...

    def wait(self, pieces: Sequence[Any]) -> None:
        """Return when one of the pieces is done.

        Raises:
            NoMeshWorkers, MeshGatewayLost: nobody is there who could run them.
        """
        ...

    def outcome(self, piece: Any, where: str) -> tuple[Any, Success]:
        """Return the result of a piece that is done, and how it ran.

        Args:
            piece: what `submit` returned.
            where: the piece's place in the partition, for error texts.

        Raises:
            MeshTaskError, MeshSchemaError: the piece failed.
        """
        ...

    def cancel(self, pieces: Sequence[Any]) -> None: ...


def engine_of(settings: Settings, remote_task: RemoteTask) -> Engine:
    """Return the engine that the settings name, ready to run pieces of the task.

    Raises:
        HubUnreachable: no hub answers.
    """
    return _LocalEngine(remote_task) if settings.engine == "local" else _MeshEngine(settings, remote_task)


def speed_up_of(spark_task: SparkTask) -> float:
    """Return what divides the time-outs of a Spark task: its later tries must not take as long again."""
    return LATER_TRIES_FASTER if spark_task.attempt else 1.0


class _MeshEngine:
    """Submits pieces to the mesh, as tasks of one group."""

    def __init__(self, settings: Settings, remote_task: RemoteTask) -> None:
        self._spark_task = SparkTask.here(remote_task.app)
        speed_up = speed_up_of(self._spark_task)
        mesh = mesh_of(settings, speed_up, max(0, self._spark_task.partition))
        shared, self._prefix = _sharing(settings, self._spark_task)
        self._key = self._key_of if shared else None
        self._group = TaskGroup(
            mesh,
            remote_task.function,
            remote_task.name,
            remote_task.options,
            remote_task.codec,
            keep=KEPT_S if shared else 0.0,
            shared=shared or "all",
        )
        self._watchdog = Watchdog(client_of(mesh), settings, remote_task.options, speed_up)
        self.wait = self._watchdog.wait

    @property
    def sent(self) -> int:
        return self._group.sent

    @property
    def slots(self) -> int:
        return self._watchdog.slots

    def submit(self, data: Any) -> TaskFuture[Any]:
        return self._group.submit(data, self._key)

    def outcome(self, piece: TaskFuture[Any], where: str) -> tuple[Any, Success]:
        failed = self._group.failure(piece)  # a record, of which nothing is unpickled
        if failed is not None:
            raise task_error(failed, self._group.name, f"{where}, {self._spark_task}")
        try:
            return piece.result(), self._group.success(piece)
        except CancelledError:
            text = f"task {self._group.name} was cancelled on the mesh ({where}, {self._spark_task})"
            raise MeshTaskError(text) from None

    def cancel(self, pieces: Sequence[TaskFuture[Any]]) -> None:
        self._group.cancel(list(pieces))

    def _key_of(self, payload: Payload) -> str:
        digest = hashlib.blake2b(digest_size=20)
        for part in payload.parts if isinstance(payload, Blob) else (payload,):
            digest.update(part)
        return f"{self._prefix}{self._group.number:x} {digest.hexdigest()}"


def _sharing(settings: Settings, spark_task: SparkTask) -> tuple[str, str]:
    """Return which outcomes equal pieces share, as in `Spec.shared`, and the prefix of their keys.

    Results are shared by content alone, and only where the settings say so: another try of a Spark task, or
    its twin, gets them from the hub. Failures are remembered within a partition of one stage, once
    `remember_errors` of Spark's tries have failed: before that, the next try may go better; without it, Spark
    would have the same rows fail four times before it gives a job up. A try that shares nothing has "".
    """
    if settings.dedupe == "result":
        return "all", ""
    if not 0 < settings.remember_errors <= spark_task.attempt + 1:
        return "", ""
    return "errors", f"{spark_task.app} {spark_task.stage} {spark_task.partition} "


class _Ended(NamedTuple):
    """A piece that has been run: its result and the seconds that it took, or its error."""

    result: Any
    seconds: float
    error: BaseException | None = None

    def done(self) -> bool:
        return True


class _LocalEngine:
    """Runs pieces in this process as they are submitted: for tests, and where there is no mesh."""

    sent = 0
    slots = 1

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

    def submit(self, data: Any) -> _Ended:
        began = time.perf_counter()
        try:
            with context.running(self._context):
                result = self._function(data)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  a task may raise anything
            return _Ended(None, 0.0, error)
        return _Ended(result, time.perf_counter() - began)

    def wait(self, pieces: Sequence[_Ended]) -> None:
        pass

    def outcome(self, piece: _Ended, where: str) -> tuple[Any, Success]:
        result, seconds, error = piece
        if error is None:
            return result, Success(1, "", seconds)
        place, trace = f"{where}, {self._spark_task}", "".join(traceback.format_exception(error))
        if isinstance(error, MeshSchemaError):
            raise MeshSchemaError(_report(self._name, str(error), place, trace))
        raise MeshTaskError(_report(self._name, error_text(error), place, trace))

    def cancel(self, pieces: Sequence[_Ended]) -> None:
        pass


def task_error(failed: Failed, name: str, where: str) -> TaskMeshError:
    """Return the exception for a record of a failure, with everything that the record says."""
    place = f"{where}; pool {failed.worker or 'unknown'}, attempt {failed.attempt}"
    if failed.kind in {"exception", "timeout"}:
        text = f"{failed.type_name}: {failed.text}" if failed.text else failed.type_name
    else:
        error = error_of(failed, name)
        text = f"{type(error).__name__}: {error}"
    history = "\n".join(failed.history) if len(failed.history) > 1 else ""
    trace = "\n".join(filter(None, (failed.traceback, history)))
    if failed.type_name == _SCHEMA_ERROR:
        return MeshSchemaError(_report(name, failed.text, place, trace))
    return MeshTaskError(_report(name, text, place, trace))


def _report(name: str, text: str, where: str, trace: str) -> str:
    """Return one text with everything, cut to 32 KiB in the middle of the traceback."""
    head = f"task {name}: {text}\n  ({where})"
    if not trace:
        return head[:TEXT_LIMIT]
    room = max(0, TEXT_LIMIT - len(head) - 100) // 2
    if len(trace) > 2 * room:
        trace = f"{trace[:room]}\n  ... {len(trace) - 2 * room} characters left out ...\n{trace[-room:]}"
    return f"{head[:TEXT_LIMIT]}\nOn the worker:\n{trace}"
