"""Fingerprints of functions and classes by value: they tell if something has changed since pickling.

The bytes of such a function hold copies of its defaults, its closure and the globals that it names. Making
them anew at every submission costs 20 us and more; looking whether anything has changed, 0.1 us a name.
Nothing here keeps a function, or what it closes over, alive.
"""

from __future__ import annotations

import dataclasses
import enum
import marshal
import types
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from taskmesh.serialize.reducers import added_attributes, is_cached
from taskmesh.serialize.values import class_name, cloudpickle, is_by_name_module, is_by_value, is_flat

# Further types whose values never change and cannot lead back to a function, by name: not all are imported.
_FROZEN: Final = {
    *("ellipsis", "NotImplementedType", "range", "method_descriptor", "wrapper_descriptor", "code"),
    *("datetime.time", "datetime.timezone", "zoneinfo.ZoneInfo", "numpy.ufunc", "_struct.Struct"),
    *("re.Pattern", "logging.Logger", "logging.RootLogger"),
}


class _Absent:
    """In place of a global that is not defined (yet), or of an empty closure cell."""


def _plain(value: Any) -> bytes:
    # Version 2 has no back references: the bytes depend on the content alone, not on who shares what.
    return marshal.dumps(value, 2)


def _is_plain(value: Any) -> bool:
    try:
        _plain(value)
    except ValueError:
        return False
    return True


class _Content:
    """The content of a mutable container of plain data, as it was."""

    __slots__ = ("_bytes",)

    def __init__(self, value: object) -> None:
        self._bytes = _plain(value)

    def same(self, value: object) -> bool:
        """Return whether `value` is such a container with the same content."""
        try:
            return _plain(value) == self._bytes
        except ValueError:
            return False


class _Whole:
    """An immutable value made of others, each of which has its mark."""

    __slots__ = ("_kind", "_marks")

    def __init__(self, kind: type, marks: list[Any]) -> None:
        self._kind = kind
        self._marks = marks

    def same(self, value: object) -> bool:
        """Return whether `value` is of the same type and made of the same."""
        return type(value) is self._kind and _all_same(self._marks, _parts(value) or [])


class Fingerprint:
    """Everything that functions and classes by value lead to, through others.

    It holds for these very objects, and no longer than they live.

    Attributes:
        volatile: it leads to something whose changes cannot be seen from outside: pickle it and compare.
    """

    __slots__ = ("_places", "_seen", "volatile")

    def __init__(self, *roots: Callable[..., Any]) -> None:
        self.volatile = False
        # (weak reference to a function or class, names to look up in it, marks of what they stood for)
        self._places: list[tuple[weakref.ref[Any], tuple[str, ...], list[Any]]] = []
        self._seen: set[int] = set()
        try:
            for root in roots:
                self._follow(root)
        except RecursionError:
            self.volatile = True
        self._seen.clear()

    def unchanged(self) -> bool:
        """Return whether every name still stands for what it stood for."""
        if self.volatile:
            return False
        for ref, names, marks in self._places:
            place = ref()
            if place is None or not _all_same(marks, _values(place, names)):
                return False
        return True

    def _mark(self, value: Any) -> Any:
        """Return a mark of a value, by which `_all_same` can tell if another value is still the same."""
        kind = type(value)
        if is_flat(kind) or value is _Absent or class_name(kind) in _FROZEN:
            return value
        parts = _parts(value)
        if parts is not None:
            return _Whole(kind, [self._mark(part) for part in parts])
        try:
            if kind in {list, dict, set, frozenset, bytearray}:
                return _Content(value)
            self._follow(value)
            return weakref.ref(value)
        except (TypeError, ValueError):  # cannot be weakly referred to, or holds more than plain data
            self.volatile = True
            return _Absent

    def _follow(self, value: Any) -> None:
        """Goes on into what travels by value; finds out whether changes inside `value` could be missed."""
        if value is None or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, types.FunctionType):
            if is_by_value(value):
                self._watch(value, global_names(value.__code__))
        elif isinstance(value, type):
            if is_by_value(value):
                self._follow_class(value)
        elif isinstance(value, types.ModuleType):
            self.volatile |= not is_by_name_module(value)
        elif isinstance(value, types.BuiltinFunctionType):
            self.volatile |= not isinstance(value.__self__, (types.ModuleType, type, type(None)))
        elif hasattr(type(value), "__get__") or _is_task(value):
            self._follow_descriptor(value)
        else:
            self.volatile = True

    def _follow_class(self, cls: type) -> None:
        self._watch(cls, _members(cls))
        self._follow(type(cls))
        for field in vars(cls).get("__dataclass_fields__", {}).values():
            if field.default_factory is not dataclasses.MISSING:
                self._mark(field.default_factory)  # fixed with the fields, but not what it leads to

    def _follow_descriptor(self, value: Any) -> None:
        for name in ("__wrapped__", "func", "fget", "dispatcher"):
            self._follow(getattr(value, name, None))
        self._follow(type(value))
        if is_cached(value) or is_by_value(type(value)):
            self._watch(value, ())

    def _watch(self, value: Any, names: tuple[str, ...]) -> None:
        self._places.append((weakref.ref(value), names, list(map(self._mark, _values(value, names)))))


def _all_same(marks: list[Any], values: list[Any]) -> bool:
    if len(marks) != len(values):
        return False
    for mark, value in zip(marks, values, strict=True):
        if mark is value:
            continue
        if type(mark) is weakref.ref:
            if mark() is not value:
                return False
        elif type(mark) is int is type(value):
            if mark != value:
                return False
        elif not (isinstance(mark, (_Content, _Whole)) and mark.same(value)):
            return False  # equal scalars that are not identical too: pickled anew, then found equal
    return True


def _values(place: Any, names: tuple[str, ...]) -> list[Any]:
    """Return what a function or class itself refers to just now, always in the same order."""
    if not isinstance(place, types.FunctionType):
        if not isinstance(place, type):
            added = added_attributes(place) if is_cached(place) else getattr(place, "__dict__", {})
            return [tuple(added), *added.values()]
        members = vars(place)  # their number tells of those that have come
        return [*place.__bases__, len(members), *[members.get(name, _Absent) for name in names]]
    scope = place.__globals__
    values = [place.__code__, *[scope.get(name, _Absent) for name in names]]
    if place.__closure__:
        values += [_content(cell) for cell in place.__closure__]
    if place.__defaults__:
        values.append(place.__defaults__)
    for named in (place.__kwdefaults__, place.__dict__):
        if named:
            values += [tuple(named), *named.values()]
    return values


def _parts(value: Any) -> list[Any] | None:
    """The parts of an immutable value that is nothing but its parts."""
    match value:
        case tuple() if not getattr(value, "__dict__", None):
            return [type(value), *value]
        case enum.Enum():
            return [type(value), value._name_ if value._name_ is not None else value._value_]
        case property():
            return [value.fget, value.fset, value.fdel]
        case staticmethod() | classmethod():
            return [value.__func__]
        case types.MethodType():
            return [value.__func__, value.__self__]
        case partial():
            return [value.func, value.args, *value.keywords, *value.keywords.values()]
    if getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False):
        return [type(value), *[getattr(value, field.name, _Absent) for field in dataclasses.fields(value)]]
    return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _Absent


def _is_task(value: object) -> bool:
    return type(value).__module__.startswith("taskmesh.") and hasattr(value, "__wrapped__")


def _members(cls: type) -> tuple[str, ...]:
    """Names of a class's own methods and attributes, without what Python and its decorators keep there."""
    return tuple(name for name, value in vars(cls).items() if not _is_made(cls, name, value))


def _is_made(cls: type, name: str, value: object) -> bool:
    """Return True if the class statement, an enum or @dataclass made a member, and not the user."""
    if isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        return True
    if not (name.startswith("_") and name.endswith("_")):
        return False
    if not isinstance(value, types.FunctionType):
        return not _is_plain(value)
    if name == "__annotate_func__" or value.__module__ == "dataclasses":  # 3.14 has one, 3.13 a __replace__
        return True
    code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
    return code is not None and code.co_filename == "<string>" and hasattr(cls, "__dataclass_fields__")


def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The globals that a code object and those nested in it name: what cloudpickle takes along."""
    return tuple(cloudpickle()._extract_code_globals(code))


def references(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Everything that a function takes along by value, with the words for it."""
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        yield f"the variable {name!r} that it closes over", _content(cell)
    for name in global_names(fn.__code__):
        if name in fn.__globals__:
            yield f"the global {name!r}", fn.__globals__[name]
    for index, value in enumerate(fn.__defaults__ or (), 1):
        yield f"its default value {index}", value
    for name, value in (fn.__kwdefaults__ or {}).items():
        yield f"the default of {name!r}", value
    for name, value in vars(fn).items():
        yield f"its attribute {name!r}", value
