"""Promises and values of a program's own: futures that no task function stands behind."""

from __future__ import annotations

import weakref
from typing import Any

from msgspec.structs import replace

from taskmesh.client.client import Client
from taskmesh.client.dependencies import KEPT_VALUE
from taskmesh.client.functions import spec_of
from taskmesh.client.futures.future import OpenRun, TaskFuture
from taskmesh.client.options import TaskOptions, is_name
from taskmesh.core.specs import spec_number
from taskmesh.errors import ConfigError, TooLarge
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import LONGEST_NAME, PROMISE, PROMISE_NAME, SAFE, Failed
from taskmesh.serialize.exceptions import dumps_exception
from taskmesh.serialize.payload import check_size, dumps, dumps_plain

KEEP = 86_400.0
"""Seconds for which the outcome of a promise answers those who ask for it later."""


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
        TooLarge: it is above `max_payload`, or with the others that are kept above `client.max_bytes`.
    """
    what = "the value for put()"
    payload = dumps(value, what=what, memfd=client.table.memfd)
    size, most, kept = len(payload), client.config.client.max_bytes, client.kept
    check_size(payload, client.max_payload, what)
    whole = size + sum(list(kept.values()))
    if whole > most:  # the hub would take no task of this client any more
        raise TooLarge(
            f"{what} would make {whole:,} bytes of values that this mesh keeps, and it may keep {most:,} "
            "(client.max_bytes). Drop the futures of values that no task needs any more, or raise the limit"
        )
    future = client.table.keep(OpenRun(client.table, spec_number(KEPT_VALUE), KEPT_VALUE), payload)
    kept[future._seq] = size
    weakref.finalize(future, kept.pop, future._seq, None).atexit = False
    return future


def _checked(key: object) -> str:
    if not isinstance(key, str) or not key or not is_name(key):
        raise ConfigError(
            f"the key of a promise has to be text of 1 to {LONGEST_NAME} characters, not {key!r:.200}"
        )
    return key
