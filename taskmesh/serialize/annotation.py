"""Reducers for annotations and what they are made of: new types, aliases and type variables.

cloudpickle sends by name what `NewType`, `ParamSpec`, `TypeVarTuple` and the statement `type` make, and a
worker's `__main__` has none of these names. From Python 3.14 on it loses the annotations of classes, and
fails where those of a function name what only type checkers import. The pickles name the functions here: they
are part of what both sides agree upon.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Final, NewType, ParamSpec, TypeVar, TypeVarTuple

from taskmesh.errors import TaskTimeout

if sys.version_info >= (3, 14):
    import annotationlib

    _FORWARD: Final[Any] = annotationlib.ForwardRef

    def _written(obj: Any) -> dict[str, str]:
        return annotationlib.get_annotations(obj, format=annotationlib.Format.STRING)
else:
    _FORWARD: Final[Any] = None  # before, no definition leads from it to all globals of its module

    def _written(obj: Any) -> dict[str, str]:
        raise NotImplementedError("annotations are evaluated with the definition that has them")


_ALIAS: Final[Any] = getattr(typing, "TypeAliasType", None)  # from Python 3.12 on
_OPTIONS: Final = ("bound", "covariant", "contravariant", "infer_variance")
_UNSENT: Final = ("__annotate_func__", "__annotations_cache__")
"""Attributes in which Python 3.14 keeps the maker of a class's annotations, and those that it has made."""


# --- of functions and classes -----------------------------------------------------------------------------


def _evaluated(obj: Any, name: str) -> list[Any]:
    """The value of an attribute, none where what was written there cannot be evaluated or is not there."""
    try:
        return [getattr(obj, name)]
    except TaskTimeout:
        raise
    except Exception:  # noqa: BLE001  any expression may stand there, and is run now
        return []


def _texts(obj: Any) -> dict[str, str] | None:
    """The annotations of a function or class as texts where they cannot be evaluated, else None."""
    return None if _evaluated(obj, "__annotations__") else _written(obj)


def with_text_annotations(fn: FunctionType) -> FunctionType:
    """The function; or one like it with texts for annotations, where these cannot be evaluated."""
    texts = _texts(fn)
    if texts is None:
        return fn
    like = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    for name in ("__doc__", "__kwdefaults__", "__module__", "__qualname__", "__type_params__"):
        setattr(like, name, getattr(fn, name))
    like.__dict__.update(fn.__dict__)
    like.__annotations__ = texts
    return like


def with_type_params(reduced: tuple[Any, ...], fn: FunctionType) -> tuple[Any, ...]:
    """Return what cloudpickle's reducer says of a function by value, and its type parameters."""
    params = getattr(fn, "__type_params__", ())
    if params:
        reduced[2][1]["__type_params__"] = params
    return reduced


def with_annotations(reduced: tuple[Any, ...], cls: type) -> tuple[Any, ...]:
    """Return what cloudpickle's reducer says of a class by value, and its annotations."""
    if not any(name in vars(cls) for name in _UNSENT):
        return reduced  # as they were in the class statement: before Python 3.14
    texts = _texts(cls)
    members = reduced[2][0]
    for name in _UNSENT:
        members.pop(name, None)
    members["__annotations__"] = cls.__annotations__ if texts is None else texts
    return reduced


# --- of what is made for them -----------------------------------------------------------------------------


def reducers(cloudpickle: ModuleType) -> dict[type, Callable[[Any], Any]]:
    """The reducers of what annotations are made of; by name, as ever, where a worker can import it."""

    def by_value(reduce: Callable[[ModuleType, Any], Any]) -> Callable[[Any], Any]:
        def reducer(obj: Any) -> Any:
            found = cloudpickle._lookup_module_and_qualname(obj, name=obj.__name__)
            if found is not None and not cloudpickle._is_registered_pickle_by_value(found[0]):
                return getattr, found
            return reduce(cloudpickle, obj)

        return reducer

    kinds: dict[Any, Any] = {NewType: _new_type}
    kinds |= dict.fromkeys((TypeVar, ParamSpec, TypeVarTuple), _type_variable)
    if _ALIAS is not None:
        kinds[_ALIAS] = _alias
    made = {kind: by_value(reduce) for kind, reduce in kinds.items()}
    if _FORWARD is not None:
        made[_FORWARD] = _forward
    return made


def _new_type(cloudpickle: ModuleType, made: Any) -> tuple[Any, ...]:
    tracker = cloudpickle._get_or_create_tracker_id(made)
    track = cloudpickle._lookup_class_or_track
    return new_type, (track, tracker, made.__name__, made.__supertype__), dict(vars(made))


def new_type(track: Callable[[str, Any], Any], tracker: str, name: str, supertype: Any) -> Any:
    """In a pickle: what NewType made, the one of this process where it is known."""
    return track(tracker, NewType(name, supertype))


def _type_variable(cloudpickle: ModuleType, made: Any) -> tuple[Any, ...]:
    names = [*_OPTIONS, "default"] if hasattr(made, "has_default") and made.has_default() else _OPTIONS
    options = {name: value for name in names for value in _evaluated(made, f"__{name}__")}
    [constraints] = _evaluated(made, "__constraints__") or [()]
    tracker = cloudpickle._get_or_create_tracker_id(made)
    args = cloudpickle._lookup_class_or_track, tracker, type(made), (made.__name__, *constraints), options
    return type_variable, args, (None, {"__module__": made.__module__})  # the second part: by setattr()


def type_variable(
    track: Callable[[str, Any], Any], tracker: str, kind: type, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """In a pickle: a TypeVar, ParamSpec or TypeVarTuple, the one of this process where it is known."""
    return track(tracker, kind(*args, **options))


def _forward(ref: Any) -> tuple[Any, ...]:
    # The fields of a dataclass have one where they name the class itself.
    options = {"is_argument": ref.__forward_is_argument__, "is_class": ref.__forward_is_class__}
    return forward, (ref.__forward_arg__, options)


def forward(text: str, options: dict[str, bool]) -> Any:
    """In a pickle: a reference to what was not defined yet, as its text."""
    return _FORWARD(text, **options)


def _alias(cloudpickle: ModuleType, alias: Any) -> tuple[Any, ...]:
    value = _evaluated(alias, "__value__")
    if value and alias.__type_params__:
        return generic_alias, (alias.__name__, *value, alias.__type_params__)
    # What it stands for comes after it, for that may name the alias again.
    cell: list[Any] = []
    return lazy_alias, (alias.__module__, alias.__name__, cell), (cell, value), None, None, set_alias


def generic_alias(name: str, value: Any, params: tuple[Any, ...]) -> Any:
    """In a pickle: what the statement `type name[params] = value` makes."""
    return _ALIAS(name, value, type_params=params)


def lazy_alias(module: str, name: str, cell: list[Any]) -> Any:
    """In a pickle: what the statement `type name = ...` makes; it stands for what `cell` will hold."""
    scope = {"__name__": module, "__value__": _value, "__cell__": cell}
    exec(f"type {name} = __value__({name!r}, __cell__)", scope)  # noqa: S102  only the statement makes lazy ones
    return scope[name]


def set_alias(alias: object, state: tuple[list[Any], list[Any]]) -> None:
    """In a pickle: says what a lazy alias stands for."""
    cell, value = state
    cell.extend(value)


def _value(name: str, cell: list[Any]) -> Any:
    if not cell:
        raise NameError(f"what the type alias {name} stands for could not be evaluated where it comes from")
    return cell[0]
