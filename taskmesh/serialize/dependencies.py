"""Futures among the arguments of a call: they travel as the numbers of their tasks, and arrive as outcomes.

A client collects the futures while it encodes a call. A slot provides the outcomes while it decodes it.
Elsewhere a future cannot be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from taskmesh.errors import BadSignature, SerializationError
from taskmesh.messages.runs import PROMISE, Value
from taskmesh.serialize.payload import loads, loads_plain
from taskmesh.serialize.values import FutureFound

Loader = Callable[..., Any]
"""Called in the slot with a task's number, and the key of a promise: gives what arrives in its place."""


class Collection:
    """The encoding of one call: a context in which this thread collects the futures that it pickles.

    Args:
        table: the pending table that they have to belong to.
        loader: a function of a module, called in the slot in the place of each future.

    Attributes:
        found: the futures, by their numbers.
    """

    __slots__ = ("_before", "found", "loader", "table")

    def __init__(self, table: object, loader: Loader) -> None:
        self.found: dict[int, Any] = {}
        self.table = table
        self.loader = loader

    def __enter__(self) -> dict[int, Any]:
        self._before = _encoding.set(self)
        return self.found

    def __exit__(self, *error: object) -> None:
        _encoding.reset(self._before)


_encoding: ContextVar[Collection | None] = ContextVar("_encoding", default=None)
_provided: ContextVar[dict[int, Value]] = ContextVar("_provided")
"""In a slot: the outcomes that the running task is handed."""
_is_plain: ContextVar[bool] = ContextVar("_is_plain", default=False)
"""In a slot: the running task's client takes plain data only."""


def is_collecting() -> bool:
    """Return True while this thread encodes a call that may depend on futures."""
    return _encoding.get() is not None


def reduced(future: Any, table: object) -> tuple[Loader, tuple[Any, ...]]:
    """Return what pickle makes of a future: a call that gives its outcome in the slot.

    Raises:
        FutureFound: no call is being encoded.
        TypeError: a call for another mesh is.
    """
    encoding = _encoding.get()
    if encoding is None:
        raise FutureFound("a TaskFuture cannot be pickled: pass it to submit(), or pass its result()")
    if table is not encoding.table:
        raise TypeError("a task cannot depend on a future of another mesh: pass its result()")
    encoding.found[future._seq] = future
    run = future._run
    if run.spec.kind == PROMISE:
        return encoding.loader, (future._seq, run.key)
    return encoding.loader, (future._seq,)


def itself(value: Any) -> Any:
    """Return a value: it is pickled in the place of a future that has ended."""
    return value


@contextmanager
def provided(values: Iterable[Value], *, plain: bool = False) -> Iterator[None]:
    """Provide the outcomes that a call needs while it is decoded; `plain` as for `loads_value`."""
    provided = _provided.set({value.seq: value for value in values})
    is_plain = _is_plain.set(plain)
    try:
        yield
    finally:
        _is_plain.reset(is_plain)
        _provided.reset(provided)


def is_plain() -> bool:
    """Return True if the running task's client takes plain data only."""
    return _is_plain.get()


def provided_value(seq: int, key: str = "") -> Value | None:
    """Return the outcome of a task as it has come along with the running one, if it has.

    Args:
        seq: the number of the task.
        key: of a promise.

    Raises:
        BadSignature: it is the outcome of another promise.
    """
    value = _provided.get({}).get(seq)
    if value is not None and value.key not in ("", key):
        raise BadSignature(f"the outcome of task number {seq} is that of another promise, {value.key!r}")
    return value


def value_of(seq: int, key: str = "") -> Any:
    """Return the value of a task that the running one depends on.

    Raises:
        SerializationError: it cannot be rebuilt here, or has not come along.
        BadSignature: it is not that of the task.
    """
    value = provided_value(seq, key)
    if value is not None and value.failed is not None and value.failed.kind == "signature":
        raise BadSignature(f"the result of {value.name} cannot be trusted: {value.failed.text}")
    if value is None or value.failed is not None:
        raise SerializationError(f"the outcome of task number {seq} has not come along with the task")
    return loads_value(value, plain=is_plain())


def loads_value(value: Value, *, plain: bool) -> Any:
    """Rebuild the value of a task that has succeeded.

    Args:
        value: the value.
        plain: unpickle nothing but what the client itself has put into the mesh.

    Raises:
        SerializationError: it cannot be rebuilt in this process, or is pickled.
    """
    load = loads_plain if plain and not value.is_kept else loads
    return load(value.payload, what=f"the result of {value.name}")
