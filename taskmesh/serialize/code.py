"""Functions to bytes and back: by reference where a worker can import them, else by value.

By value go functions of `__main__`, lambdas, nested functions, and modules that were registered for it. Code
objects do not fit other minor versions of Python, so bytes by value say which one made them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from pickle import PickleBuffer
from types import ModuleType
from typing import Any, Final

import msgspec

from taskmesh.errors import FunctionUnavailable, NoMesh, SerializationError
from taskmesh.serialize.chunks import unchanging
from taskmesh.serialize.encoding import decode, encode
from taskmesh.serialize.explanation import cannot_pickle, culprit, rebuild_remedy
from taskmesh.serialize.fingerprint import Fingerprint
from taskmesh.serialize.reducers import is_cached
from taskmesh.serialize.sources import REFERENCE, look_at_imports
from taskmesh.serialize.values import (
    MAIN,
    PASS,
    WrongPython,
    by_value_module,
    error_text,
    is_by_value_module,
    type_name,
)
from taskmesh.shm.files import Buffer

Function = Callable[..., Any]

_PICKLE: Final = b"P"
_FRAMED: Final = b"F"
_CARRIED: Final = b"C"
_AWAITED: Final = b"A"
_FRAME: Final = "FRAME"
"""The name of a class in a module of taskmesh: its objects travel as plain values, and load what they call
by the same rules."""
_OWN: Final = "taskmesh.messages.signing"
"""Module of functions that run in place of a task that is not to be trusted."""
_allowed: list[str] = []
_PYTHON: Final = f"Python {sys.version_info[0]}.{sys.version_info[1]}"


def register_by_value(module: ModuleType) -> None:
    """Functions and classes of `module`, and of its submodules, travel by value from now on.

    It is meant for modules that are still being written and that workers lack: `register_by_value(my_module)`
    in the client, before the first submission. Modules that last are better installed on the workers.

    Raises:
        SerializationError: `module` is not an imported module.
    """
    if not isinstance(module, ModuleType) or module.__name__ not in sys.modules:
        raise SerializationError(
            f"register_by_value() takes an imported module, not {type_name(module)}: import it and pass it"
        )
    by_value_module(module)


def dump_function(fn: Function) -> bytes:
    """The bytes of a callable, for `Spec.function`; a taskmesh Task counts as the function in it.

    Raises:
        SerializationError: it cannot travel; names what in it cannot, and what to do.
    """
    fn = unwrap(fn)
    if _is_frame(fn):
        values = fn.plain_values()  # type: ignore[attr-defined]
        return _FRAMED + msgspec.msgpack.encode((type(fn).__module__, values))
    reference = _reference(fn)
    if reference is not None:
        return REFERENCE + "\0".join(reference).encode()
    return _PICKLE + _pickled(fn, None)


def _pickled(fn: Function, buffers: list[memoryview] | None) -> bytes:
    try:
        return encode(fn, buffers)
    except PASS:
        raise
    except BaseException as error:
        raise SerializationError(_explain(fn, error)) from error


def allow_only(modules: Sequence[str]) -> None:
    """From now on this process loads functions by name from these modules and packages, and no others.

    It says which code runs. It is no wall against whoever may submit: arguments are still pickles.
    """
    _allowed[:] = [*modules, _OWN]


def takes_code() -> bool:
    """Return True if this process runs code that travels, False after `allow_only`."""
    return not _allowed


def load_function(data: bytes) -> Function:
    """The callable of `dump_function`'s bytes; runs the code of the module that it comes from.

    Raises:
        FunctionUnavailable: it cannot be imported or rebuilt in this process, or is not among those that this
            process may run; says why and what to do.
    """
    try:
        if data[:1] == REFERENCE:
            module, _, name = data[1:].decode().partition("\0")
            _check_allowed(module, name)
            fn = _import(module, name)
            _check_allowed(getattr(fn, "__module__", None), name)  # it may have been imported there
        elif data[:1] == _FRAMED:
            fn = _framed(data[1:])
        elif _allowed:
            raise FunctionUnavailable(f"a function that travels by value is not run here: {_only()}")
        elif data in {_CARRIED, _AWAITED}:
            fn = _call if data == _CARRIED else _await
        elif data[:1] == _PICKLE:
            fn = unwrap(_rebuild(data[1:], keep=True))
        else:
            raise FunctionUnavailable("these are not a function's bytes; the client speaks another version")
    except UnicodeDecodeError as error:
        raise FunctionUnavailable("these are not a function's bytes: no text") from error
    if not callable(fn):
        raise FunctionUnavailable(f"a {type_name(fn)} came instead of a function; it cannot be called")
    return fn  # type: ignore[no-any-return]


class Carried:
    """A callable with values of its own, pickled: its calls have it as their last argument.

    Attributes:
        buffers: the large ones of those values, which travel as an argument's do.
    """

    __slots__ = ("_data", "buffers")

    def __init__(self, data: Buffer, *buffers: Buffer) -> None:
        self._data = data
        self.buffers = buffers

    @classmethod
    def of(cls, fn: Function) -> Carried:
        """Pickle a callable; raise as `dump_function`."""
        buffers: list[memoryview] = []
        return cls(_pickled(fn, buffers), *buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        # In pieces: the pickle around it would take the names in its own for names of its own, and be slow.
        pieces = tuple(map(PickleBuffer, bytes(self._data).split(MAIN)))
        return _joined, (pieces, *map(PickleBuffer, self.buffers))

    def __len__(self) -> int:
        return sum(map(len, (self._data, *self.buffers)))

    def copy(self) -> Carried:
        """Return it with buffers that nobody else changes."""
        return Carried(self._data, *[unchanging(memoryview(buffer)) for buffer in self.buffers])

    def load(self) -> Function:
        """The callable as it was, made of the buffers themselves.

        Raises:
            CarriedUnavailable: it cannot be rebuilt in this process; says why and what to do.
        """
        try:
            return unwrap(_rebuild(self._data, self.buffers))  # type: ignore[no-any-return]
        except FunctionUnavailable as error:
            raise CarriedUnavailable(*error.args) from error


Trailers = tuple[Carried | dict[str, str], ...]
"""The last arguments of a call, which its function does not see: what its callable carries, and headers."""


class CarriedUnavailable(FunctionUnavailable):
    """It is the task's function that cannot be loaded, and no error of it or of a task that it waits for."""


def _joined(pieces: tuple[Buffer, ...], *buffers: Buffer) -> Carried:
    return Carried(MAIN.join(pieces), *buffers)


def _call(*args: Any, **kwargs: Any) -> Any:
    return args[-1].load()(*args[:-1], **kwargs)


async def _await(*args: Any, **kwargs: Any) -> Any:
    return await args[-1].load()(*args[:-1], **kwargs)


def is_coroutine_function(fn: Function) -> bool:
    """Return whether what a callable returns is to be awaited."""
    if inspect.iscoroutinefunction(fn):
        return True
    call = getattr(type(fn), "__call__", None)  # noqa: B004  an instance may be callable so
    return isinstance(call, types.FunctionType) and inspect.iscoroutinefunction(call)


def _has_state(fn: Function) -> bool:
    """Return whether a callable carries values of its own: a partial, a bound method, an object of a class.

    They are data of the call, as its arguments are. What a function refers to stays from call to call.
    """
    if isinstance(fn, types.FunctionType | type) or is_cached(fn) or _is_frame(fn):
        return False
    bound = getattr(fn, "__self__", fn)
    return not isinstance(bound, type | ModuleType | types.MethodDescriptorType | types.WrapperDescriptorType)


def _is_frame(fn: Function) -> bool:
    """Return whether the module of an object's class, one of taskmesh, offers that class as its frame."""
    module = type(fn).__module__
    return str(module).startswith("taskmesh.") and getattr(sys.modules.get(module), _FRAME, None) is type(fn)


def _framed(data: bytes) -> Function:
    try:
        module, values = msgspec.msgpack.decode(data, type=tuple[str, list[Any]])
        if not all(isinstance(value, str | bytes) for value in values):
            raise TypeError("a frame is made of text and bytes")
        if not module.startswith("taskmesh.") or "__" in module:
            raise LookupError(f"{module} offers no frame")
        frame: Function = _import(module, _FRAME)(*values)
    except (msgspec.MsgspecError, LookupError, TypeError) as error:
        raise FunctionUnavailable(f"these are not a function's bytes: {error}") from error
    return frame


def unwrap(obj: Any) -> Any:
    """The function inside what taskmesh's own decorator returns; anything else as it is."""
    if type(obj).__module__.startswith("taskmesh."):
        return getattr(obj, "__wrapped__", obj)
    return obj


class FunctionCodec:
    """`dump_function` with a memory: the same `bytes` object for as long as a function has not changed.

    Bytes by value are made anew when a default, a closure variable or a global that the function names, also
    through other functions by value, has changed. Remembered functions are not kept alive. Callables without
    an identity of their own (bound methods, `str.upper`) are pickled each time. Thread-safe.

    What a callable has of its own does not go with the bytes, but with each call.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def encode(self, fn: Function) -> tuple[bytes, tuple[Carried, ...]]:
        """The bytes of `fn` as it is now, and what its calls have behind their arguments.

        Raises:
            SerializationError: as `dump_function`.
        """
        known = self._known.get(id(fn))
        if known is not None and known.holds(fn):
            return known.data, ()
        inner = unwrap(fn)
        reference = _reference(inner)
        if reference is None and _has_state(inner):
            return _AWAITED if is_coroutine_function(inner) else _CARRIED, (Carried.of(inner),)
        return self._encode_anew(fn, inner, reference, known), ()

    def remembers(self, fn: Function) -> bool:
        """Return whether `encode` would give the bytes of the last time without making them anew."""
        known = self._known.get(id(fn))
        return known is not None and known.holds(fn)

    def _encode_anew(
        self, fn: Function, inner: Function, reference: tuple[str, str] | None, before: _Known | None
    ) -> bytes:
        # First what it refers to, then the bytes: a change in between is found at the next call.
        fingerprint = Fingerprint(inner) if reference is None else None
        data = dump_function(inner)
        if before is not None and before.ref() is fn and before.data == data:
            data = before.data
        key, known = id(fn), self._known
        try:
            ref = weakref.ref(fn, lambda _: known.pop(key, None))
        except TypeError:
            return data
        known[key] = _Known(ref, data, reference, fingerprint)
        return data


class _Known:
    """The bytes that the codec remembers of one function, with what tells whether they are still true."""

    __slots__ = ("_fingerprint", "_reference", "data", "ref")

    def __init__(
        self,
        ref: weakref.ref[Any],
        data: bytes,
        reference: tuple[str, str] | None,
        fingerprint: Fingerprint | None,
    ) -> None:
        self.ref = ref
        self.data = data
        self._reference = reference
        self._fingerprint = fingerprint

    def holds(self, fn: Function) -> bool:
        """Return True if `data` still says what `fn` is."""
        if self.ref() is not fn:
            return False
        if self._reference is not None:
            return _found(*self._reference, unwrap(fn))
        return self._fingerprint is not None and self._fingerprint.unchanged()


def _check_allowed(module: str | None, name: str) -> None:
    if _allowed and not any(module == each or f"{module}.".startswith(f"{each}.") for each in _allowed):
        raise FunctionUnavailable(f"{name} of module {module} is not run here: {_only()}")


def _only() -> str:
    named = ", ".join(_allowed[:-1])
    return f"this worker runs functions of {named} alone. Name its module too, with --only-registered"


def _reference(fn: Any) -> tuple[str, str] | None:
    """(module, qualified name) if a worker that imports them gets `fn`, as far as can be told here."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or is_by_value_module(module):
        return None
    return (module, name) if _found(module, name, fn) else None


def _found(module: str, name: str, fn: Any) -> bool:
    """Return whether the name stands for `fn`, or for the task made of it, in this process."""
    try:
        obj: Any = sys.modules[module]
        for part in name.split("."):
            obj = getattr(obj, part)
    except (KeyError, AttributeError):
        return False
    return obj is fn or unwrap(obj) is fn


def _import(module: str, name: str) -> Any:
    where = f"the function {name} of module {module}"
    is_new = module not in sys.modules
    try:
        obj: Any = importlib.import_module(module)
    except PASS:
        raise
    except BaseException as error:
        raise FunctionUnavailable(f"{where} is not available: {_import_problem(module, error)}") from error
    if is_new:
        look_at_imports()
    try:
        for part in name.split("."):
            obj = getattr(obj, part)
    except AttributeError as error:
        place = getattr(sys.modules.get(module), "__file__", None) or "built in"
        raise FunctionUnavailable(
            f"{where} is not available: {_PYTHON} has that module ({place}), but it has no {name}. "
            "The worker needs the same version of the module as the client"
        ) from error
    return unwrap(obj)


def _import_problem(module: str, error: BaseException) -> str:
    """Return what is wrong when a module cannot be imported here, and what to do."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        shown = [entry or "." for entry in sys.path[:4]]
        more = f" and {len(sys.path) - 4} more" if len(sys.path) > 4 else ""
        top = module.partition(".")[0]
        return (
            f"the worker's {_PYTHON} finds no module {error.name!r} on its sys.path ({', '.join(shown)}"
            f"{more}). Install {error.name.partition('.')[0]} on the worker, or start the worker where "
            f"it is found (PYTHONPATH, `taskmesh worker {module}`), or call "
            f"taskmesh.register_by_value({top}) in the client"
        )
    failed = f"importing that module on the worker's {_PYTHON} failed: {error_text(error)}"
    if isinstance(error, NoMesh):
        return failed  # it says what to do
    return f"{failed}. Check that `python -c 'import {module}'` works on the worker"


def _rebuild(data: Buffer, buffers: Iterable[Buffer] = (), *, keep: bool = False) -> Any:
    try:
        return decode(data, buffers, keep=keep)
    except PASS:
        raise
    except WrongPython as error:
        raise FunctionUnavailable(
            f"a function that travels by value cannot be rebuilt: {error}. Run the same Python minor "
            "version on clients and workers, or move it from __main__ into a module that workers have"
        ) from error
    except ImportError as error:
        missing = getattr(error, "name", None) or "unknown"
        problem = _import_problem(missing, error)
        raise FunctionUnavailable(f"a function by value needs a module: {problem}") from error
    except BaseException as error:
        raise FunctionUnavailable(
            f"a function that travels by value cannot be rebuilt on {_PYTHON}: {error_text(error)}. "
            + rebuild_remedy(error)
        ) from error


def _explain(fn: Any, error: BaseException) -> str:
    """The text for a function that cannot travel: the part that cannot, and what to do."""
    name, reason = getattr(fn, "__qualname__", None) or type_name(fn), error_text(error)
    inner = getattr(fn, "__wrapped__", fn) if is_cached(fn) else fn
    part = culprit(inner)
    if part and isinstance(inner, types.FunctionType):
        return (
            f"the function {name} travels by value and takes {part} along, which cannot be pickled: "
            f"{reason}. Make it inside the function, pass what it is made of as an argument, or "
            "define both in a module that workers can import"
        )
    return cannot_pickle(f"the callable {name} (type {type_name(fn)})", error, inner)
