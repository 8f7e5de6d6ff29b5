"""Functions to bytes and back: by reference where the worker can import them, else by value."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cloudpickle

from taskmesh.errors import FunctionUnavailable, SerializationError

_BY_VALUE: set[str] = set()


def register_by_value(module: ModuleType) -> None:
    """Functions and classes of `module` travel by value from now on: for modules that workers lack."""
    _BY_VALUE.add(module.__name__)
    cloudpickle.register_pickle_by_value(module)


def dump_function(fn: Callable[..., Any]) -> bytes:
    """The bytes of a callable, for `Spec.function`.

    Raises:
        SerializationError: it cannot travel; names what in it cannot.
    """
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if module and name and module != "__main__" and module not in _BY_VALUE:
        try:
            if unwrap(_resolve(module, name)) is unwrap(fn):
                return b"R" + f"{module}\0{name}".encode()
        except (ImportError, AttributeError):
            pass
    try:
        return b"V" + bytes([sys.version_info[1]]) + cloudpickle.dumps(unwrap(fn), 5)
    except Exception as error:
        raise SerializationError(f"{fn!r} cannot travel: {error}") from error


def load_function(data: bytes) -> Callable[..., Any]:
    """The callable of `dump_function`'s bytes, unwrapped from a taskmesh Task.

    Raises:
        FunctionUnavailable: it cannot be imported or rebuilt here; says the cure.
    """
    try:
        if data[:1] == b"R":
            module, name = data[1:].decode().split("\0")
            return unwrap(_resolve(module, name))
        return cloudpickle.loads(data[2:])
    except Exception as error:
        raise FunctionUnavailable(f"the function is not available here: {error}") from error


def unwrap(obj: Any) -> Any:
    """The function inside a taskmesh Task; anything else as it is."""
    for cls in type(obj).__mro__:
        if cls.__module__ == "taskmesh.task" and cls.__qualname__ == "Task":
            return obj.__wrapped__
    return obj


def _resolve(module: str, name: str) -> Any:
    obj: Any = importlib.import_module(module)
    for part in name.split("."):
        obj = getattr(obj, part)
    return obj


class FunctionCodec:
    """`dump_function` with a memory: gives the same `bytes` object as long as a function has not changed."""

    def encode(self, fn: Callable[..., Any]) -> bytes:
        return dump_function(fn)
