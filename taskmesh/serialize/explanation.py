"""Error texts for values that cannot travel: the reason, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final

from taskmesh.errors import SerializationError
from taskmesh.serialize.encoding import encode
from taskmesh.serialize.fingerprint import references
from taskmesh.serialize.values import PASS, WrongPython, error_text, is_by_value, type_name

_LEVELS: Final = 20
_ITEMS: Final = 10_000

_FLATTEN: Final = "It is nested too deeply: flatten it, or pass it as bytes or a file"

_LOCK: Final = "Make the lock where it is used; tasks run in other processes and cannot share one"
_FILE: Final = "Pass the file's path and open it where it is used"

# A word in the pickler's error, and what to do. The first that fits is used: files come first, since the
# error about a file contains its name.
_PICKLE_REMEDIES: Final = (
    ("TextIOWrapper", _FILE),
    ("Buffered", _FILE),
    ("FileIO", _FILE),
    ("recursion", _FLATTEN),
    ("RecursionError", _FLATTEN),  # whose text is "Stack overflow" in Python 3.14
    ("a mesh belongs", "Inside a task use the mesh that runs it; do not pass one"),
    ("multiprocessing.connection", "Pass a Queue of multiprocessing.Manager(), or values to a sink"),
    ("thread.lock", _LOCK),
    ("Lock", _LOCK),
    ("socket", "Pass the address and open the connection where it is used"),
    ("sqlite3.Row", "Pass tuple(row) or dict(row)"),
    ("sqlite3", "Pass the database's path and open it where it is used"),
    ("generator", "Pass a list made of it"),
    ("coroutine", "Pass the async function and its arguments, not the coroutine"),
    ("weakref", "Pass what it refers to"),
    ("mmap", "Pass the file's path and map it where it is used"),
    ("thread", "Make threads and what belongs to them where they are used"),
    ("Future", "Pass the future's result(), not the future"),
    ("contiguous", "Pass a contiguous copy of the buffer"),
)
_PICKLE_REMEDY: Final = "Pass plain data instead, or give its class a __reduce__ that says how to remake it"


def cannot_pickle(what: str, error: BaseException, value: object = None) -> str:
    """The text of a SerializationError for a value that cannot be pickled; names the part to blame."""
    reason = error_text(error)
    remedy = next((remedy for word, remedy in _PICKLE_REMEDIES if word in reason), _PICKLE_REMEDY)
    part = "" if isinstance(error, RecursionError) else culprit(value)
    because = f" because of its {part}" if part else ""
    return f"{what} cannot be pickled{because}: {reason}. {remedy}"


def culprit(value: object) -> str:
    """The way from a value to the innermost part that cannot be pickled, with its type; empty if none is.

    Like `.inner.connections[1] (type _thread.lock)`; values that functions by value use are described.
    """
    way = ""
    seen = {id(value)}
    for _ in range(_LEVELS):
        parts = (named for named in islice(_parts(value), _ITEMS) if id(named[1]) not in seen)
        step, part = first_failing(parts)
        if not step:
            break
        way += step if step[0] in ".[" or not way else f", with {step}"
        seen.add(id(part))
        value = part
    return f"{way} (type {type_name(value)})" if way else ""


def first_failing(named: Iterable[tuple[str, Any]]) -> tuple[str, Any]:
    """Return the first of some named values that cannot be pickled; an empty name if each can."""
    for name, value in named:
        try:
            encode(value, [])
        except PASS:
            raise
        except BaseException:  # noqa: BLE001
            return name, value
    return "", None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Return what is pickled with a value, with the words for it."""
    match value:
        case FunctionType():
            if is_by_value(value):
                yield from references(value)
        case MethodType() | BuiltinMethodType() | partial():
            for name in ("__self__", "__func__", "func", "args", "keywords"):
                yield f".{name}", getattr(value, name, None)
        case type():
            if is_by_value(value):
                yield from ((f".{name}", part) for name, part in vars(value).items())
        case _:
            try:
                yield from _parts_of_object(value)
            except PASS:
                raise
            except BaseException:  # noqa: BLE001, S110 -- its own code is to blame
                pass


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    if isinstance(value, dict):
        yield from ((f"[{key!r:.60}]", part) for key, part in value.items())
        yield from ((".keys()", key) for key in value)
    if is_by_value(type(value)):
        yield ".__class__", type(value)
    reduced = value.__reduce_ex__(5)
    if isinstance(reduced, tuple):
        states = reduced[2] if len(reduced) > 2 else None
        for state in states if isinstance(states, tuple) else [states]:
            if isinstance(state, dict):
                yield from ((f".{name}", part) for name, part in state.items())


def cannot_rebuild(what: str, error: BaseException) -> str:
    """The text of a SerializationError for a payload that cannot be unpickled."""
    if type(error) is SerializationError:  # of a payload that says itself why, and what to do
        return f"{what} cannot be rebuilt here: {error}"
    return f"{what} cannot be rebuilt here: {error_text(error)}. {rebuild_remedy(error)}"


def rebuild_remedy(error: BaseException) -> str:
    """Return what to do about a value that cannot be rebuilt."""
    match error:
        case WrongPython():
            return (
                "Run the same Python minor version on both sides, or move what is defined in __main__ into a "
                "module that both sides can import"
            )
        case ModuleNotFoundError():
            return (
                f"Install or ship the module {error.name!r} on this side, or call "
                "taskmesh.register_by_value(module) on the side that sends"
            )
        case ImportError() | AttributeError():
            return "Both sides need the same version of the module that defines it"
        case _ if type_name(error) == "multiprocessing.context.AuthenticationError":
            return (
                "It is a proxy of a multiprocessing.Manager(), whose key the slots of an embedded mesh have, "
                "and workers elsewhere have not: use sinks, promises and limits of the mesh in its place"
            )
        case OSError():
            return "Submit it again; its memory was no longer there"
        case _:
            return (
                "Its class's own code failed (__init__, __setstate__ or what __reduce__ names): "
                "check that pickle.loads(pickle.dumps(value)) works"
            )
