"""The table of functions: what was submitted with which options, and the run that a call goes into."""

from __future__ import annotations

import logging
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from taskmesh.client.dependencies import attached
from taskmesh.client.futures.future import OpenRun, TaskTable
from taskmesh.client.options import WHEN, TaskOptions, is_name
from taskmesh.core.specs import spec_number
from taskmesh.errors import ConfigError
from taskmesh.messages.runs import CHUNK, LONGEST_NAME, PICKLE, Spec
from taskmesh.serialize.code import FunctionCodec, Trailers, unwrap
from taskmesh.serialize.fingerprint import references
from taskmesh.serialize.payload import check_size, dumps_filter
from taskmesh.serialize.sources import REFERENCE, module_of, source_of
from taskmesh.shm.blob import SMALL
from taskmesh.system.clock import monotonic

_MOST_KEPT = 256
_MOST_BYTES_KEPT = 16 << 20
"""Of encoded functions; the latest is kept whatever its size."""
_MOST_PARTED = 1_000
"""Keys of limits whose run is kept for the next call."""
_HEAVY = 1 << 20
"""Bytes of a function by value that take longer to pickle than a task should."""
_log = logging.getLogger("taskmesh.client")
_hinted: set[str] = set()
NEARLY = 0.005
"""Seconds by which a task may start late, so that calls made one after the other travel together."""


class EncodedFunction:
    """A function as it travels with its options: one spec for calls, one for chunks."""

    __slots__ = (
        *("_by", "_chunk", "_group", "_headed", "_number", "_parted", "_table", "_waiting"),
        *("call", "options"),
    )

    def __init__(self, table: TaskTable, spec: Spec, options: TaskOptions, group: int = 0) -> None:
        self._table = table
        self._group = group
        self._chunk: tuple[int, Spec] | None = None
        self._waiting: tuple[tuple[tuple[Any, ...], str, str], OpenRun] | None = None
        self._by = options.by
        self._parted: dict[tuple[str, int], OpenRun] = {}
        self._number = spec_number(spec)
        self._headed: EncodedFunction | None = None
        self.options = options
        self.call = OpenRun(table, self._number, spec, group)

    def headed(self) -> EncodedFunction:
        """Return the function for calls that have headers behind their arguments."""
        if self._headed is None:
            spec = msgspec.structs.replace(self.call.spec, headers=True)
            self._headed = EncodedFunction(self._table, spec, self.options, self._group)
        return self._headed

    def part_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the key of a call's limits; empty if they have none.

        Raises:
            ConfigError: `by=` made something of the arguments that is neither text nor a whole number.
        """
        if self._by is None:
            return ""
        part: object = self._by(*args, **kwargs)
        text = str(part) if isinstance(part, int) else part
        if not isinstance(text, str) or not is_name(text):
            raise ConfigError(
                f"Limit(by=) has to give text, not {text!r:.200}, for {self.call.spec.name}: 1 to "
                f"{LONGEST_NAME} characters that UTF-8 can express"
            )
        return text

    def parted(self, part: str, group: int) -> OpenRun:
        """Return the run for calls of one group whose limits have one key."""
        parted = self._parted
        run = parted.get((part, group))
        if run is None:
            if len(parted) >= _MOST_PARTED:
                parted.clear()
            run = parted[part, group] = self.grouped(group)
            run.part = part
        return run

    def waiting(self, options: TaskOptions, part: str) -> OpenRun:
        """Return a run for calls that have a time to start at, or wait for more than their arguments.

        Calls that are to start at about the same time share one: a million of them make few messages.
        """
        start_at = monotonic() + options.start_in if options.delay or options.at else 0.0
        known = self._waiting
        if known is not None and known[0] == (options.after, options.when, part):
            run = known[1]
            is_near = start_at == run.start_at or (run.start_at and 0 <= start_at - run.start_at < NEARLY)
            if is_near and run.at == (0.0 if options.at is None else options.at.timestamp()):
                return run
        run = OpenRun(self._table, self._number, self.call.spec, self._group)
        run.start_at, run.when = start_at, WHEN[options.when]
        run.after = tuple(
            attached(self._table, one, self.call.spec.codec) if isinstance(one, str) else one
            for one in options.after
        )
        run.part = part
        run.at = 0.0 if options.at is None else options.at.timestamp()
        self._waiting = ((options.after, options.when, part), run)
        return run

    def keyed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OpenRun:
        """Return a run for one call alone: each call has its own key.

        Raises:
            ConfigError: `key=` made something of the arguments that is not text, or cannot travel.
        """
        key = self.options.key
        text = key if key is None or isinstance(key, str) else key(*args, **kwargs)
        if not isinstance(text, str) or not is_name(text):
            raise ConfigError(
                f"key= has to give text, not {text!r:.200}, for {self.call.spec.name}: 1 to {LONGEST_NAME} "
                "characters that UTF-8 can express; of a file's name, os.fsencode(name).hex() is"
            )
        return OpenRun(self._table, self._number, self.call.spec, self._group, key=text)

    def grouped(self, group: int) -> OpenRun:
        """Return a run for single calls of one group."""
        return OpenRun(self._table, self._number, self.call.spec, group)

    def retried(self, group: int, seconds: float) -> OpenRun:
        """Return a run for calls of one group that have failed in a chunk, to start again after `seconds`."""
        run = self.grouped(group)
        run.start_at = monotonic() + seconds
        run.tried = 1
        return run

    def chunked(self, group: int) -> OpenRun:
        if self._chunk is None:
            spec = msgspec.structs.replace(self.call.spec, kind=CHUNK)
            self._chunk = (spec_number(spec), spec)
        return OpenRun(self._table, *self._chunk, group)


class CachedFunction:
    """A function that was submitted before, with its options and its encoding of the last time."""

    __slots__ = ("guard", "latest", "options")

    def __init__(self, options: TaskOptions, guard: object) -> None:
        self.options = options
        # A weak reference that takes this out of the table before the id is used again.
        self.guard = guard
        # In one: other threads submit it, too.
        self.latest: tuple[bytes, EncodedFunction | None] = (b"", None)


class FunctionTable:
    """Functions with the options of one submitter.

    Attributes:
        ready: runs by the function object's id, of functions that nothing has to be asked about: they
            travel by reference and have no key.
        headers: returns the headers of the call that is being submitted; None if calls have none.
    """

    def __init__(
        self,
        table: TaskTable,
        codec: FunctionCodec,
        changes: Mapping[str, Any],
        limit: int = 0,
        result_codec: str = PICKLE,
        check: Callable[[TaskOptions], None] | None = None,
        *,
        group: int = 0,
    ) -> None:
        TaskOptions().with_changes(changes)  # what is wrong with them shows here, not at the first submit
        self.ready: dict[int, OpenRun] = {}
        self.headers: Callable[[], dict[str, str]] | None = None
        self._cached: dict[int, CachedFunction] = {}
        self._table = table
        self._codec = codec
        self._changes = dict(changes)
        self._limit = limit
        self._result_codec = result_codec
        self._check = check
        self._group = group
        self._kept: dict[tuple[bytes, str, TaskOptions, str], EncodedFunction] = {}

    def run_for(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[OpenRun, tuple[Any, ...]]:
        """Return the run of this call when `ready` has none, and its arguments by position as they travel.

        Raises:
            SerializationError: the function cannot travel.
            ConfigError: no pool would ever run it, see `Client.check_options`.
        """
        encoded, options, trailers = self._found(fn)
        part = encoded.part_of(args, kwargs)
        if options.key is not None:
            run = encoded.keyed(args, kwargs)
            run.part = part
        else:
            run = encoded.parted(part, encoded.call.group) if part else encoded.call
        if not options.starts_at_once:
            waiting = encoded.waiting(options, part)
            if options.key is None:
                run = waiting
            else:
                run.start_at, run.at = waiting.start_at, waiting.at
                run.after, run.when = waiting.after, waiting.when
        return run, args + trailers

    def encoded(self, fn: Callable[..., Any]) -> tuple[EncodedFunction, Trailers]:
        """Return the function as it is now, for several calls, and the trailers of these.

        Raises:
            ConfigError: its options say when it may start, which they do for one call at a time.
            SerializationError: it cannot travel.
            TooLarge: it refers to more than may travel.
            TypeError: it is no function.
        """
        encoded, options, trailers = self._found(fn)
        if not options.starts_at_once:
            raise ConfigError(
                "delay=, at=, after= and when= belong to single calls: submit them one by one, not by map()"
            )
        return encoded, tuple(each.copy() for each in trailers)

    def options_of(self, fn: Callable[..., Any]) -> TaskOptions:
        """Return the options that calls of a function have; raise TypeError if it is none."""
        return (self._cached.get(id(fn)) or self._add(fn)).options

    def _found(self, fn: Callable[..., Any]) -> tuple[EncodedFunction, TaskOptions, Trailers]:
        """Return the function as it is now, its options with those of a single call, and the trailers."""
        cached = self._cached.get(id(fn)) or self._add(fn)
        data, trailers = self._codec.encode(fn)
        known, encoded = cached.latest
        if encoded is None or known is not data:
            encoded = self._encoded(fn, data, cached.options.of_function)
            cached.latest = data, encoded
            own = encoded.options
            is_plain = own.key is None and own.by is None and cached.options.starts_at_once
            is_plain = is_plain and self.headers is None
            if data.startswith(REFERENCE) and is_plain and id(fn) in self._cached:
                self.ready[id(fn)] = encoded.call
        if self.headers is not None and (headers := self.headers()):
            return encoded.headed(), cached.options, (*trailers, headers)
        return encoded, cached.options, trailers

    def _add(self, fn: Callable[..., Any]) -> CachedFunction:
        if not callable(fn):
            raise TypeError(f"a task is made of a function and its arguments, not of {fn!r}")
        own: TaskOptions = getattr(fn, "__task_options__", None) or TaskOptions()
        options = own.with_changes(self._changes)
        if isinstance(fn, types.MethodType):  # made anew each time somebody asks for it
            return CachedFunction(options, None)
        key, cached_functions, ready = id(fn), self._cached, self.ready

        def forget(_: object) -> None:
            cached_functions.pop(key, None)
            ready.pop(key, None)

        try:
            cached = cached_functions[key] = CachedFunction(options, weakref.ref(fn, forget))
        except TypeError:
            return CachedFunction(options, None)
        return cached

    def _encoded(self, fn: Callable[..., Any], data: bytes, options: TaskOptions) -> EncodedFunction:
        """Encode a function; equal ones made anew (methods, lambdas in a loop) share an encoding."""
        kept, name = self._kept, options.name or function_name(fn)
        source = source_of(module) if (module := module_of(data)) else ""
        encoded = kept.get((data, name, options, source))
        if encoded is None:
            check_size(data, self._limit, f"the function {name}, with what it refers to,")
            if len(data) >= _HEAVY and name not in _hinted and not self._codec.remembers(fn):
                _hinted.add(name)
                _log.warning("%s", weight_hint(unwrap(fn), name, len(data)))
            if self._check is not None:
                self._check(options)
            spec = spec_of(data, options, name, self._result_codec, source)
            encoded = EncodedFunction(self._table, spec, options, self._group)
            kept[data, name, options, source] = encoded
            while self._is_over_limit(len(data)):
                try:
                    kept.pop(next(iter(kept)), None)
                except (StopIteration, RuntimeError):  # another thread is at it too
                    break
        return encoded

    def _is_over_limit(self, size: int) -> bool:
        """Return whether the oldest has to go, now that a function with this many bytes has been added."""
        count = len(self._kept)
        if count > _MOST_KEPT:
            return True
        # Small ones cannot come to much; adding them all up takes 10 us.
        if count == 1 or size <= SMALL:
            return False
        return sum(len(data) for data, *_ in tuple(self._kept)) > _MOST_BYTES_KEPT


def spec_of(data: bytes, options: TaskOptions, name: str, codec: str = PICKLE, source: str = "") -> Spec:
    """Return what all calls of a function, given as its bytes, with these options share.

    `source` is that of its module, as `source_of` gives it.

    Raises:
        SerializationError: an exception class in Retry(on=, never=) cannot be pickled.
    """
    retries = options.retries
    on = retries.on if isinstance(retries.on, tuple) else (retries.on,)
    never = retries.never if isinstance(retries.never, tuple) else (retries.never,)
    return Spec(
        function=data,
        name=name[:LONGEST_NAME],
        queue=options.queue,
        priority=options.priority,
        timeout=options.timeout,
        hard_timeout=options.hard_timeout,
        expires=options.expires,
        max_retries=retries.max,
        backoff=retries.backoff,
        factor=retries.factor,
        max_backoff=retries.max_backoff,
        jitter=retries.jitter,
        retry_filter=dumps_filter(on, never),
        acks=options.acks,
        tags=options.tags,
        on_client_loss="run" if options.detach else options.on_client_loss,
        codec=codec,
        limits=tuple(limit.rule for limit in options.limit),
        keep=options.kept_for,
        durable=options.durable,
        detach=options.detach,
        ignore_result=options.ignore_result,
        sink=options.sink,
        log_level=max(1, logging.getLogger().level),
        stream_logs=options.stream_logs,
        source=source,
    )


def function_name(fn: Any) -> str:
    """Return module and qualified name, for people: of a partial the function's, of an object its class's."""
    while not hasattr(fn, "__qualname__") and hasattr(fn, "func"):
        fn = fn.func
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    module = getattr(named, "__module__", None)
    return f"{module}.{named.__qualname__}" if module else str(named.__qualname__)


def weight_hint(fn: Any, name: str, size: int) -> str:
    """Return what makes a function by value heavy, and what to do. Told once: it is slow, and no error."""
    found = references(fn) if isinstance(fn, types.FunctionType) else ()
    words, weight = max(
        ((words, _weight(value)) for words, value in found), key=lambda each: each[1], default=("", 0)
    )
    most = f", most of it {words}" if 2 * weight > size else ""
    return (
        f"the function {name} travels by value with {size:,} bytes{most}: they are pickled at each "
        "submission, to see whether they have changed. Put the function, with what it refers to, into "
        "a module that workers can import, or pass the data as an argument"
    )


def _weight(value: object) -> int:
    """Return about how many bytes an object has, without the objects that it refers to."""
    try:
        return memoryview(value).nbytes  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return sys.getsizeof(value, 0)
