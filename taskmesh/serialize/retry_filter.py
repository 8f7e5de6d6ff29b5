"""Which exceptions are retried, as bytes: a Retry's classes travel in the spec, for the slot."""

from __future__ import annotations

from taskmesh.errors import SerializationError
from taskmesh.serialize.cures import cannot_pickle
from taskmesh.serialize.encoding import encode
from taskmesh.serialize.payload import loads
from taskmesh.serialize.values import PASS

Classes = tuple[type[BaseException], ...]


def dumps_filter(on: Classes, never: Classes) -> bytes:
    """`Spec.retry_filter` for a Retry's exception classes: empty for the default (Exception,), ().

    Raises:
        SerializationError: a class cannot be pickled.
    """
    if on == (Exception,) and not never:
        return b""
    try:
        return encode((on, never), None)
    except PASS:
        raise
    except BaseException as error:
        raise SerializationError(cannot_pickle("a class in Retry(on=, never=)", error)) from error


def loads_filter(data: bytes) -> tuple[Classes, Classes]:
    """(on, never) of `dumps_filter`'s bytes.

    Raises:
        SerializationError: a class cannot be imported or rebuilt here.
    """
    if not data:
        return (Exception,), ()
    on, never = loads(data, what="a class in Retry(on=, never=)")
    return on, never
