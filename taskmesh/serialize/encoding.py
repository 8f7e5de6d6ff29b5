"""Any value to bytes with out-of-band buffers, and back: what payload, code and exceptions build upon.

The plain pickler goes first. Where it fails, or where the bytes name `__main__` or a module registered for
by-value, cloudpickle does it: a worker's `__main__` is another one. The classes that travel by value then
come apart from the value, because they are the same in call after call: their bytes are remembered on one
side and what they stood for on the other (20 us a call instead of 400).

    value by value       pickle, minor version, 0xCB
    with its classes     pickle, pickle of the classes, length of the first (8 bytes), minor version, 0xCC
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any, Final

from taskmesh.serialize.fingerprint import Fingerprint
from taskmesh.serialize.values import (
    MARK,
    STOP,
    ByValueUnpickler,
    States,
    decode_plain,
    encode_by_value,
    encode_plain,
    is_by_value,
)
from taskmesh.shm.files import Buffer

_MARK_SHARED: Final = bytes((MARK[0], 0xCC))
_REMEMBERED: Final = 64
_LARGE: Final = 1 << 20


def encode(value: object, buffers: list[memoryview] | None) -> bytes:
    """The bytes of `value`; buffers of SMALL bytes and more are appended to `buffers`, unless that is None.

    Raises:
        Exception: whatever the value's own code or the picklers raise; `buffers` is then as it was.
    """
    data = encode_plain(value, buffers)
    if data is not None:
        return data
    definitions = Definitions((type,))
    taken: list[memoryview] | None = None if buffers is None else []
    data = definitions.encode(value, taken)
    shared = definitions.dump()
    if buffers is not None and taken:
        buffers += taken
    if shared:
        return b"".join((data, shared, len(data).to_bytes(8), _MARK_SHARED))
    return data + MARK if b"cloudpickle.cloudpickle" in data else data


def decode(data: Buffer, buffers: Iterable[Buffer] = (), shared: Sequence[object] | None = None) -> Any:
    """The value of `encode`'s bytes; or of `Definitions.encode`'s, with the definitions that belong to it.

    Raises:
        WrongPython: they hold code of another Python version.
        Exception: whatever the value's own code or the unpicklers raise.
    """
    end = data[-1]
    if end == STOP:
        return decode_plain(data, buffers)
    if end == _MARK_SHARED[1]:
        length = int.from_bytes(data[-10:-2])
        shared = load_definitions(bytes(data[length:-10]) + bytes(data[-2:-1]) + MARK[1:])
    elif end != MARK[1]:
        return decode_plain(data, buffers)  # which says what is wrong with it
    return ByValueUnpickler(data, buffers, shared).load()


class Definitions:
    """Classes (and functions) that travel by value, apart from the values that use them."""

    def __init__(self, kinds: tuple[type, ...] = (type, FunctionType)) -> None:
        self._kinds = kinds
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def encode(self, value: object, buffers: list[memoryview] | None) -> bytes:
        """The pickle of a value, with numbers in place of definitions and without a mark."""
        return encode_by_value(value, buffers, self._number)

    def _number(self, obj: object) -> int | None:
        if not (isinstance(obj, self._kinds) and is_by_value(obj)):
            return None
        number = self._numbers.setdefault(id(obj), len(self._objects))
        if number == len(self._objects):
            self._objects.append(obj)
        return number

    def dump(self) -> bytes:
        """The definitions' own pickle, empty if there are none; of classes alone it is remembered.

        Raises:
            Exception: one of them cannot be pickled.
        """
        objects = self._objects
        if not objects:
            return b""
        key = tuple(map(id, objects))
        known = _dumped.get(key)
        if known is not None and known.holds(objects):
            return known.data
        classes = all(isinstance(obj, type) for obj in objects)
        fingerprints = [Fingerprint(obj) for obj in objects] if classes else []
        pickled = encode_by_value(objects, None, lambda obj: None)
        if not classes:
            return pickled
        data = pickled
        if known is not None and known.of(objects):
            data = known.data if known.pickled == pickled else pickled + next(_revisions).to_bytes(8)
        _remember(_dumped, key, _Dumped(data, pickled, objects, fingerprints))
        return data


class _Dumped:
    """The bytes of some classes, as long as nothing about these has changed.

    Attributes:
        data: the pickle and, once something has changed, a number: a state that classes return to has other
            bytes than before, so that whoever has rebuilt it before does so again.
        pickled: the pickle alone.
    """

    __slots__ = ("_fingerprints", "_refs", "data", "pickled")

    def __init__(
        self, data: bytes, pickled: bytes, objects: list[type], fingerprints: list[Fingerprint]
    ) -> None:
        self.data = data
        self.pickled = pickled
        self._refs = [weakref.ref(obj) for obj in objects]
        self._fingerprints = fingerprints

    def holds(self, objects: list[Any]) -> bool:
        """Return whether these are the classes, and still what they were."""
        return self.of(objects) and all(fingerprint.unchanged() for fingerprint in self._fingerprints)

    def of(self, objects: list[Any]) -> bool:
        return all(ref() is obj for ref, obj in zip(self._refs, objects, strict=True))


_dumped: dict[tuple[int, ...], _Dumped] = {}
_loaded: dict[bytes, tuple[list[Any], States]] = {}
_revisions: Final = itertools.count(1)


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    """Puts something into a memory of bounded size; what was put in first goes first."""
    memory[key] = value
    while len(memory) > _REMEMBERED:
        try:
            memory.pop(next(iter(memory)), None)
        except (StopIteration, RuntimeError):  # another thread is at it too
            return


def load_definitions(data: bytes) -> list[Any]:
    """The definitions of `Definitions.dump`'s bytes and a mark; classes are remembered.

    Raises:
        WrongPython: they hold code of another Python version.
        Exception: whatever their own code or the unpickler raise.
    """
    known = _loaded.get(data)
    if known is not None and known[1].hold():
        return known[0]
    unpickler = ByValueUnpickler(data)
    objects: list[Any] = unpickler.load()
    if len(data) <= _LARGE and all(isinstance(obj, type) for obj in objects):
        _remember(_loaded, data, (objects, unpickler.states()))
    return objects
