"""Modules of programs, in processes that have not imported them: globals of what travels by value.

What is one object in a program is one object here, for all that comes from that program: the functions of a
module share its globals, and each name is bound once, until it comes with other content.
"""

from __future__ import annotations

import functools
import uuid
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from hashlib import blake2b
from threading import RLock
from typing import Any, Final, NamedTuple

from taskmesh.serialize.values import CODE, ByValueUnpickler, is_by_value

Key = tuple[str, str, str]
"""A program, a module of it, a name in that; of a class that no name leads to, no module and its tracker."""

ABSENT: Final = object()
"""In place of a name that its module does not have: it is a builtin's, or its lookup fails."""

_PROGRAM: Final = "__taskmesh__"
"""The global by which functions keep their program's modules here, and tell which program they are of."""


class Definition(NamedTuple):
    """The values of some names that refer to each other, mostly of one, as they travel.

    Attributes:
        keys: the names.
        refs: names whose values are parts of these values.
        names: names that their functions look up when they are called.
        data: the pickle of a list of the values; empty for a name that stands for nothing.
    """

    keys: tuple[Key, ...]
    refs: tuple[Key, ...]
    names: tuple[Key, ...]
    data: bytes


class Bound:
    """A name with a value that it has, or has had: tasks of an earlier version may still come.

    Attributes:
        value: as tasks have left it, once another has taken its place.
        definition: where the value came from, for code.
    """

    __slots__ = ("__weakref__", "definition", "key", "program", "value")

    def __init__(self, program: ProgramModules, key: Key, value: Any, definition: Definition) -> None:
        self.program = program
        self.key = key
        self.value = value
        self.definition = definition if value is ABSENT or isinstance(value, CODE) else None
        if isinstance(value, CODE) and is_by_value(value):
            _origins[value] = key

    def now(self) -> Any:
        """Return what the name stands for just now."""
        return self.program.module(self.key[1]).get(self.key[2], ABSENT) if self.key[1] else self.value


class ProgramModules:
    """The modules of one program, as far as what has come refers to them.

    Attributes:
        made: names with values by the digest of what these came in.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: weakref.WeakValueDictionary[tuple[Key, bytes], Bound] = weakref.WeakValueDictionary()
        self._modules: dict[str, dict[str, Any]] = {}
        self._current: dict[Key, Bound] = {}
        # No name leads to them: they stay for as long as something needs them.
        self._loose: weakref.WeakValueDictionary[Key, Bound] = weakref.WeakValueDictionary()

    def module(self, name: str) -> dict[str, Any]:
        """Return the globals of a module."""
        return self._modules.setdefault(name, {"__name__": name, _PROGRAM: self})

    def bound(self, key: Key) -> Bound | None:
        """Return a name with the value that it has now."""
        return self._current.get(key) if key[1] else self._loose.get(key)

    def bind(self, bound: Bound, made: bool = False) -> None:
        """Let a name stand for a value; `made`: the value is just as it came."""
        before = self.bound(bound.key)
        if before is bound:
            return
        (self._current if bound.key[1] else self._loose)[bound.key] = bound
        if before is not None:
            before.value = before.now()
            _changes[0] += 1
            if isinstance(bound.value, type) and bound.definition is not None and not made:
                _unpickled(bound.definition, value_of)  # it is the same class, with attributes of the other
        if bound.key[1] and bound.value is not ABSENT:
            self.module(bound.key[1])[bound.key[2]] = bound.value
        elif before is not None:
            self.module(bound.key[1]).pop(bound.key[2], None)


class Scope:
    """The names in some bytes with what they stand for, which others may have changed since.

    Attributes:
        bounds: the names with their values; those that others are made of come first.
        roots: those that the bytes' value has numbers for.
    """

    def __init__(self) -> None:
        self.bounds: dict[Key, Bound] = {}
        self.roots: tuple[Key, ...] = ()
        self._changes = -1

    def add(self, bounds: dict[Key, Bound]) -> None:
        """Let these hold for it, too."""
        self.bounds.update(bounds)
        self._changes = -1

    def part(self, key: tuple[Any, ...]) -> Any:
        """Return what stands for a number in the value to which this belongs."""
        return self.bounds[self.roots[key[0]]].value

    def enter(self) -> None:
        """Let all names stand for these values again."""
        if self._changes != _changes[0]:
            with _lock:
                for bound in self.bounds.values():
                    bound.program.bind(bound)
                self._changes = _changes[0]


_programs: Final[weakref.WeakValueDictionary[str, ProgramModules]] = weakref.WeakValueDictionary()
_origins: Final[weakref.WeakKeyDictionary[Any, Key]] = weakref.WeakKeyDictionary()
_lock: Final = RLock()
_changes: Final = [0]
_running: Final[list[Scope]] = []
"""Of the function that runs, or the latest one where several do."""
_entered: Final[ContextVar[Scope | None]] = ContextVar("_entered", default=None)
"""Of the function that runs in this context."""


@functools.cache
def this_program() -> str:
    """Return the name of this process's own program, with all that it forks from now on."""
    return uuid.uuid4().hex[:16]


def enter(scope: Scope) -> None:
    """A task of a function begins: names stand for what is in `scope`, whatever its arguments bring along."""
    _running[:] = (scope,)
    _entered.set(scope)
    scope.enter()


def resume(scope: Scope | None) -> None:
    """Let names stand for what they do for the running function, for which `scope` holds from now on."""
    mine = _entered.get()
    for running in _running if mine is None else (mine,):
        if scope is not None:
            running.add(scope.bounds)
        running.enter()


def namespace(program: str, module: str, package: str | None) -> dict[str, Any]:
    """In a pickle: the globals of a function."""
    names = _programs.setdefault(program, ProgramModules(program)).module(module)
    names.setdefault("__package__", package)
    return names


def home(names: dict[str, Any]) -> tuple[str, str] | None:
    """Return the program and the module that a function's globals are of here, None if the module is here."""
    program = names.get(_PROGRAM)
    if program is None:
        return None
    return program.name, names["__name__"]


def origin(obj: Any) -> Key | None:
    """Return the name of a function or class that came from another program."""
    key = _origins.get(obj)
    return None if key is None or key[0] == this_program() else key


def received(key: Key) -> Definition | None:
    """Return what a name's code came in from another program, None for data and what a task has put there."""
    program = _programs.get(key[0])
    bound = None if program is None or key[0] == this_program() else program.bound(key)
    return bound.definition if bound is not None and bound.now() is bound.value else None


def value_of(key: Key) -> Any:
    """Return what a name of another program stands for just now."""
    bound = _programs[key[0]].bound(key)
    return ABSENT if bound is None else bound.now()


class Loading:
    """Definitions on their way into their programs' modules."""

    def __init__(self, definitions: Iterable[Definition]) -> None:
        self._definitions = {key: definition for definition in definitions for key in definition.keys}
        self._programs = {
            key[0]: _programs.setdefault(key[0], ProgramModules(key[0])) for key in self._definitions
        }
        self._begun: set[Key] = set()
        self._digests: dict[Key, bytes] = {}
        self._scope = Scope()

    def load(self, roots: tuple[Key, ...]) -> Scope:
        """Make what is not here yet, and let the names stand for it."""
        with _lock:
            for key in self._definitions:
                self._make(key)
        self._scope.roots = roots
        return self._scope

    def _make(self, key: Key) -> None:
        if key in self._begun:
            return
        definition = self._definitions[key]
        self._begun.update(definition.keys)
        for link in (*definition.refs, *definition.names):  # an object's own code may run as it is made
            self._make(link)
        if key not in self._scope.bounds:
            self._bind(definition)

    def _bind(self, definition: Definition) -> None:
        digest = self._digest(definition)
        bounds = [self._programs[key[0]].made.get((key, digest)) for key in definition.keys]
        made = None in bounds
        if made:
            values = _unpickled(definition, self._part) if definition.data else [ABSENT]
            bounds = [
                Bound(self._programs[key[0]], key, value, definition)
                for key, value in zip(definition.keys, values, strict=True)
            ]
        for bound in filter(None, bounds):
            bound.program.made[bound.key, digest] = bound
            bound.program.bind(bound, made)
            self._scope.bounds[bound.key] = bound

    def _part(self, key: Key) -> Any:
        if key not in self._scope.bounds:
            self._bind(self._definitions[key])
        return self._scope.bounds[key].value

    def _digest(self, definition: Definition) -> bytes:
        found = self._digests.get(definition.keys[0])
        if found is None:
            parts = [self._digest(self._definitions[ref]) for ref in definition.refs]
            made = blake2b(definition.data, digest_size=16)
            made.update(b"".join(parts))
            found = self._digests[definition.keys[0]] = made.digest()
        return found


def _unpickled(definition: Definition, part: Callable[[Key], Any]) -> list[Any]:
    values: list[Any] = ByValueUnpickler(definition.data, (), part).load()
    return values
