"""The picklers under `serialize.encoding`: the plain one, and cloudpickle for what workers cannot import.

Bytes that hold code objects end in two more bytes, the Python minor version that made them and a mark;
unpicklers stop before them.
"""

from __future__ import annotations

import io
import pickle
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import _lru_cache_wrapper, cache
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Final, Protocol

from taskmesh.errors import SerializationError, TaskMeshError, TaskTimeout
from taskmesh.serialize import annotation, reducers
from taskmesh.shm.blob import SMALL
from taskmesh.shm.files import Buffer


class FutureFound(TypeError):
    """A future is among the arguments of a call that is encoded as if there were none; or of no call."""


PASS: Final = (KeyboardInterrupt, TaskTimeout, FutureFound)
"""Never turned into an error of the value that is (un)pickled: a signal may raise the first two, and after
the last one the client encodes the call once more."""

_MINOR: Final = sys.version_info[1]
MARK: Final = bytes((_MINOR, 0xCB))
"""The end of bytes by value."""

# How a pickle of protocol 4 and above spells the module's name before a class or function of __main__. The
# plain word would also be found in every text with `if __name__ == "__main__"`.
MAIN: Final = b"\x8c\x08__main__"

REGISTERED: Final[list[bytes]] = []
"""Names of the modules registered for by-value; hot paths look whether there are any."""

PIPES: Final = "multiprocessing.connection"
"""A module whose objects are numbers of descriptors when they are pickled; it may not be imported yet."""

CODE: Final = (FunctionType, type, _lru_cache_wrapper)
"""Types of what is found by a name of its own."""

FLAT: Final = frozenset((bool, bytes, complex, float, int, str, type(None)))
_FLAT_NAMES: Final = {
    *("pathlib.PosixPath", "pathlib.PurePosixPath", "fractions.Fraction", "decimal.Decimal", "uuid.UUID"),
    *("pathlib._local.PosixPath", "pathlib._local.PurePosixPath"),  # in Python 3.13
    *("datetime.date", "datetime.datetime", "datetime.timedelta"),
    *("numpy.bool", "numpy.float32", "numpy.float64", "numpy.int32", "numpy.int64"),
}
"""Types whose values never change, refer to nothing else, and can always be rebuilt where their module is."""

STOP: Final = ord(".")
"""The last byte of a pickle."""


_CHILDS_MAIN: Final = "__mp_main__"
"""Name that multiprocessing gives its parent's `__main__` in a process that it did not fork."""

# Elsewhere it is a second name of `__main__`.
_IN_CHILD: Final = getattr(sys.modules.get(_CHILDS_MAIN), "__name__", None) == _CHILDS_MAIN
if _IN_CHILD:
    REGISTERED.append(_CHILDS_MAIN.encode())


class WrongPython(SerializationError):
    """The bytes hold code of another Python minor version."""


@cache
def cloudpickle() -> ModuleType:
    """The cloudpickle module, imported when first needed: a slot that runs importable code never pays."""
    import cloudpickle.cloudpickle  # type: ignore[import-untyped]

    module: ModuleType = cloudpickle.cloudpickle
    if _IN_CHILD:
        module.register_pickle_by_value(sys.modules[_CHILDS_MAIN])
    return module


def by_value_module(module: ModuleType) -> None:
    """From now on, what `module` (and its submodules) define travels by value."""
    cloudpickle().register_pickle_by_value(module)
    name = module.__name__.encode()
    if name not in REGISTERED:
        REGISTERED.append(name)


def is_by_value_module(name: str) -> bool:
    """Return whether functions of the module `name` travel by value.

    `__main__`'s do, those of what was registered, and those of a module that its name does not lead to: it
    was loaded from a path, and another one would be imported in its place.
    """
    if name == "__main__":
        return True
    module = sys.modules.get(name)
    if isinstance(module, ModuleType) and module not in _looked_for:
        _looked_for.add(module)
        if module.__name__ == name and not _is_found(module):
            by_value_module(module)
    if not REGISTERED:
        return False
    entries = cloudpickle().list_registry_pickle_by_value()
    return any(name == entry or name.startswith(f"{entry}.") for entry in entries)


_looked_for: Final[weakref.WeakSet[ModuleType]] = weakref.WeakSet()


def _is_found(module: ModuleType) -> bool:
    """Return whether the import of a module's name would find its file, if it has one."""
    file, name = getattr(module, "__file__", None), module.__name__
    if not isinstance(file, str):
        return True
    path, above = None, name.rpartition(".")[0]
    if above:
        package = sys.modules.get(above)
        if package is None or not _is_found(package):
            return False
        path = getattr(package, "__path__", None)
    origin = getattr(module.__spec__, "origin", None) or file
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except PASS:
            raise
        except BaseException:  # noqa: BLE001 -- of a finder that is not the interpreter's own
            return True
        if spec is not None:
            return bool(spec.origin == origin)
    return False


def is_by_name_module(module: ModuleType) -> bool:
    """Return True if a module travels as its name: it was imported, and not registered for by-value."""
    return sys.modules.get(module.__name__) is module and not is_by_value_module(module.__name__)


def names_by_value(data: bytes) -> bool:
    """Return whether a pickle seems to import from a module whose classes and functions travel by value.

    Or from one whose objects do not travel, as cloudpickle's way says.
    """
    if MAIN in data or any(name in data for name in REGISTERED):
        return True
    return PIPES in sys.modules and PIPES.encode() in data


def encode_plain(value: object, buffers: list[memoryview] | None) -> bytes | None:
    """The pickle of a value whose parts can all be imported elsewhere; None where cloudpickle has to try.

    Buffers of SMALL bytes and more are appended to `buffers`, unless that is None.

    Raises:
        RecursionError: the value is nested too deeply for either.
    """
    taken: list[memoryview] = []
    try:
        data = pickle.dumps(value, 5, buffer_callback=None if buffers is None else keeper(taken))
    except (RecursionError, *PASS):
        raise
    except BaseException:  # noqa: BLE001 -- cloudpickle raises it again where it is the value's own
        return None
    if names_by_value(data):
        return None
    if buffers is not None:
        buffers += taken
    return data


class LargeBuffer(TaskMeshError):
    """A buffer came up that has to travel out of band."""


def in_band(buffer: pickle.PickleBuffer) -> bool:
    """A buffer_callback for the common case of none: keeps small buffers in the pickle and refuses others.

    Raises:
        LargeBuffer: the value has to be pickled in full style.
    """
    if memoryview(buffer).nbytes < SMALL:
        return True
    raise LargeBuffer


def keeper(buffers: list[memoryview]) -> Callable[[pickle.PickleBuffer], bool]:
    """A buffer_callback that takes buffers of SMALL bytes and more out of band, into `buffers`."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous: the pickler says so in its own words
            return True
        if view.nbytes < SMALL:
            return True
        buffers.append(view)
        return False

    return keep


class Names(Protocol):
    """Knows the names by which parts of a value go apart from it.

    Attributes:
        keys: those of objects that are no functions or classes, by the objects' ids.
    """

    keys: dict[int, tuple[str, str, str]]

    def refer(self, obj: Any) -> tuple[Any, ...] | None:
        """Return what stands in the place of a function or class by value; None if it goes along."""

    def named(self, key: tuple[str, str, str], obj: object) -> tuple[str, str, str] | None:
        """Return the name of any other object, None for the one that is being pickled."""

    def globals_of(self, fn: FunctionType) -> tuple[Any, ...] | None:
        """Return what a reducer says of a function's globals, None if they go along with it."""


def encode_by_value(
    value: object, buffers: list[memoryview] | None, names: Names, *, apart: bool = False
) -> bytes:
    """The pickle that cloudpickle makes of a value, without a mark.

    Args:
        value: anything that cloudpickle can do.
        buffers: as for `encode_plain`.
        names: asked for each class and function.
        apart: ask it for every other object, too.

    Raises:
        Exception: whatever the value's own code or cloudpickle raise; `buffers` is then as it was.
    """
    file = io.BytesIO()
    taken: list[memoryview] = []
    _picklers()[apart](file, None if buffers is None else keeper(taken), names).dump(value)
    if buffers is not None:
        buffers += taken
    return file.getvalue()


@cache
def _picklers() -> tuple[Any, Any]:
    module = cloudpickle()
    made = reducers.Reducers(module)
    made.update(annotation.reducers(module))
    made[io.TextIOWrapper] = _text_file
    made[ModuleType] = _module

    class SharingPickler(module.Pickler):  # type: ignore[misc,name-defined]
        dispatch_table: ClassVar[Any] = made

        def __init__(self, file: io.BytesIO, keep: Any, names: Names) -> None:
            super().__init__(file, 5, buffer_callback=keep)
            self.names = names

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, CODE):
                if is_by_value(obj):
                    place = self.names.refer(obj)
                    return self._by_value(obj) if place is None else (definition, place)
                if isinstance(obj, FunctionType):
                    return NotImplemented
            return super().reducer_override(obj)

        def _by_value(self, obj: Any) -> Any:
            if isinstance(obj, type):
                return _class_by_value(module, obj, super().reducer_override)
            if reducers.is_cached(obj):
                return NotImplemented
            if reducers.is_dispatcher(obj):
                return reducers.dispatcher(obj)
            reduced = _with_globals(
                super().reducer_override(annotation.with_text_annotations(obj)), self.names.globals_of(obj)
            )
            return annotation.with_type_params(reduced, obj)

    class NamingPickler(SharingPickler):
        persistent_id = _name_of

    return SharingPickler, NamingPickler


def _name_of(pickler: Any, obj: object) -> Any:
    key = pickler.names.keys.get(id(obj))
    return key and pickler.names.named(key, obj)


def _class_by_value(module: ModuleType, cls: type, reduce: Callable[[type], Any]) -> Any:
    made = reducers.slotted_class(module, cls) if reducers.has_slots(cls) else reduce(cls)
    made[2][0].pop("__slotnames__", None)  # it comes with the first object that is pickled
    return annotation.with_annotations(made, cls)


def _with_globals(reduced: tuple[Any, ...], scope: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Return what cloudpickle's reducer says of a function, with its globals as `Names` says, if it does."""
    if scope is None:
        return reduced
    make, (code, _, *rest), state, *others = reduced
    state[1]["__globals__"] = {}
    return make, (code, _Reduced(scope), *rest), state, *others


class _Reduced:
    """An object in whose place a pickle has what a reducer says of it."""

    def __init__(self, reduced: tuple[Any, ...]) -> None:
        self._reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _module(module: ModuleType) -> Any:
    is_by_name_module(module)  # it may be asked for the first time
    return cloudpickle()._module_reduce(module)


def _text_file(file: io.TextIOWrapper) -> tuple[Any, ...]:
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    # cloudpickle would send all that is in it: the task would read a copy, and of a temporary file delete the
    # caller's own when it is through.
    raise TypeError(f"cannot pickle the open file {file!r:.200}")


def definition(*key: Any) -> object:
    """In a pickle: the definition of that name, which came apart. `ByValueUnpickler` puts it in.

    Raises:
        UnpicklingError: some other unpickler came along.
    """
    raise pickle.UnpicklingError(f"definition {key} came apart from this pickle")


def is_by_value(obj: Any) -> bool:
    """Return True if some CODE travels by value, since importing its module does not give it."""
    if isinstance(obj, type) and obj.__module__ == "builtins":
        return False  # also those without a name there, like the type of None
    is_by_value_module(str(obj.__module__))  # it may be the first of its module
    found = cloudpickle()._lookup_module_and_qualname(obj)
    return found is None or cloudpickle()._is_registered_pickle_by_value(found[0])


def decode_plain(data: Buffer, buffers: Iterable[Buffer]) -> Any:
    """The value of `encode_plain`'s bytes.

    Raises:
        Exception: whatever the value's own code or the unpickler raise.
    """
    return pickle.loads(data, buffers=buffers)


class ByValueUnpickler(pickle.Unpickler):
    """Unpickles what cloudpickle made, and leaves classes that were defined in this process as they are.

    cloudpickle maps a class that comes back to the one that went out, but then overwrites its attributes with
    copies made elsewhere: methods would lose the globals of the user's own `__main__`.
    """

    def __init__(
        self,
        data: Buffer,
        buffers: Iterable[Buffer] = (),
        shared: Callable[[tuple[Any, ...]], object] | None = None,
    ) -> None:
        minor = data[-2]
        if minor != _MINOR:
            raise WrongPython(f"it holds code made by Python 3.{minor}, and this is Python 3.{_MINOR}")
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._shared = shared

    def find_class(self, module: str, name: str) -> Any:
        """As usual, but with our own ways of remaking classes, and with what came apart from this pickle."""
        if module == "cloudpickle.cloudpickle":
            if name == "_class_setstate":
                return _set_class_state
            if name in {"_make_skeleton_class", "_make_skeleton_enum"}:
                return _note_received(getattr(cloudpickle(), name))
        shared = self._shared
        if name == "definition" and module == __name__ and shared is not None:
            return lambda *key: shared(key)  # the memo has it: with `self` it would keep what is unpickled
        return super().find_class(module, name)

    def persistent_load(self, key: Any) -> object:
        """Return what came apart from this pickle."""
        return definition(*key) if self._shared is None else self._shared(tuple(key))


_received: Final[weakref.WeakKeyDictionary[type, frozenset[str]]] = weakref.WeakKeyDictionary()
"""Classes that came from elsewhere, and the names of their attributes."""


def _note_received(make: Callable[..., type]) -> Callable[..., type]:
    """Wrap a maker of class skeletons; its last but one argument is the class's tracker id."""

    def remake(*args: Any) -> type:
        known = args[-2] in cloudpickle()._DYNAMIC_CLASS_TRACKER_BY_ID
        cls = make(*args)
        if not known:
            _received.setdefault(cls, frozenset())
        return cls

    return remake


def _set_class_state(cls: type, state: Any) -> type:
    former = _received.get(cls)
    if former is not None:
        names = frozenset(state[0])
        for name in (former - names).intersection(vars(cls)):
            type.__delattr__(cls, name)
        cloudpickle()._class_setstate(cls, state)
        _received[cls] = names
    return cls


def is_flat(cls: type) -> bool:
    """Return whether values of a type never change, and refer to nothing else."""
    return cls in FLAT or class_name(cls) in _FLAT_NAMES


def type_name(value: object) -> str:
    """A value's type as people write it."""
    return class_name(type(value))


def class_name(cls: type) -> str:
    """A class as people write it: builtins without their module."""
    module = getattr(cls, "__module__", "")
    return cls.__qualname__ if module in {"builtins", ""} else f"{module}.{cls.__qualname__}"


def own_text(error: BaseException) -> str:
    """Return what an error's own __str__ says, which may be broken."""
    try:
        return str(error)
    except PASS:
        raise
    except BaseException:  # noqa: BLE001 -- the user's own code
        return "<its text cannot be made>"


def sayable(text: str) -> str:
    """A text as messages can carry it: lone surrogates (of an odd file name, say) become escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def error_text(error: BaseException, limit: int = 500) -> str:
    """`Type: text` of an error whose own __str__ may be broken or endless; no lone surrogates are in it."""
    text = own_text(error)
    if len(text) > limit:
        text = text[:limit] + "..."
    return sayable(f"{class_name(type(error))}: {text}" if text else class_name(type(error)))
