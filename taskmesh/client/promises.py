"""Promises and values of a program's own: futures that no task function stands behind."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from taskmesh.client.client import Client
from taskmesh.client.functions import spec_of
from taskmesh.client.options import TaskOptions, is_name
from taskmesh.client.upstream import KEPT_VALUE
from taskmesh.core.specs import spec_number
from taskmesh.errors import ConfigError
from taskmesh.future import OpenRun, TaskFuture
from taskmesh.serialize.payload import Payload, check_size, dumps, dumps_encoded, dumps_exception, dumps_plain
from taskmesh.wire import messages as m
from taskmesh.wire.runs import (
    LONGEST_NAME,
    PICKLE,
    PROMISE,
    PROMISE_NAME,
    SAFE,
    SINK_VALUE,
    SINK_VALUE_NAME,
    Failed,
    Spec,
)

KEEP = 86_400.0
"""Seconds for which the outcome of a promise answers those who ask for it later."""
MOST_RUNS = 1_000
"""Sinks whose run a client keeps for the next value."""


def promised(
    client: Client,
    key: str,
    expires: float | None,
    *,
    on_client_loss: str = "run",
) -> TaskFuture[Any]:
    """Submit a promise: a task without a function, that ends when somebody fulfils its key.

    Args:
        client: the client that waits for it.
        key: what it is fulfilled by.
        expires: seconds after which it ends as TaskExpired; None for no limit.
        on_client_loss: as the task option.

    Raises:
        ConfigError: the key is not text that can travel, or `expires` is not a number of seconds.
        MeshClosed: the mesh is closed.
    """
    options = TaskOptions().with_changes({"expires": expires, "on_client_loss": on_client_loss})
    spec = replace(spec_of(b"", options, PROMISE_NAME, client.result_codec), kind=PROMISE, keep=KEEP)
    return client.table.put(OpenRun(client.table, spec_number(spec), spec, key=_checked(key)), b"")


def fulfilment(client: Client, key: str, value: object, error: BaseException | None = None) -> m.Fulfil:
    """Return the message that ends a promise.

    Raises:
        ConfigError: the key is not text that can travel.
        TypeError: `error` is not an exception.
        SerializationError: the value cannot be pickled.
        TooLarge: it is above `max_payload`.
    """
    if error is None:
        what = f"the value of the promise {key!r}"
        safe = client.result_codec == SAFE
        payload = dumps_plain(value) if safe else dumps(value, what=what, memfd=client.table.memfd)
        check_size(payload, client.max_payload, what)
        return m.Fulfil(0, _checked(key), payload, KEEP)
    if not isinstance(error, BaseException):
        raise TypeError(f"error= has to be an exception, not {error!r:.200}")
    type_name, text, traceback, pickled = dumps_exception(error)
    failed = Failed(0, 0, 1, "exception", type_name, text, traceback, pickled)
    return m.Fulfil(0, _checked(key), b"", KEEP, failed)


def kept_value(client: Client, value: object) -> TaskFuture[Any]:
    """Return a future that has ended with this value, for tasks to depend on.

    Raises:
        SerializationError: it cannot be pickled.
        TooLarge: it is above `max_payload`.
    """
    what = "the value for put()"
    payload = dumps(value, what=what, memfd=client.table.memfd)
    check_size(payload, client.max_payload, what)
    return client.table.keep(OpenRun(client.table, spec_number(KEPT_VALUE), KEPT_VALUE), payload)


class SinkInput:
    """The way of values from one client into one sink, which keeps their order.

    Args:
        client: the client that puts them.
        sink: the name of the sink.
        codec: PICKLE or SAFE: values are encoded so; empty for the client's own `result_codec`. With another
            one they are flat buffers already, of which consumers get the bytes.
        on_client_loss: as the task option, of values that no consumer has yet.

    Raises:
        ConfigError: the name is not text that can travel.
    """

    def __init__(self, client: Client, sink: str, codec: str = "", on_client_loss: str = "run") -> None:
        key = sink_name(sink), codec or client.result_codec
        runs = client.sink_runs
        run = runs.get(key)
        if run is None:
            if len(runs) >= MOST_RUNS:
                runs.clear()
            bare = Spec(b"", SINK_VALUE_NAME, kind=SINK_VALUE, sink=sink)
            spec = replace(bare, codec=key[1], on_client_loss=on_client_loss)
            run = runs[key] = OpenRun(client.table, spec_number(spec), spec)
        self._client = client
        self._run = run  # the same one each time: values travel together, and in their order

    def put(self, value: object) -> TaskFuture[None]:
        """Put a value into the sink; the future ends once a consumer has acknowledged it.

        Raises:
            SerializationError: it cannot be pickled, or is no plain data or no buffer.
            TooLarge: it is above `max_payload`.
            QueueFull: an event loop runs in this thread, and the mesh has no room for another task.
            MeshClosed: the mesh is closed.
        """
        what = f"the value for sink {self._run.spec.sink!r}"
        payload = self._encoded(value, what)
        check_size(payload, self._client.max_payload, what)
        return self._client.table.put(self._run, payload)

    def _encoded(self, value: object, what: str) -> Payload:
        codec, memfd = self._run.spec.codec, self._client.table.memfd
        if codec == PICKLE:
            return dumps(value, what=what, memfd=memfd)
        return (dumps_plain if codec == SAFE else dumps_encoded)(value, what=what, memfd=memfd)


def sink_name(name: object) -> str:
    """Return the name of a sink.

    Raises:
        ConfigError: it is not text that can travel.
    """
    if not isinstance(name, str) or not name or not is_name(name):
        raise ConfigError(f"a sink's name is text of 1 to {LONGEST_NAME} characters, not {name!r:.200}")
    return name


def _checked(key: object) -> str:
    if not isinstance(key, str) or not key or not is_name(key):
        raise ConfigError(
            f"the key of a promise has to be text of 1 to {LONGEST_NAME} characters, not {key!r:.200}"
        )
    return key
