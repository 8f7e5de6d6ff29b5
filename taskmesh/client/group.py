"""A group of tasks whose function is given as bytes: pickled in one process, submitted from another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from taskmesh.client.functions import spec_of
from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.futures.outcome import Success
from taskmesh.client.options import TaskOptions
from taskmesh.client.submitter import Submitter, client_of
from taskmesh.core.specs import spec_number
from taskmesh.messages.runs import PICKLE, Failed
from taskmesh.serialize.payload import Payload, check_size, dumps_call, dumps_encoded

_UNKNOWN = Success(1, "", 0.0)


class TaskGroup:
    """Tasks of one function that are one group: for fairness, for counting and for cancelling.

    Args:
        mesh: where they are submitted.
        function: what `taskmesh.serialize.code.dump_function` made of the function.
        name: the name of the task, for people.
        options: the options of its tasks.
        codec: PICKLE: the function is called with arguments. Another one: it takes bytes and returns bytes,
            which hub and pool do not look into.
        keep: seconds that the outcome of a task with a key answers later submissions under it.
        shared: the outcomes that tasks of one key share: "all", or only "errors".

    Attributes:
        sent: bytes of all payloads submitted so far.

    Raises:
        SerializationError: an exception class in the options' Retry cannot be pickled.
    """

    def __init__(
        self,
        mesh: Submitter,
        function: bytes,
        name: str,
        options: TaskOptions,
        codec: str = PICKLE,
        *,
        keep: float = 0.0,
        shared: str = "all",
    ) -> None:
        client = client_of(mesh)
        spec = msgspec.structs.replace(spec_of(function, options, name, codec), keep=keep, shared=shared)
        self.name = name
        self.sent = 0
        self._owner = mesh
        self._table = client.table
        self._pickles = codec == PICKLE
        self._limit = client.max_payload
        self.number = spec_number(spec)
        self._run = OpenRun(client.table, self.number, spec, client.new_group())

    def submit(self, argument: Any, key: Callable[[Payload], str] | None = None) -> TaskFuture[Any]:
        """Submit a call with one argument: a picklable value, or with a codec of one's own a flat buffer.

        `key` makes a key of the payload.

        Raises:
            SerializationError: it cannot be pickled, or is no buffer.
            TooLarge: it is above `max_payload`.
            MeshClosed: the mesh is closed.
        """
        payload: Payload
        if self._pickles:
            payload = dumps_call((argument,), {}, where=self.name, memfd=self._table.memfd)
        else:
            payload = dumps_encoded(argument, what=f"the argument of {self.name}", memfd=self._table.memfd)
        check_size(payload, self._limit, f"the call of {self.name}")
        self.sent += len(payload)
        run = self._run
        if key is not None:  # its own run
            run = OpenRun(run.table, self.number, run.spec, run.group, key(payload))
        return self._table.put(run, payload)

    def cancel(self, futures: list[TaskFuture[Any]]) -> None:
        self._table.cancel(futures)

    @staticmethod
    def failure(future: TaskFuture[Any]) -> Failed | None:
        """Return the record of a task that ended badly, with nothing unpickled; None for any other task."""
        return future._origin if future.done() and isinstance(future._origin, Failed) else None

    @staticmethod
    def success(future: TaskFuture[Any]) -> Success:
        return future._origin if isinstance(future._origin, Success) else _UNKNOWN
