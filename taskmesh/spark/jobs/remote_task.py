"""The task that Spark's workers submit, made once on the driver, as bytes and plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from taskmesh.client.functions import function_name
from taskmesh.client.options import TaskOptions
from taskmesh.errors import ConfigError, SerializationError
from taskmesh.messages.runs import ARROW_IPC
from taskmesh.retry import Retry
from taskmesh.serialize.code import dump_function
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.spark_task import app_id


def function_bytes(task: Callable[..., Any]) -> bytes:
    """The bytes of a task's function.

    Raises:
        ConfigError: it is no function.
        SerializationError: it cannot travel, or refers to a broadcast variable or accumulator, which work in
            Spark's own workers only.
    """
    if not callable(task):
        raise ConfigError(f"a task is a function, or the result of @task, not {task!r}")
    try:
        data = dump_function(task)
    except SerializationError as error:  # in Spark's worker a broadcast variable cannot be pickled
        if "INVALID_BROADCAST_OPERATION" not in str(error):
            raise
        raise SerializationError(f"the function {function_name(task)} takes {_BROADCAST}") from error
    for marks, trouble in _BOUND:
        if all(mark in data for mark in marks):
            raise SerializationError(f"the function {function_name(task)} takes {trouble}")
    return data


def options_of(task: Callable[..., Any]) -> TaskOptions:
    """The options of a task, or of a function without any.

    Raises:
        ConfigError: it has a key.
    """
    own: TaskOptions = getattr(task, "__task_options__", None) or TaskOptions()
    if own.key is not None:
        raise ConfigError("a task with a key= cannot be run over partitions: a key is one call's")
    return own


_BROADCAST: Final = "a broadcast variable along, which only Spark's executors can read. Take its value along"
_BOUND: Final = (
    (
        (b"pyspark.core.broadcast", b"\x8c\x08_from_id"),  # the class alone is named by annotations, too
        _BROADCAST,
    ),
    (
        (b"pyspark.accumulators", b"_deserialize_accumulator"),
        "an accumulator along, and what pools add to it would be lost. Return what is to be counted",
    ),
)
"""Marks in the bytes of a function that cannot do its work on a pool, and the text of the error."""

TRANSIENT: Final = (OSError, MemoryError)
"""Errors of tasks without retries that the hub never remembers."""


@dataclass(frozen=True)
class RemoteTask:
    """The function to run with its options, the same for all partitions.

    Attributes:
        function: bytes of a callable with one argument.
        name: of the task, for people.
        options: of the task.
        codec: as for `TaskGroup`.
        app: the driver's application, for Spark tasks that do not know it; empty for a driver on Connect.
    """

    function: bytes
    name: str
    options: TaskOptions
    codec: str
    app: str = ""

    @classmethod
    def of(
        cls, settings: Settings, task: Callable[..., Any], step: Callable[[Any], Any], codec: str = ARROW_IPC
    ) -> RemoteTask:
        """A task in its step, with its own options; queue and tags of the settings override them.

        Its tasks are bound to the client that submits them, so they end with Spark's worker.

        Raises:
            SerializationError: the step cannot travel.
            ConfigError: the task has a key, which belongs to single calls.
        """
        own = options_of(task)
        return cls.named(settings, own, own.name or function_name(task), step, codec, app_id())

    @classmethod
    def named(
        cls,
        settings: Settings,
        own: TaskOptions,
        name: str,
        step: Callable[[Any], Any],
        codec: str = ARROW_IPC,
        app: str = "",
    ) -> RemoteTask:
        """A task of a name and options that are known; else as `of`."""
        changes: dict[str, Any] = {"on_client_loss": "cancel"}
        if settings.queue:
            changes["queue"] = settings.queue
        if not own.retries.max:
            # With shared results Spark's next try computes only the piece that failed: it is worth a try.
            at_once = settings.dedupe == "none" or settings.remember_errors == 1
            changes["retries"] = Retry(max=0, on=TRANSIENT if at_once else Exception)
        if settings.tags:
            changes["tags"] = settings.tags
        return cls(dump_function(step), name, own.with_changes(changes), codec, app)
