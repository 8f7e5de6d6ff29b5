"""Values to payloads and back: arguments, results, map chunks, exceptions. Only clients and slots import this."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle

from taskmesh.errors import SerializationError, TooLarge
from taskmesh.wire.blob import MEMFD_FROM, PRIVATE, SMALL, Blob
from taskmesh.wire.exceptions import dumps_exception, load_exception
from taskmesh.wire.messages import SlotFailure

__all__ = [
    "Blob", "Payload", "check_size", "dumps", "dumps_call", "dumps_chunk", "dumps_chunk_result", "dumps_exception",
    "dumps_filter", "load_exception", "loads", "loads_chunk", "loads_chunk_result", "loads_filter",
]

Payload = bytes | Blob


def dumps(value: object, *, what: str = "value", memfd: bool = True) -> Payload:
    try:
        data = pickle.dumps(value, 5)
        if b"__main__" in data:
            data = cloudpickle.dumps(value, 5)
    except Exception:
        try:
            data = cloudpickle.dumps(value, 5)
        except Exception as error:
            raise SerializationError(f"{what} cannot be pickled: {error}") from error
    if len(data) <= SMALL:
        return data
    blob = Blob.from_parts([data])
    if memfd and len(data) >= MEMFD_FROM:
        blob.to_fd()
    return blob


def dumps_call(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, where: str, memfd: bool = True) -> Payload:
    """(args, kwargs) of one call of the task named `where`; `loads` gives the pair back."""
    return dumps((args, kwargs), what=f"an argument of {where}", memfd=memfd)


def dumps_chunk(items: Sequence[tuple[Any, ...]], *, where: str = "", memfd: bool = True) -> Payload:
    """Argument tuples of a map chunk; `loads_chunk` gives them back."""
    return dumps(list(items), what=f"an item of {where}", memfd=memfd)


def loads(payload: Payload, *, what: str = "value") -> Any:
    try:
        if isinstance(payload, Blob):
            parts = payload.fresh_parts()
            return pickle.loads(parts[0], buffers=parts[1:])
        return pickle.loads(payload)
    except Exception as error:
        raise SerializationError(f"{what} cannot be rebuilt here: {error}") from error


def loads_chunk(payload: Payload, *, what: str = "an item") -> list[tuple[Any, ...] | SerializationError]:
    """The items of `dumps_chunk`; one that cannot be rebuilt is a SerializationError in its place."""
    return loads(payload, what=what)


def dumps_chunk_result(
    values: Sequence[Any], failures: Mapping[int, SlotFailure], *, where: str = "", memfd: bool = True
) -> Payload:
    """Values of a chunk (None where `failures` has the index). A value that cannot be pickled becomes a failure."""
    return dumps((list(values), dict(failures)), what=f"a result of {where}", memfd=memfd)


def loads_chunk_result(payload: Payload, *, what: str = "a result") -> list[tuple[bool, Any]]:
    """(True, value) or (False, SlotFailure) for each item, in order."""
    values, failures = loads(payload, what=what)
    return [(False, failures[i]) if i in failures else (True, value) for i, value in enumerate(values)]


def dumps_filter(on: tuple[type[BaseException], ...], never: tuple[type[BaseException], ...]) -> bytes:
    """`Spec.retry_filter`: empty for the default (Exception,), ()."""
    if on == (Exception,) and never == ():
        return b""
    data = dumps((on, never), what="a class in Retry(on=, never=)", memfd=False)
    return data if isinstance(data, bytes) else bytes(data.parts[0])


def loads_filter(data: bytes) -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
    if not data:
        return (Exception,), ()
    on, never = loads(data, what="a class in Retry(on=, never=)")
    return on, never


def check_size(
    payload: Payload, limit: int, what: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> None:
    """Raises TooLarge when the payload is above `limit` bytes; names the largest of the arguments."""
    if len(payload) > limit:
        raise TooLarge(f"{what} takes {len(payload)} bytes, above max_payload = {limit}")
