"""Any value to bytes with out-of-band buffers, and back: what payload, code and exceptions build upon.

The plain pickler goes first. Where it fails, or where the bytes name `__main__` or a module registered for
by-value, cloudpickle does it: a worker's `__main__` is another one. Objects with a name in such a module
then come apart from the value, because they are the same in call after call: the bytes of classes are
remembered on one side, and what they stood for on the other (20 us a call instead of 400).

    value by value       pickle, minor version, 0xCB
    with definitions     pickle, definitions, length of the first (8 bytes), minor version, 0xCC
    definitions          [[name, ...], [definition, ...], [name that the value refers to, ...]]
    a definition         [[its name, ...], [name of a part, ...], [name that functions look up, ...], pickle]
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

import msgspec

from taskmesh.serialize.fingerprint import Fingerprint, global_names
from taskmesh.serialize.namespaces import (
    ABSENT,
    Definition,
    Key,
    Loading,
    Scope,
    home,
    namespace,
    origin,
    received,
    resume,
    this_program,
    value_of,
)
from taskmesh.serialize.scalars import SCALARS
from taskmesh.serialize.values import (
    MARK,
    ByValueUnpickler,
    cloudpickle,
    decode_plain,
    encode_by_value,
    encode_plain,
    is_by_value,
    is_by_value_module,
)
from taskmesh.shm.files import Buffer

_MARK_SHARED: Final = bytes((MARK[0], 0xCC))
_REMEMBERED: Final = 64
_LARGE: Final = 1 << 20
_UNNAMED: Final = SCALARS | {bytes, tuple, frozenset, type, ModuleType, BuiltinFunctionType}
"""Types of values that are the same wherever they are made, or travel under a name of their own."""
_DEFINITIONS: Final = tuple[list[Key], list[tuple[list[int], list[int], list[int], bytes]], list[int]]


def encode(value: object, buffers: list[memoryview] | None) -> bytes:
    """The bytes of `value`; buffers of SMALL bytes and more are appended to `buffers`, unless that is None.

    Raises:
        Exception: whatever the value's own code or the picklers raise; `buffers` is then as it was.
    """
    data = encode_plain(value, buffers)
    if data is not None:
        return data
    definitions = Definitions()
    taken: list[memoryview] | None = None if buffers is None else []
    data = definitions.encode(value, taken)
    shared = definitions.dump()
    if buffers is not None and taken:
        buffers += taken
    if shared:
        return b"".join((data, shared, len(data).to_bytes(8), _MARK_SHARED))
    return data + MARK if b"cloudpickle.cloudpickle" in data else data


def decode(
    data: Buffer, buffers: Iterable[Buffer] = (), shared: Scope | None = None, *, keep: bool = False
) -> Any:
    """The value of `encode`'s bytes; or of `Definitions.encode`'s, with the definitions that belong to it.

    Args:
        data: the bytes.
        buffers: those that were beside them.
        shared: the definitions.
        keep: what came with the value holds for the running function from now on.

    Raises:
        WrongPython: they hold code of another Python version.
        Exception: whatever the value's own code or the unpicklers raise.
    """
    end = data[-1]
    if end not in {MARK[1], _MARK_SHARED[1]}:
        return decode_plain(data, buffers)  # which says what is wrong with it if it is no pickle either
    if end == _MARK_SHARED[1]:
        length = int.from_bytes(data[-10:-2])
        shared = load_definitions(bytes(data[length:-10]), remember=not keep)
    if shared is None:
        return ByValueUnpickler(data, buffers).load()
    shared.enter()
    try:
        return ByValueUnpickler(data, buffers, shared.part).load()
    finally:
        resume(shared if keep else None)


class Definitions:
    """The names of a program that some values lead to, with what they stand for, apart from the values.

    Args:
        all_functions: functions without such a name go apart, too, for this one time.

    Attributes:
        keys: the names of objects that are no functions or classes, by the objects' ids.
    """

    def __init__(self, *, all_functions: bool = False) -> None:
        self.keys: dict[int, Key] = {}
        self._all_functions = all_functions
        self._values: dict[Key, Any] = {}
        # of the value or definition that is being pickled
        self._making: tuple[Key, ...] = ()
        self._refs: dict[Key, int] = {}
        self._names: dict[Key, None] = {}
        self._modules: set[tuple[str, str]] = set()

    def encode(self, value: object, buffers: list[memoryview] | None) -> bytes:
        """The pickle of a value, with names in place of definitions and without a mark."""
        return encode_by_value(value, buffers, self)

    def refer(self, obj: Any) -> Key | tuple[int] | None:
        """Return what stands in the place of a function or class by value: its name, in a value a number."""
        key = origin(obj) or _own_name(obj)
        if key is None and self._all_functions and not self._making and not isinstance(obj, type):
            key = (this_program(), "", str(id(obj)))
        if key is None or key in self._making:
            return None
        self._values.setdefault(key, obj)
        number = self._refs.setdefault(key, len(self._refs))
        return key if self._making else (number,)

    def named(self, key: Key, obj: object) -> Key | None:
        """Return a name that stands in an object's place, None for the one that is being pickled."""
        if key in self._making:
            return None
        self._values.setdefault(key, obj)
        self._refs.setdefault(key, len(self._refs))
        return key

    def globals_of(self, fn: FunctionType) -> tuple[Any, ...] | None:
        """Return what a reducer says of a function's globals, None if they are no module's by value."""
        scope = fn.__globals__
        place = home(scope)
        if place is None:
            module = sys.modules.get(str(scope.get("__name__")))
            if module is None or vars(module) is not scope or not is_by_value_module(module.__name__):
                return None
            place = this_program(), module.__name__
        self._note_names(place, scope)
        for name in global_names(fn.__code__):
            key = (*place, name)
            self._values.setdefault(key, scope.get(name, ABSENT))
            self._names[key] = None
        return namespace, (*place, scope.get("__package__"))

    def _note_names(self, place: tuple[str, str], scope: dict[str, Any]) -> None:
        if self._making and place not in self._modules:
            self._modules.add(place)
            self.keys |= {
                id(value): (*place, name)
                for name, value in tuple(scope.items())[::-1]
                if (
                    value.__globals__ is scope if type(value) is FunctionType else type(value) not in _UNNAMED
                )
            }

    def dump(self) -> bytes:
        """The definitions' own bytes, empty if there are none; of classes alone they are remembered.

        Raises:
            Exception: one of them cannot be pickled.
        """
        objects = [self._values[key] for key in self._refs]
        if self._names or not all(isinstance(obj, type) for obj in objects):
            return self._written()
        if not objects:
            return b""
        key = tuple(map(id, objects))
        fingerprint, data = _dumped.get(key, (None, b""))
        if fingerprint is None or not fingerprint.unchanged():
            fingerprint, data = Fingerprint(*objects), self._written()
            _remember(_dumped, key, (fingerprint, data))
        return data

    def _written(self) -> bytes:
        pieces: dict[Key, Definition] = {}
        roots, pending = list(self._refs), [*self._refs, *self._names]
        while pending:
            key = pending.pop()
            if key not in pieces:
                piece = self._piece(key)
                pieces.update(dict.fromkeys(piece.keys, piece))
                pending += (*piece.refs, *piece.names)
        for key in [key for key in pieces if pieces[key].refs]:
            ring = [other for other in _parts(pieces, key) if key in _parts(pieces, other)]
            if set(ring) > set(pieces[key].keys):
                pieces.update(dict.fromkeys(ring, self._made(*ring)))
        numbers = {key: number for number, key in enumerate(pieces)}
        written = [
            (*([numbers[key] for key in keys] for keys in piece[:3]), piece.data)
            for piece in dict.fromkeys(pieces.values())
        ]
        return msgspec.msgpack.encode((list(numbers), written, [numbers[key] for key in roots]))

    def _piece(self, key: Key) -> Definition:
        piece = received(key)
        if piece is None:
            return self._made(key)
        for link in (*piece.refs, *piece.names):
            self._values.setdefault(link, value_of(link))
        return piece

    def _made(self, *keys: Key) -> Definition:
        self._making, self._refs, self._names = keys, {}, {}
        values = [self._values[key] for key in keys]
        first = values[0]
        is_bare = isinstance(first, FunctionType) and _is_bare(first, keys[0])
        code, data = _bare.get(first, (None, b"")) if is_bare else (None, b"")
        if code is not None and code is first.__code__:
            self._making = ()  # no part of it needs a name
            self.globals_of(first)
        elif first is not ABSENT:
            module = sys.modules.get(keys[0][1])
            if keys[0][0] == this_program() and module is not None:
                self._note_names(keys[0][:2], vars(module))
            plain = encode_plain(values, None) if type(first) in SCALARS else None
            data = (plain or encode_by_value(values, None, self, apart=bool(self.keys))) + MARK
            if is_bare and not self._refs:
                _bare[first] = first.__code__, data
        return Definition(keys, tuple(self._refs), tuple(self._names), data)


def _is_bare(fn: FunctionType, key: Key) -> bool:
    """Return whether a function of this name is made of its code alone, as far as anything may change."""
    if fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__ or fn.__dict__:
        return False
    return is_by_value(fn) and _own_name(fn) == key


def _parts(pieces: dict[Key, Definition], key: Key) -> dict[Key, None]:
    """Return the names of what a value is made of, through others."""
    found: dict[Key, None] = {}
    pending = list(pieces[key].refs)
    while pending:
        part = pending.pop()
        if part not in found:
            found[part] = None
            pending += pieces[part].refs
    return found


def _own_name(obj: Any) -> Key | None:
    """Return the name of a function or class of this program; a class without one has its tracker's."""
    name = str(obj.__module__)
    module = sys.modules.get(name)
    qualified = str(obj.__qualname__)
    named = None if module is None else vars(module).get(qualified)
    if named is obj:
        return this_program(), name, qualified
    if named is not None and getattr(named, "__wrapped__", None) is obj:
        return this_program(), name, f"{qualified}.__wrapped__"  # what is decorated has a name of its own
    if isinstance(obj, type):
        return this_program(), "", cloudpickle()._get_or_create_tracker_id(obj)
    return None


_dumped: dict[tuple[int, ...], tuple[Fingerprint, bytes]] = {}
"""The bytes of some classes, by the classes' ids, as long as nothing about these has changed."""

_loaded: dict[bytes, Scope] = {}
_bare: Final[weakref.WeakKeyDictionary[FunctionType, tuple[CodeType, bytes]]] = weakref.WeakKeyDictionary()
"""The pickles of functions that are made of their code."""


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    """Put something into a memory of bounded size; what was put in first goes first."""
    memory[key] = value
    while len(memory) > _REMEMBERED:
        try:
            memory.pop(next(iter(memory)), None)
        except (StopIteration, RuntimeError):  # another thread is at it too
            return


def load_definitions(data: bytes, *, remember: bool = True) -> Scope:
    """The definitions of `Definitions.dump`'s bytes.

    Args:
        data: the bytes.
        remember: they may come again.

    Raises:
        WrongPython: they hold code of another Python version.
        Exception: whatever their own code or the unpickler raise.
    """
    scope = _loaded.get(data)
    if scope is None:
        keys, written, roots = msgspec.msgpack.decode(data, type=_DEFINITIONS)

        def named(numbers: list[int]) -> tuple[Key, ...]:
            return tuple([keys[number] for number in numbers])

        pieces = [
            Definition(named(own), named(refs), named(names), part) for own, refs, names, part in written
        ]
        scope = Loading(pieces).load(named(roots))
        if remember and len(data) <= _LARGE:
            _remember(_loaded, data, scope)
    return scope
