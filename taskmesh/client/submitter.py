"""Submitting: functions and their arguments become tasks of one client, with options of one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from numbers import Real
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

from taskmesh.client.client import Client
from taskmesh.client.functions import EncodedFunction, FunctionTable, function_name
from taskmesh.client.futures.future import TaskFuture
from taskmesh.client.futures.waiters import running_loop
from taskmesh.client.maps.chunk_size import ChunkSizer
from taskmesh.client.maps.items import MapItems
from taskmesh.client.maps.map import MapJob
from taskmesh.client.maps.pipe import Pipe
from taskmesh.client.maps.results import AsyncResultIterator, ResultIterator
from taskmesh.client.options import Chunksize, MapOptions, OptionValues, fixed_chunksize, is_count
from taskmesh.client.progress import ProgressOption
from taskmesh.client.progress_display import counter_of
from taskmesh.context import headers_here
from taskmesh.errors import ConfigError, QueueFull
from taskmesh.messages.runs import SAFE
from taskmesh.middleware import Around, Block, Call, check_headers, hooks_of
from taskmesh.serialize.code import Trailers
from taskmesh.serialize.payload import check_size, dumps_call
from taskmesh.serialize.values import FutureFound

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
_NO_CALL = Call("", "")
"""The call where no middleware looks at it."""
_headers: ContextVar[dict[str, str] | None] = ContextVar("taskmesh_headers", default=None)


class Submitter:
    """Submits tasks to a client, with options that go before the tasks' own. Any thread may use it.

    Args:
        client: where they go.
        options: the options.
        owner: the object whose finalizer ends the client; the submitter keeps it alive.
        group: the group of all tasks, 0 if each map has its own.
    """

    def __init__(
        self, client: Client, options: Mapping[str, Any], owner: object = None, *, group: int = 0
    ) -> None:
        self._client = client
        self._owner = owner
        self._options = dict(options)
        self._limit = client.max_payload
        self._group = group
        self._progress: ProgressOption = False
        self._functions = FunctionTable(
            client.table,
            client.codec,
            options,
            self._limit,
            client.result_codec,
            client.check_options,
            group=group,
        )
        hooks = hooks_of(client.middleware, "around_submit")
        self._middleware = SubmitMiddleware(hooks) if hooks or headers_here() else None
        if self._middleware is not None:
            self._functions.headers = self._middleware.headers
        self._ready = self._functions.ready
        self._put = client.table.put
        self._table = client.table

    @overload
    def submit(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskFuture[T]: ...

    @overload
    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[R]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Submit `fn(*args, **kwargs)`; return as soon as it is in the pending table.

        Futures of this mesh may be among the arguments, at any depth: the task starts when they have
        succeeded, and gets their values. If one fails, the task fails at once with DependencyError.

        Raises:
            SerializationError: the function or an argument cannot be pickled; the text says what to do.
            TypeError: an argument is a future of another mesh.
            QueueFull: the table is full, and an event loop runs in this thread; elsewhere submit waits.
            ConfigError: the mesh is embedded, and its one pool lacks the task's queue or a tag of it.
            MeshClosed: the mesh is closed.
        """
        run = self._ready.get(id(fn))
        if run is None:
            if self._middleware is not None:
                return self._submit_within(fn, args, kwargs)
            run, args = self._functions.run_for(fn, args, kwargs)
            if run.after or run.when:
                return self._put(run, *self._client.collect(run, args, kwargs))
        try:
            payload = dumps_call(args, kwargs, where=run.spec.name, memfd=self._table.memfd)
        except FutureFound:
            return self._put(run, *self._client.collect(run, args, kwargs))
        if self._limit:
            check_size(payload, self._limit, f"the call of {run.spec.name}", args, kwargs)
        return self._put(run, payload)

    def _submit_within(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskFuture[Any]:
        """Submit a call inside the hooks around it."""
        with self.around(fn) as call:
            run, args = self._functions.run_for(fn, args, kwargs)
            future = self._put(run, *self._client.collect(run, args, kwargs))
            call.id = future.task_id
            return future

    def around(self, fn: Callable[..., Any], items: int = 1) -> AbstractContextManager[Call]:
        """Return the block of the middleware's hooks around a submission: for modules of taskmesh.

        Args:
            fn: the function that is submitted.
            items: calls of it that are submitted together; -1 for an unknown number.
        """
        if self._middleware is None:
            return nullcontext(_NO_CALL)
        options = self._functions.options_of(fn)
        return self._middleware.around(options.name or function_name(fn), options.queue, items)

    @overload
    async def asubmit(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskFuture[T]: ...

    @overload
    async def asubmit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[R]: ...

    async def asubmit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Submit as `submit` does and return the task's future, not its result; `call` returns the result.

        It waits for the mesh to open and for room in the pending table, without blocking the event loop.
        """
        loop = running_loop()
        if loop is None:
            raise RuntimeError(
                "call() and asubmit() are awaited in an asyncio event loop; elsewhere use submit()"
            )
        if not self._client.is_open:
            await loop.run_in_executor(None, self._client.open)
        with self.around(fn) as call:
            run, travelling = self._functions.run_for(fn, args, kwargs)
            payload, edges = self._client.collect(run, travelling, kwargs)
            while True:
                room = self._client.table.room(loop)
                if room is not None:
                    await room
                    continue
                try:
                    future = self._put(run, payload, edges)
                except QueueFull:
                    continue  # somebody was faster
                call.id = future.task_id
                return future

    @overload
    async def call(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` as a task and return its result: `y = await mesh.call(f, x)`.

        It waits without blocking the event loop. If it is cancelled, so is the task.

        Raises:
            BaseException: the task's own error; or as `submit`, but for QueueFull: it waits for room.
        """
        return await (await self.asubmit(fn, *args, **kwargs))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a mesh belongs to its process and cannot be pickled: "
            "leave it out of the task's arguments, and out of the globals that the task's function uses"
        )

    # `Callable[Concatenate[A, ...], R]` would say it once for any number of iterables, but mypy infers
    # nothing for a lambda from it; and no type stands for both Iterator and AsyncIterator.
    @overload
    def map(
        self,
        fn: Callable[[A], R],
        items: Iterable[A],
        /,
        *,
        return_exceptions: Literal[False] = False,
        **how: Unpack[MapOptions],
    ) -> Iterator[R]: ...

    @overload
    def map(
        self,
        fn: Callable[[A, B], R],
        items: Iterable[A],
        others: Iterable[B],
        /,
        *,
        return_exceptions: Literal[False] = False,
        **how: Unpack[MapOptions],
    ) -> Iterator[R]: ...

    @overload
    def map(
        self,
        fn: Callable[..., R],
        items: Iterable[Any],
        others: Iterable[Any],
        more: Iterable[Any],
        /,
        *rest: Iterable[Any],
        return_exceptions: Literal[False] = False,
        **how: Unpack[MapOptions],
    ) -> Iterator[R]: ...

    @overload
    def map(
        self,
        fn: Callable[..., R],
        /,
        *iterables: Iterable[Any],
        return_exceptions: bool,
        **how: Unpack[MapOptions],
    ) -> Iterator[R | BaseException]: ...

    def map(
        self,
        fn: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: Chunksize = "auto",
        buffersize: int | None = None,
        ordered: bool = True,
        progress: ProgressOption = False,
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """Call `fn` with the items of the iterables, side by side, and iterate over the results.

        An item's error is raised in its place. Items travel in chunks, unless the task has retries, a hard
        limit or a key, which belong to each call. Items of a chunk share nothing, as with `chunksize=1`.

        Args:
            fn: a function or task function.
            iterables: where its arguments come from; the shortest ends the map.
            timeout: seconds from now within which every result has to be there.
            chunksize: items in a chunk; "auto" measures what makes 5 to 10 ms of work.
            buffersize: items that may be submitted and not yet given out. Without it all iterables are
                drawn before this returns; with it they may be endless.
            ordered: False gives results as they come.
            progress: show how many items have ended and failed: True or a label for a bar on stderr, or a
                function that gets a Progress, ten times a second at most and once at the end.
            return_exceptions: an item's error, too, is given in its place, so that one loop sees all results.

        Raises:
            ConfigError: a number cannot be used, or the task has a key.
            TimeoutError: (while iterating) a result was not there in time.
            SerializationError, QueueFull, MeshClosed: as `submit`, here or while iterating.
        """
        if not iterables:
            raise TypeError("map() takes a function and at least one iterable")
        check_timeout(timeout)
        items = MapItems.of(iterables, lazily=buffersize is not None)
        progress = progress or self._progress
        job = start_map(self, fn, items, chunksize, buffersize, ordered=ordered, progress=progress)
        return ResultIterator(job, timeout, owner=self, return_exceptions=return_exceptions)

    @overload
    def amap(
        self,
        fn: Callable[[A], R],
        items: Iterable[A],
        /,
        *,
        return_exceptions: Literal[False] = False,
        **how: Unpack[MapOptions],
    ) -> AsyncIterator[R]: ...

    @overload
    def amap(
        self,
        fn: Callable[..., R],
        /,
        *iterables: Iterable[Any],
        return_exceptions: Literal[False] = False,
        **how: Unpack[MapOptions],
    ) -> AsyncIterator[R]: ...

    @overload
    def amap(
        self,
        fn: Callable[..., R],
        /,
        *iterables: Iterable[Any],
        return_exceptions: bool,
        **how: Unpack[MapOptions],
    ) -> AsyncIterator[R | BaseException]: ...

    def amap(self, fn: Callable[..., Any], /, *iterables: Iterable[Any], **how: Any) -> AsyncIterator[Any]:
        """Map as `map` does, in a coroutine: `async for x in mesh.amap(f, xs)` never blocks the event loop.

        The map begins with the first result that is asked for. Another thread draws the iterables and
        rebuilds the results. Cancelling the wait for a result cancels the rest of the map.
        """
        return AsyncResultIterator(
            cast(Callable[[], ResultIterator[Any]], partial(self.map, fn, *iterables, **how))
        )

    @overload
    def starmap(
        self,
        fn: Callable[..., R],
        iterable: Iterable[Iterable[Any]],
        /,
        *,
        return_exceptions: Literal[False] = False,
        **how: Unpack[MapOptions],
    ) -> Iterator[R]: ...

    @overload
    def starmap(
        self,
        fn: Callable[..., R],
        iterable: Iterable[Iterable[Any]],
        /,
        *,
        return_exceptions: bool,
        **how: Unpack[MapOptions],
    ) -> Iterator[R | BaseException]: ...

    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        /,
        *,
        timeout: float | None = None,
        chunksize: Chunksize = "auto",
        buffersize: int | None = None,
        ordered: bool = True,
        progress: ProgressOption = False,
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """Map as `map` does, over arguments that are tuples already: `fn(*item)` for each item."""
        check_timeout(timeout)
        calls = map(tuple, iterable)
        items = MapItems.listed(list(calls)) if buffersize is None else MapItems.drawn(calls)
        progress = progress or self._progress
        job = start_map(self, fn, items, chunksize, buffersize, ordered=ordered, progress=progress)
        return ResultIterator(job, timeout, owner=self, return_exceptions=return_exceptions)

    def pipe(
        self,
        items: Iterable[Any],
        /,
        *tasks: Callable[..., Any],
        buffersize: int = 1000,
        ordered: bool = False,
        timeout: float | None = None,
        return_exceptions: bool = False,
    ) -> Iterator[Any]:
        """Have each item go through the tasks in turn, and iterate over the results of the last one.

        Each task gets what the one before has returned, straight from hub to worker; the tasks may be on
        different queues and pools. An item's error is raised in its place, as that of the task that failed.
        Tasks but the last have `ignore_result=True`, and later ones go before earlier ones. Leaving the loop,
        close() and dropping the iterator cancel what is under way.

        Args:
            items: where the items come from; they may be endless, and are drawn as there is room.
            tasks: functions or task functions of one argument.
            buffersize: items that may be drawn and not yet given out.
            ordered: results come in the order of the items, not as they end.
            timeout: seconds from now within which every result has to be there.
            return_exceptions: an item's error, too, is given in its place, so that one loop sees all results.

        Raises:
            ConfigError: a number cannot be used, or the options of a task do not fit a stage.
            TimeoutError: (while iterating) a result was not there in time.
            SerializationError, QueueFull, MeshClosed: as `submit`, here or while iterating.
        """
        if not tasks:
            raise TypeError("pipe() takes items and at least one task")
        if not is_count(buffersize):
            raise ConfigError(f"buffersize has to be a number of items >= 1, not {buffersize!r}")
        check_timeout(timeout)
        client, last = self._client, len(tasks) - 1
        stages = [_stage(self, task, at, is_last=at == last) for at, task in enumerate(tasks)]
        pipe = Pipe(
            client, iter(items), stages, self._group or client.new_group(), buffersize, ordered=ordered
        )
        return ResultIterator(pipe, timeout, owner=self, return_exceptions=return_exceptions)

    def with_options(self, **options: Unpack[OptionValues]) -> Submitter:
        """Return a submitter to the same mesh with these options, which go before the tasks' own.

        Raises:
            ConfigError: an option is unknown, or its value cannot be used.
        """
        submitter = Submitter(self._client, {**self._options, **options}, owner=self, group=self._group)
        submitter._put, submitter._progress = self._put, self._progress
        return submitter


class SubmitMiddleware:
    """The hooks around the submissions of one client.

    Args:
        hooks: in order; none if only headers of the task that submits travel on.
    """

    def __init__(self, hooks: Sequence[Callable[[Call], Block]]) -> None:
        self._hooks = hooks

    @staticmethod
    def headers() -> dict[str, str]:
        """Return the headers of the call that is being submitted."""
        found = _headers.get()
        return dict(headers_here() if found is None else found)

    @contextmanager
    def around(self, name: str, queue: str, items: int = 1) -> Iterator[Call]:
        """Enter the hooks around one submission, and leave them after it.

        Raises:
            ConfigError: a hook has made headers that cannot travel.
        """
        with Around(self._hooks, Call(name, queue, dict(headers_here()), items)) as call:
            check_headers(call.headers)
            token = _headers.set(call.headers)
            try:
                yield call
            finally:
                _headers.reset(token)


def _stage(
    submitter: Submitter, task: Callable[..., Any], at: int, *, is_last: bool
) -> tuple[EncodedFunction, Trailers]:
    """Return a task as a stage: later ones go first, and all but the last ignore their results."""
    options = submitter._functions.encoded(task)[0].options
    if options.key is not None:
        raise ConfigError("a task with a key= cannot be a stage of a pipe: submit its calls one by one")
    if options.acks == "early" and not is_last:
        raise ConfigError(
            'acks="early" forbids a task to run again, which it may have to for the result that the next '
            "stage of a pipe needs: only the last stage can have it"
        )
    if options.by is not None and at:
        raise ConfigError(
            "Limit(by=) looks at the arguments of a call, which a stage gets from the one before: only the "
            "first stage of a pipe can have it"
        )
    changed = submitter.with_options(priority=options.priority + at)
    stage = changed if is_last else changed.with_options(ignore_result=True)
    with stage.around(task, -1):
        return stage._functions.encoded(task)


def client_of(submitter: Submitter) -> Client:
    """Return the client that a mesh, or another submitter, submits to: for modules of taskmesh."""
    return submitter._client


def start_map(
    submitter: Submitter,
    fn: Callable[..., Any],
    items: MapItems,
    chunksize: Chunksize,
    buffersize: int | None,
    *,
    ordered: bool,
    progress: ProgressOption = False,
) -> MapJob:
    """Start a map: the common part of `map`, `starmap` and `MeshExecutor.map`. Raises as `map` does."""
    fixed = fixed_chunksize(chunksize)
    if buffersize is not None and not is_count(buffersize):
        raise ConfigError(f"buffersize has to be a number of items >= 1, or None, not {buffersize!r}")
    left = -1 if items.left is None else items.left
    with submitter.around(fn, left):
        encoded, trailers = submitter._functions.encoded(fn)
    if encoded.options.key is not None:
        raise ConfigError("a task with a key= cannot be mapped: submit its calls one by one")
    client = submitter._client
    if not encoded.options.is_chunkable or client.result_codec == SAFE:
        fixed = 1
    counter = counter_of(progress, encoded.call.spec.name, items.left, client.callbacks.put)
    sizer = ChunkSizer(client.slots(), items.left, fixed or None, buffersize)
    group = submitter._group or client.new_group()
    job = MapJob(client, encoded, trailers, group, items, sizer, ordered=ordered)
    job.progress = counter
    job.start()
    return job


def check_timeout(timeout: object) -> None:
    """Raise ConfigError if this is no number of seconds, nor None."""
    is_number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout == timeout):  # noqa: PLR0124  nan is none
        raise ConfigError(f"timeout has to be a number of seconds, or None, not {timeout!r}")
