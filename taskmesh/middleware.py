"""Code around tasks: middleware, at their submission, around their run, and at the start of a slot's process.

A middleware is an object with any of the hooks that `Middleware` describes. A mesh has a list of them, and so
has a worker: each hook is called in the order of the list, and left in reverse order.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isgenerator
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from taskmesh.errors import ConfigError, TaskMeshError

T = TypeVar("T")
MOST_HEADERS: Final = 4096
"""Bytes that the headers of a call may have together, as UTF-8."""
HOOKS: Final = ("around_submit", "around_task", "on_failure", "process_start", "process_stop")
_log = logging.getLogger("taskmesh.middleware")


@dataclass(slots=True)
class Call:
    """A call of a task, as middleware sees it.

    Attributes:
        name: the task's name.
        queue: the task's queue.
        headers: small texts that travel with the call, and with the calls that its task makes in turn. A hook
            around a submission may change them before it yields.
        items: calls that travel as one task: those of a map's chunk; -1 for a map that has not counted them.
        id: the task id; empty until the call is submitted, and of a map.
        attempt: the number of the attempt, from 1; 0 at the submission.
        error: the exception that the call has ended with; None before, and if it has succeeded.
        arguments: those by position and by name, in the slot, if a middleware of the pool has asked for them;
            of a chunk the list of its items.
    """

    name: str
    queue: str
    headers: dict[str, str] = field(default_factory=dict)
    items: int = 1
    id: str = ""
    attempt: int = 0
    error: BaseException | None = None
    arguments: tuple[Sequence[Any], Mapping[str, Any]] | None = field(default=None, repr=False)


Block = Iterator[object] | AbstractContextManager[object]
"""The work of a hook around something: a generator that yields once, or a context manager."""


class Middleware(Generic[T]):
    """Base of middleware; its subclasses have any of these hooks.

    - `around_submit(self, call: Call) -> Iterator[None]`: around the submission, in the program.
    - `around_task(self, call: Call) -> Iterator[None]`: around the task, in the slot; an error of the task is
      raised at the `yield`, and `call.error` has it afterwards.
    - `on_failure(self, call: Call, error: BaseException) -> None`: in the slot, for each attempt that fails
      there, and each item of a chunk; not for one whose process was killed.
    - `process_start(self) -> T | Iterator[T]`: in each slot's process, before its first task. A generator
      goes on at the end of the process.
    - `process_stop(self) -> None`: at the end of the process.

    An error of `process_start` is one of the slot,
    which does not start; every other error of a hook is logged, and changes nothing.

    Calling the object returns what `process_start` has returned or yielded. Where it has not run, as in the
    program itself, it runs then.

    Attributes:
        name: tells middleware of one class apart, if a program has several.
        sees_arguments: True asks for `call.arguments` in the slot.
    """

    name: str = ""
    sees_arguments: bool = False

    def __call__(self) -> T:
        """Return the value of `process_start` in this process.

        Raises:
            TaskMeshError: it has no `process_start`, or one that is neither a function nor a generator.
        """
        if not hasattr(self, "process_start"):
            raise TaskMeshError(f"{key_of(self)} has no value: it has no process_start()")
        value: T = value_of(self)
        return value


class Initializer(Middleware[None]):
    """A function that is called in each slot's process at its start, as executors have it.

    Args:
        function: the function.
        args: its arguments.
    """

    def __init__(self, function: Callable[..., object], args: Iterable[Any]) -> None:
        if not callable(function):
            raise TypeError("initializer must be a callable")
        self._function = function
        self._args = tuple(args or ())

    def process_start(self) -> None:
        """Call the function."""
        self._function(*self._args)


_values: list[tuple[str, object]] = []  # with the keys of their middleware
_stops: list[Callable[[], object]] = []
_starting = threading.RLock()  # one may need another


def value_of(middleware: object) -> Any:
    """Return what `process_start` of a middleware has given in this process; start it if it has not run.

    Values belong to class and name: a function that travels by value brings an object of its own, and means
    the same middleware.
    """
    key = key_of(middleware)
    with _starting:
        known = dict(_values)
        if key not in known:
            known[key] = _started(middleware, key)
            _values.append((key, known[key]))
        return known[key]


def stop() -> None:
    """Do what is to be done at the end of this process now, the last first: an inline slot ends before it."""
    while _stops:
        each = _stops.pop()
        atexit.unregister(each)
        try:
            each()
        except Exception:  # noqa: BLE001 -- the user's own: the other ends come all the same
            _log.exception("a middleware failed at its end")


def _stop_at_exit(each: Callable[[], object]) -> None:
    _stops.append(each)
    atexit.register(each)


def _started(middleware: object, key: str) -> object:
    start = getattr(middleware, "process_start", _nothing)
    if iscoroutinefunction(start) or isasyncgenfunction(start):
        raise TaskMeshError(f"{key}.process_start() is asynchronous: make it a function or a generator")
    value = start()
    stop = getattr(middleware, "process_stop", None)
    if stop is not None:
        _stop_at_exit(stop)
    if not isgenerator(value):
        return value
    try:
        first = next(value)
    except StopIteration:
        raise TaskMeshError(f"{key}.process_start() has not yielded a value") from None
    _stop_at_exit(partial(next, value, None))
    return first


def _nothing() -> None:
    """Start a middleware that has nothing to start."""


_installed: list[object] = []


def install(middleware: Sequence[object]) -> None:
    """Set the middleware of this process, a slot's, which calls this once."""
    _installed[:] = middleware


def installed() -> Sequence[object]:
    """Return the middleware of this process, if it is a slot's."""
    return _installed


def key_of(middleware: object) -> str:
    """Return the name of a middleware in a process: its module and class, and its own name if it has one."""
    kind = type(middleware)
    name = getattr(middleware, "name", "")
    return f"{kind.__module__}.{kind.__qualname__}{f'[{name}]' if name else ''}"


class Around:
    """The blocks of middleware around one call: entered in order, left in reverse.

    What they raise is logged and goes no further; they cannot keep an error of the call back.

    Args:
        hooks: make the blocks.
        call: the call.
    """

    __slots__ = ("_call", "_entered", "_hooks")

    def __init__(self, hooks: Sequence[Callable[[Call], Block]], call: Call) -> None:
        self._hooks = hooks
        self._call = call
        self._entered: list[AbstractContextManager[object]] = []

    def __enter__(self) -> Call:
        for hook in self._hooks:
            try:
                block = hook(self._call)
                entered = _Generated(block) if isinstance(block, Iterator) else block
                entered.__enter__()
            except Exception:  # noqa: BLE001  whatever it is, it is logged, and the task goes on
                _log.exception("%r failed before %s", hook, self._call.name)
            except BaseException as interrupt:
                self.__exit__(type(interrupt), interrupt, interrupt.__traceback__)
                raise
            else:
                self._entered.append(entered)
        return self._call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call.error = error
        interrupt: BaseException | None = None
        for block in reversed(self._entered):
            try:
                block.__exit__(kind, error, traceback)
            except BaseException as raised:  # noqa: BLE001  the outer blocks are left, too
                if raised is not error:
                    _log.exception("%r failed after %s", block, self._call.name)
                    if not isinstance(raised, Exception):
                        interrupt = raised
        if interrupt is not None:
            raise interrupt


class _Generated:
    """A generator as a block. `contextlib` assigns to exceptions, which frozen ones forbid."""

    def __init__(self, generator: Iterator[object]) -> None:
        self._generator: Any = generator

    def __enter__(self) -> object:
        return next(self._generator)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                next(self._generator)
            else:
                self._generator.throw(error)
        except StopIteration:
            return
        self._generator.close()
        raise RuntimeError("a hook yields once")


def hooks_of(middleware: Iterable[object], hook: str) -> list[Callable[..., Any]]:
    """Return the bound hooks of this name, in the order of the middleware that has them."""
    found = (getattr(each, hook, None) for each in middleware)
    return [each for each in found if each is not None]


def checked_middleware(given: object) -> list[object]:
    """Return middleware as a mesh takes it: a class becomes an object of it.

    Raises:
        ConfigError: one has no hook, or two are the same.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"middleware= has to be a list of objects with hooks, not {given!r:.200}")
    found = [each() if isinstance(each, type) else each for each in given]
    for each in found:
        if not any(hasattr(each, hook) for hook in HOOKS):
            raise ConfigError(f"middleware has one of {', '.join(HOOKS)}: {each!r:.200} has none")
    keys = [key_of(each) for each in found]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"there are two {key}: give each a `name` of its own")
    return found


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ConfigError if these are no headers: texts by texts, of `MOST_HEADERS` bytes together."""
    for key, value in headers.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise ConfigError(f"headers are texts by texts, not {key!r:.100}: {value!r:.100}")
    try:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in headers.items())
    except UnicodeEncodeError as error:
        raise ConfigError(f"headers are text that UTF-8 can express: {error}") from None
    if size > MOST_HEADERS:
        raise ConfigError(f"headers have {size:,} bytes, and {MOST_HEADERS:,} is the most: pass an argument")
