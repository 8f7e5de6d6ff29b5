"""Reducers for what cloudpickle cannot send: classes with slots, and what functools makes.

cloudpickle remakes a class without its `__slots__`, and sends what functools.cache and cached_property made
by name or not at all. The pickles name the functions here: they are part of what both sides agree upon.
"""

from __future__ import annotations

import abc
import enum
import functools
import gc
from collections.abc import Callable
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Final

_UNSENT: Final = ("__dict__", "__weakref__", "__annotate_func__")
"""Members that every class statement makes anew."""

_SET_BY_CACHE: Final = {"__wrapped__", "cache_parameters", "__annotate__"}
_SET_BY_PROPERTY: Final = vars(functools.cached_property(len)).keys() & {"lock"}  # none from Python 3.12 on
_SET_BY_DISPATCH: Final = {"registry", "dispatch", "register", "_clear_cache", "__annotate__"}
_NAMING: Final = ("__module__", "__name__", "__qualname__", "__doc__")
_DISPATCHER: Final = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
"""The code that all functions of functools.singledispatch share."""


def has_slots(cls: type) -> bool:
    """Return whether a class by value has to be remade with slots.

    Named tuples are left to cloudpickle: their metaclass refuses `__slots__`, and tuples have none anyway.
    """
    return "__slots__" in vars(cls) and not issubclass(cls, (tuple, enum.Enum))


def slotted_class(cloudpickle: ModuleType, cls: type) -> tuple[Any, ...]:
    """Return what a reducer says of a class by value that has slots: as cloudpickle's, with the slots."""
    metaclass, name, bases, members, *rest = cloudpickle._class_getnewargs(cls)
    slots = _slots(cls)
    state = _state(cloudpickle._extract_class_dict(cls), cls, slots)
    args = (metaclass, name, bases, {**members, "__slots__": slots}, *rest)
    return cloudpickle._make_skeleton_class, args, (state, {}), None, None, cloudpickle._class_setstate


def _slots(cls: type) -> list[str]:
    """The names of a class's own slots as Python made them: private ones with the class's name."""
    own = vars(cls)
    written = own["__slots__"]
    names = [written] if isinstance(written, str) else list(written)
    # An iterator has been used up by the class statement; the descriptors still know the names.
    made = [value.__name__ for value in own.values() if _is_slot(cls, value)]
    special = [name for name in _UNSENT if isinstance(own.get(name), GetSetDescriptorType)]
    return list(dict.fromkeys((*(_mangled(cls, name) for name in names), *made, *special)))


def _is_slot(cls: type, value: object) -> bool:
    return isinstance(value, MemberDescriptorType) and value.__objclass__ is cls


def _mangled(cls: type, name: str) -> str:
    stem = cls.__name__.lstrip("_")
    private = name.startswith("__") and not name.endswith("__")
    return f"_{stem}{name}" if private and stem else name


def _state(members: dict[str, Any], cls: type, slots: list[str]) -> dict[str, Any]:
    """The members to set on the class once it is remade."""
    for name in slots:
        if _is_slot(cls, members.get(name)):
            del members[name]
    for name in _UNSENT:
        members.pop(name, None)
    if isinstance(cls, abc.ABCMeta):
        registry = abc._get_dump(cls)[0]  # type: ignore[attr-defined]
        members["_abc_impl"] = [known() for known in registry]
    written = vars(cls)["__slots__"]
    members["__slots__"] = written if isinstance(written, (str, tuple, list, dict)) else tuple(slots)
    return members


def is_dispatcher(fn: FunctionType) -> bool:
    """Return whether functools.singledispatch made a function."""
    return fn.__code__ is _DISPATCHER


def dispatcher(fn: Any) -> tuple[Any, ...]:
    """Return what a reducer says of a function of functools.singledispatch that goes by value."""
    attributes = {name: getattr(fn, name) for name in _NAMING}
    attributes.update((name, value) for name, value in vars(fn).items() if name not in _SET_BY_DISPATCH)
    state = (list(fn.registry.items()), attributes)
    return functools.singledispatch, (fn.registry[object],), state, None, None, set_dispatcher


def set_dispatcher(fn: Any, state: tuple[list[tuple[type, Callable[..., Any]]], dict[str, Any]]) -> None:
    """In a pickle: gives a remade function of functools.singledispatch its implementations and its names."""
    for cls, implementation in state[0]:
        fn.register(cls, implementation)
    for name, value in state[1].items():
        setattr(fn, name, value)


def is_cached(fn: object) -> bool:
    """Return whether functools.cache or lru_cache made a function."""
    return isinstance(fn, functools._lru_cache_wrapper)


def added_attributes(fn: Any) -> dict[str, Any]:
    """The attributes of a cached function that neither functools nor its names account for."""
    made = (*functools.WRAPPER_ASSIGNMENTS, *_SET_BY_CACHE)
    return {name: value for name, value in vars(fn).items() if name not in made}


def cached(fn: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """In a pickle: the function anew, with an empty cache of the same kind."""
    return functools.lru_cache(maxsize, typed)(fn)


class Reducers(dict[type, Callable[[Any], Any]]):
    """The reducers of what functools makes; for other types cloudpickle's and copyreg's.

    No ChainMap: the pickler asks for the type of nearly every object, and the answer took it 0.6 us longer.
    """

    def __init__(self, cloudpickle: ModuleType) -> None:
        super().__init__()
        self._others = cloudpickle.Pickler.dispatch_table.maps

        def cached_function(fn: Any) -> Any:
            found = cloudpickle._lookup_module_and_qualname(fn)
            if found is not None and not cloudpickle._is_registered_pickle_by_value(found[0]):
                return fn.__reduce__()  # by name, as ever
            return _cached_function(fn)

        self[functools._lru_cache_wrapper] = cached_function

    def __missing__(self, cls: type) -> Callable[[Any], Any]:
        for others in self._others:
            if cls in others:
                return others[cls]  # type: ignore[no-any-return]
        if issubclass(cls, functools.cached_property) and not _pickles_itself(cls):
            return _cached_property
        if cls.__module__ == "multiprocessing.connection":
            return _pipe_end
        raise KeyError(cls)


def _pipe_end(end: object) -> None:
    raise TypeError(f"cannot pickle {end!r:.200}, whose descriptor is another file in another process")


def _cached_function(fn: Any) -> tuple[Any, ...]:
    wrapped = fn.__wrapped__
    if not any(each is wrapped for each in gc.get_referents(fn)):
        raise TypeError(
            f"the cached function {fn!r} calls another function than its __wrapped__ says. "
            "Apply functools.wraps below functools.cache, not above it"
        )
    limits = fn.cache_parameters()
    # The names are copied: the function has none yet where it and its cache refer to each other.
    state = {name: value for name, value in vars(fn).items() if name not in _SET_BY_CACHE}
    return cached, (wrapped, limits["maxsize"], limits["typed"]), state


def _cached_property(prop: functools.cached_property[Any]) -> tuple[Any, ...]:
    # Its name came with the class statement, run only once.
    state = {name: value for name, value in vars(prop).items() if name not in _SET_BY_PROPERTY}
    return cached_property, (type(prop),), state


def cached_property(cls: type) -> Any:
    """In a pickle: an object of functools.cached_property, or of a class under it, that has no state yet."""
    prop: Any = object.__new__(cls)
    functools.cached_property.__init__(prop, len)
    return prop


def _pickles_itself(cls: Any) -> bool:
    ways = ("__reduce_ex__", "__reduce__", "__getstate__")
    return any(getattr(cls, way) is not getattr(object, way) for way in ways)
