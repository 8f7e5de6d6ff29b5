"""Who runs a stream's pieces: the mesh, or this very process."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any, Final, Protocol

from taskmesh import context
from taskmesh.client.group import TaskGroup
from taskmesh.errors import TaskMeshError
from taskmesh.future import TaskFuture
from taskmesh.outcomes.outcome import Success, error_of
from taskmesh.serialize.code import load_function
from taskmesh.serialize.values import class_name, error_text
from taskmesh.spark.jobs.connection import mesh_of
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.sharing import KEPT_S, Sharing
from taskmesh.spark.jobs.trace import Trace
from taskmesh.spark.jobs.vigil import Vigil
from taskmesh.spark.jobs.work import Work
from taskmesh.spark.steps.errors import MeshSchemaError, MeshTaskError
from taskmesh.wire.runs import Failed

HASTE: Final = 4.0
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
        """Whether its outcome is there."""
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


def engine_of(settings: Settings, work: Work) -> Engine:
    """The engine that the settings ask for, ready to run the work's pieces.

    Raises:
        HubUnreachable: no hub answers.
    """
    return LocalEngine(work) if settings.engine == "local" else MeshEngine(settings, work)


class MeshEngine:
    """Pieces are tasks of one group on the mesh."""

    def __init__(self, settings: Settings, work: Work) -> None:
        self._trace = Trace.here(work.app)
        haste = HASTE if self._trace.attempt else 1.0
        mesh = mesh_of(settings, haste)
        self._sharing = Sharing.of(settings, self._trace)
        self._group = TaskGroup(
            mesh,
            work.function,
            work.name,
            work.options,
            work.codec,
            keep=KEPT_S if self._sharing else 0.0,
            shared=self._sharing.shared if self._sharing else "all",
        )
        self._vigil = Vigil(mesh._client, settings, work.options, haste)

    @property
    def sent(self) -> int:
        """Bytes of all payloads so far."""
        return self._group.sent

    def submit(self, data: Any) -> TaskFuture[Any]:
        """Submits a task."""
        sharing = self._sharing
        if sharing is None:
            return self._group.submit(data)
        return self._group.submit(data, lambda payload: sharing.key(self._group.number, payload))

    def is_done(self, piece: TaskFuture[Any]) -> bool:
        """Whether it has ended."""
        return piece.done()

    def wait(self, pieces: Sequence[TaskFuture[Any]]) -> None:
        """Waits; raises NoMeshWorkers or MeshGatewayLost when that is in vain."""
        self._vigil.wait(pieces)

    def outcome(self, piece: TaskFuture[Any], where: str) -> tuple[Any, Success]:
        """Result and how it ran; an error is made of its record, and nothing of it unpickled."""
        failed = self._group.failure(piece)
        if failed is not None:
            raise _error_of(failed, self._group.name, f"{where}, {self._trace}")
        try:
            return piece.result(), self._group.success(piece)
        except CancelledError:
            text = f"task {self._group.name} was cancelled on the mesh ({where}, {self._trace})"
            raise MeshTaskError(text) from None

    def cancel(self, pieces: Sequence[TaskFuture[Any]]) -> None:
        """Gives tasks up, running or not."""
        self._group.cancel(list(pieces))


class LocalEngine:
    """Pieces are run here and now, as they are submitted: the oracle, and the way without a mesh."""

    sent = 0

    def __init__(self, work: Work) -> None:
        self._name = work.name
        self._function = load_function(work.function)
        self._trace = Trace.here(work.app)
        self._context = context.TaskContext(
            id="0" * 32, name=work.name, attempt=self._trace.attempt + 1, queue=work.options.queue
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
        place = f"{where}, {self._trace}"
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
