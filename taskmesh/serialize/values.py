"""The picklers under `serialize.encoding`: the plain one, and cloudpickle for what workers cannot import.

Bytes that hold code objects end in two more bytes, the Python minor version that made them and a mark;
unpicklers stop before them.
"""

from __future__ import annotations

import io
import itertools
import pickle
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Final, NamedTuple

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

STOP: Final = ord(".")
"""The last byte of a pickle."""


_CHILDS_MAIN: Final = "__mp_main__"
"""What multiprocessing calls its parent's `__main__` in a process that it did not fork."""

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


def encode_by_value(
    value: object, buffers: list[memoryview] | None, number: Callable[[object], int | None]
) -> bytes:
    """The pickle that cloudpickle makes of a value, without a mark.

    Args:
        value: anything that cloudpickle can do.
        buffers: as for `encode_plain`.
        number: asked for each class and function: a number stands in its place, unless it gives None.

    Raises:
        Exception: whatever the value's own code or cloudpickle raise; `buffers` is then as it was.
    """
    file = io.BytesIO()
    taken: list[memoryview] = []
    _sharing_pickler()(file, None if buffers is None else keeper(taken), number).dump(value)
    if buffers is not None:
        buffers += taken
    return file.getvalue()


@cache
def _sharing_pickler() -> Any:
    module = cloudpickle()
    made = reducers.Reducers(module)
    made.update(annotation.reducers(module))
    made[io.TextIOWrapper] = _text_file
    made[ModuleType] = _module

    class SharingPickler(module.Pickler):  # type: ignore[misc,name-defined]
        dispatch_table: ClassVar[Any] = made

        def __init__(self, file: io.BytesIO, keep: Any, number: Callable[[object], int | None]) -> None:
            super().__init__(file, 5, buffer_callback=keep)
            self._number = number

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, (type, FunctionType)):
                number = self._number(obj)
                if number is not None:
                    return definition, (number,)
                if is_by_value(obj):
                    return self._by_value(obj)
            return super().reducer_override(obj)

        def _by_value(self, obj: Any) -> Any:
            if isinstance(obj, type):
                slotted = reducers.has_slots(obj)
                made = reducers.slotted_class(module, obj) if slotted else super().reducer_override(obj)
                return annotation.with_annotations(made, obj)
            if reducers.is_dispatcher(obj):
                return reducers.dispatcher(obj)
            made = super().reducer_override(annotation.told(obj))
            return annotation.with_type_params(made, obj)

    return SharingPickler


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


def definition(number: int) -> object:
    """In a pickle: the definition of that number, which came apart. `ByValueUnpickler` puts it in.

    Raises:
        UnpicklingError: some other unpickler came along.
    """
    raise pickle.UnpicklingError(f"definition {number} came apart from this pickle")


def is_by_value(obj: Any) -> bool:
    """Return True if a class or function travels by value, since importing its module does not give it."""
    if isinstance(obj, type) and obj.__module__ == "builtins":
        return False  # also those without a name there, like the type of None
    is_by_value_module(str(obj.__module__))  # it may be the first of its module
    return not cloudpickle()._should_pickle_by_reference(obj)


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

    _states: States | None = None  # made when needed: the pickle of a value holds no class itself

    def __init__(
        self, data: Buffer, buffers: Iterable[Buffer] = (), shared: Sequence[object] | None = None
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
                return partial(_set_class_state, self.states())
            if name in {"_make_skeleton_class", "_make_skeleton_enum"}:
                return _note_received(getattr(cloudpickle(), name))
        if name == "definition" and module == __name__ and self._shared is not None:
            return self._shared.__getitem__
        return super().find_class(module, name)

    def states(self) -> States:
        """Return what classes are given by `load`."""
        if self._states is None:
            self._states = States()
        return self._states


class _State(NamedTuple):
    """The latest state of a class that came from elsewhere: a number, and the names of its attributes."""

    number: int
    names: frozenset[str]


_received: weakref.WeakKeyDictionary[type, _State] = weakref.WeakKeyDictionary()
_making: Final[set[str]] = set()
_numbers: Final = itertools.count(1)
_latest: Final = [0]
_NEW: Final = _State(0, frozenset())


class States:
    """The states that some classes have been given, to tell later whether they still have these."""

    __slots__ = ("_given", "_seen")

    def __init__(self) -> None:
        self._given: list[tuple[type, int]] = []
        self._seen = 0

    def add(self, cls: type, number: int) -> None:
        """A class has been given the state of that number."""
        self._given.append((cls, number))

    def hold(self) -> bool:
        """Return whether none of the classes has been given another state since."""
        latest = _latest[0]
        if self._seen == latest:
            return True
        if any(_received.get(cls, _NEW).number != number for cls, number in self._given):
            return False
        self._seen = latest
        return True


def _note_received(make: Callable[..., type]) -> Callable[..., type]:
    """Wraps a maker of class skeletons; its last but one argument is the class's tracker id."""

    def remake(*args: Any) -> type:
        tracker = args[-2]
        known = tracker in cloudpickle()._DYNAMIC_CLASS_TRACKER_BY_ID and tracker not in _making
        if not known:
            _making.add(tracker)  # first: another thread may get the class before this one has noted it
        try:
            cls = make(*args)
            if not known:
                _received.setdefault(cls, _NEW)
        finally:
            _making.discard(tracker)
        return cls

    return remake


def _set_class_state(states: States, cls: type, state: Any) -> type:
    former = _received.get(cls)
    if former is not None:
        names = frozenset(state[0])
        for name in (former.names - names).intersection(vars(cls)):
            type.__delattr__(cls, name)
        cloudpickle()._class_setstate(cls, state)
        number = next(_numbers)
        _received[cls] = _State(number, names)
        _latest[0] = number
        states.add(cls, number)
    return cls


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
