"""The table of functions: what was submitted with which options, and the batch that a call goes into."""

from __future__ import annotations

import logging
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from taskmesh.client.options import NAME, TaskOptions, is_name
from taskmesh.errors import ConfigError
from taskmesh.future import Batch, Keeper
from taskmesh.serialize.code import FunctionCodec, unwrap
from taskmesh.serialize.footprint import references
from taskmesh.serialize.payload import check_size
from taskmesh.serialize.retry_filter import dumps_filter
from taskmesh.shm.blob import SMALL
from taskmesh.wire.batches import PICKLE
from taskmesh.wire.bounds import LONGEST_NAME
from taskmesh.wire.messages import CHUNK, Spec
from taskmesh.wire.spec_number import spec_number

_BY_REFERENCE = b"R"
_FORMS_KEPT = 256
_BYTES_KEPT = 16 << 20
"""Of functions in these forms; the latest is kept whatever its size."""
_HEAVY = 1 << 20
"""Bytes of a function by value that take longer to pickle than a task should."""
_log = logging.getLogger("taskmesh.client")
_hinted: set[str] = set()


class Form:
    """A function as it travels with its options: one spec for calls, one for chunks."""

    __slots__ = ("_chunk", "_number", "_table", "call", "options")

    def __init__(self, table: Keeper, spec: Spec, options: TaskOptions) -> None:
        self._table = table
        self._chunk: tuple[int, Spec] | None = None
        self._number = spec_number(spec)
        self.options = options
        self.call = Batch(table, self._number, spec)

    def keyed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Batch:
        """A batch for one call alone: a key is its own run's.

        Raises:
            ConfigError: the key that `key=` made of the arguments is no text, or none that can travel.
        """
        key = self.options.key
        text = key if key is None or isinstance(key, str) else key(*args, **kwargs)
        if not isinstance(text, str) or not text or not is_name(text):
            hint = "; of a file's name, os.fsencode(name).hex() is" if isinstance(text, str) and text else ""
            name = self.call.spec.name
            raise ConfigError(f"key= has to give text, not {text!r:.200}, for {name}: {NAME}{hint}")
        return Batch(self._table, self._number, self.call.spec, key=text)

    def grouped(self, group: int) -> Batch:
        """A batch for single calls of one group."""
        return Batch(self._table, self._number, self.call.spec, group)

    def chunked(self, group: int) -> Batch:
        """A batch for chunks of one group."""
        if self._chunk is None:
            spec = msgspec.structs.replace(self.call.spec, kind=CHUNK)
            self._chunk = (spec_number(spec), spec)
        return Batch(self._table, *self._chunk, group)


class Entry:
    """A function that was submitted before, with its options and the form that it had last."""

    __slots__ = ("guard", "latest", "options")

    def __init__(self, options: TaskOptions, guard: object) -> None:
        self.options = options
        self.guard = (
            guard  # a weak reference that takes the entry out of the table before the id is used again
        )
        self.latest: tuple[bytes, Form | None] = (b"", None)  # in one: other threads submit it, too


class FunctionTable:
    """Functions with the options of one submitter.

    Attributes:
        ready: batches by the function object's id, of functions that nothing has to be asked about: they
            travel by reference and have no key.
    """

    def __init__(
        self,
        table: Keeper,
        codec: FunctionCodec,
        changes: Mapping[str, Any],
        limit: int = 0,
        result_codec: str = PICKLE,
        check: Callable[[TaskOptions], None] | None = None,
    ) -> None:
        TaskOptions().having(changes)  # what is wrong with them shows here, not at the first submit
        self.ready: dict[int, Batch] = {}
        self._entries: dict[int, Entry] = {}
        self._table = table
        self._codec = codec
        self._changes = dict(changes)
        self._limit = limit
        self._result_codec = result_codec
        self._check = check
        self._forms: dict[tuple[bytes, TaskOptions], Form] = {}

    def batch(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Batch:
        """Where this call goes, when `ready` does not say.

        Raises:
            SerializationError: the function cannot travel.
            ConfigError: nobody would ever run it, see `Session.check_route`.
        """
        form = self.form(fn)
        return form.call if form.options.key is None else form.keyed(args, kwargs)

    def form(self, fn: Callable[..., Any]) -> Form:
        """The function as it is now, with its options.

        Raises:
            SerializationError: it cannot travel.
            TooLarge: it refers to more than may travel.
            TypeError: it is no function.
        """
        entry = self._entries.get(id(fn)) or self._enter(fn)
        data = self._codec.encode(fn)
        known, form = entry.latest
        if form is None or known is not data:
            form = self._form(fn, data, entry.options)
            entry.latest = data, form
            if data.startswith(_BY_REFERENCE) and form.options.key is None and id(fn) in self._entries:
                self.ready[id(fn)] = form.call
        return form

    def _enter(self, fn: Callable[..., Any]) -> Entry:
        if not callable(fn):
            raise TypeError(f"a task is made of a function and its arguments, not of {fn!r}")
        own: TaskOptions = getattr(fn, "__task_options__", None) or TaskOptions()
        options = own.having(self._changes)
        if isinstance(fn, types.MethodType):  # made anew each time somebody asks for it
            return Entry(options, None)
        key, entries, ready = id(fn), self._entries, self.ready

        def forget(_: object) -> None:
            entries.pop(key, None)
            ready.pop(key, None)

        try:
            entry = entries[key] = Entry(options, weakref.ref(fn, forget))
        except TypeError:
            return Entry(options, None)
        return entry

    def _form(self, fn: Callable[..., Any], data: bytes, options: TaskOptions) -> Form:
        """Equal functions made anew (bound methods, lambdas in a loop) share a form for a while."""
        forms = self._forms
        form = forms.get((data, options))
        if form is None:
            name = options.name or function_name(fn)
            check_size(data, self._limit, f"the function {name}, with what it refers to,")
            if len(data) >= _HEAVY and name not in _hinted and not self._codec.remembers(fn):
                _hinted.add(name)
                _log.warning("%s", weight_hint(unwrap(fn), name, len(data)))
            if self._check is not None:
                self._check(options)
            form = Form(self._table, spec_of(data, options, name, self._result_codec), options)
            forms[data, options] = form
            while self._too_many_forms(len(data)):
                try:
                    forms.pop(next(iter(forms)), None)
                except (StopIteration, RuntimeError):  # another thread is at it too
                    break
        return form

    def _too_many_forms(self, size: int) -> bool:
        """Whether the oldest has to go, now that a function with this many bytes has been added."""
        count = len(self._forms)
        if count > _FORMS_KEPT:
            return True
        # Small ones cannot come to much; adding them all up takes 10 us.
        return count > 1 and size > SMALL and sum(len(data) for data, _ in tuple(self._forms)) > _BYTES_KEPT


def spec_of(data: bytes, options: TaskOptions, name: str, codec: str = PICKLE) -> Spec:
    """What all calls of a function, given as its bytes, with these options share.

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
        on_client_loss=options.on_client_loss,
        codec=codec,
    )


def function_name(fn: Any) -> str:
    """Module and qualified name, for people: of a partial the function's, of an object its class's."""
    while not hasattr(fn, "__qualname__") and hasattr(fn, "func"):
        fn = fn.func
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    module = getattr(named, "__module__", None)
    return f"{module}.{named.__qualname__}" if module else str(named.__qualname__)


def weight_hint(fn: Any, name: str, size: int) -> str:
    """What makes a function by value heavy, and the cure. Told once: it is slow, and no error."""
    found = references(fn) if isinstance(fn, types.FunctionType) else ()
    words, weight = max(
        ((words, _weight(value)) for words, value in found), key=lambda each: each[1], default=("", 0)
    )
    most = f", most of it {words}" if 2 * weight > size else ""
    return (
        f"the function {name} travels by value with {size:,} bytes{most}: they are pickled at each "
        "submission, to see whether they have changed. Cure: put the function, with what it refers to, into "
        "a module that workers can import, or pass the data as an argument"
    )


def _weight(value: object) -> int:
    """About how many bytes an object has, without what it refers to."""
    try:
        return memoryview(value).nbytes  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return sys.getsizeof(value, 0)
