"""Task functions: what `@task` makes of a function. It stays callable as itself, and can be submitted."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from taskmesh.client.current_mesh import current_mesh
from taskmesh.client.options import OptionValues, TaskOptions
from taskmesh.errors import NoMesh
from taskmesh.pool.slots.nested import nested_context
from taskmesh.serialize.values import is_by_value_module

if TYPE_CHECKING:
    from taskmesh.client.futures.future import TaskFuture
    from taskmesh.client.scheduled_functions import ScheduledTask
    from taskmesh.schedule import Schedule

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Task(Generic[P, R_co]):
    """A function with task options. Calling it runs it here; `submit` runs it on the mesh.

    Attributes:
        options: how it is to be run.
        scheduled: the schedule that `@task(schedule=...)` gave it, if any.
    """

    def __init__(self, fn: Callable[P, R_co], options: TaskOptions) -> None:
        functools.update_wrapper(self, fn)
        # Annotated here: annotations of the class would be taken for the function's, from Python 3.14 on.
        self.__wrapped__: Callable[P, R_co] = fn.__wrapped__ if isinstance(fn, Task) else fn
        self.options: TaskOptions = options
        self.scheduled: ScheduledTask | None = None

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function here, as if it were not decorated."""
        return self.__wrapped__(*args, **kwargs)

    @overload
    def submit(
        self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskFuture[T]: ...

    @overload
    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[R_co]: ...

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[Any]:
        """Submit a call to the innermost open mesh; inside a task, to the mesh that runs the task.

        Outside a `with` block that is the mesh of this process, if it has only one.

        Raises:
            NoMesh: no mesh is open here, or more than one outside a `with` block; and no task runs.
            SerializationError: an argument cannot be pickled; else as `Mesh.submit`.
        """
        try:
            mesh = current_mesh()
        except NoMesh:
            return _submit_in_task(self, args, kwargs)
        return mesh.submit(self, *args, **kwargs)

    def with_options(self, **options: Unpack[OptionValues]) -> Task[P, R_co]:
        """Return the same task function with some of its options changed.

        Raises:
            ConfigError: an option is unknown, or its value cannot be used.
        """
        return Task(self.__wrapped__, self.options.with_changes(options))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method it is a task of the bound method, with the same options."""
        return self if instance is None else Task(types.MethodType(self.__wrapped__, instance), self.options)

    @property
    def __task_options__(self) -> TaskOptions:
        return self.options

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By name where the name leads here, as a function would; else with the function itself."""
        fn = self.__wrapped__
        module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
        found: Any = sys.modules.get(module or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if module is None or found is not self:
            return Task, (fn, self.options)
        if not is_by_value_module(module):
            return name
        return _remade, (types.MethodType(fn, _Address(module, name)), self.options)

    def __repr__(self) -> str:
        fn = self.__wrapped__
        return f"<task {fn.__module__}.{getattr(fn, '__qualname__', type(fn).__qualname__)}>"


class _Address:
    """The object of a bound method that plain pickle sends by name, and cloudpickle by value.

    A pickler does not say which of them it is. But of a bound method plain pickle writes
    `getattr(its object, its name)`, cloudpickle its function and its object: the one is led to the task
    function, the other brings its function along.
    """

    def __init__(self, module: str, name: str) -> None:
        self.__dict__ = {"module": module, "name": name}

    def __getattribute__(self, attribute: str) -> Any:
        own = object.__getattribute__(self, "__dict__")  # empty while it is unpickled
        if attribute != own.get("name", "").rpartition(".")[2]:
            return object.__getattribute__(self, attribute)
        import pkgutil  # 3 ms, and seldom needed

        return pkgutil.resolve_name(f"{own['module']}:{own['name']}")


def _remade(found: Any, options: TaskOptions) -> Any:
    """Return what a name has led to, or a task function anew where a bound method brought its function."""
    return Task(found.__func__, options) if isinstance(found, types.MethodType) else found


def _submit_in_task(fn: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskFuture[Any]:
    """Submit a call from inside a task. Call it where NoMesh has been raised."""
    here = nested_context()
    if here is None:
        raise  # noqa: PLE0704  there is no task
    from taskmesh.client.nested_client import submit_nested

    return submit_nested(here, fn, args, kwargs)


@overload
def task(fn: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(
    *, schedule: float | str | Schedule | None = None, **options: Unpack[OptionValues]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(fn: Callable[..., Any] | None = None, /, *, schedule: Any = None, **options: Any) -> Any:
    """Make a task function, as `@task` or `@task(queue="slow", retries=3)`.

    Args:
        fn: the function, if no options are given; a coroutine function too.
        schedule: the function runs by itself: every so many seconds, by a cron line, or by a `Schedule`. It
            is called without arguments while a mesh is open whose program imports it, or a pool imports it.
        options: the options of its tasks, all by name.
            name: the name that people see; `module.qualname` if empty.
            queue: the queue that a pool must serve to run the task.
            tags: the tags that a pool must have to run it.
            priority: tasks of a higher priority run first; 0 if not given.
            retries: how many more times the task runs after it has raised an error; `Retry(...)` chooses
                errors and waits.
            timeout: seconds until TaskTimeout is raised inside it.
            hard_timeout: seconds until its process is killed.
            expires: seconds after its acceptance by which it must have started, or it ends as TaskExpired.
            acks: "late" (at least once) or "early" (at most once: TaskLost when its worker vanishes).
            key: tasks of one key share one outcome while the first lives; may be a function of the arguments.
            on_client_loss: "run" or "cancel": the fate of the task when its client vanishes.
            delay: seconds after submission before which a task does not start.
            at: the time, with a time zone, before which a task does not start.
            after: futures that a task waits for, beside those among its arguments.
            when: the end of these futures that it waits for: "success" (of all), "done" (any end, of all) or
                "failure" (of one).
            limit: how many of the tasks that have it start in a time ("api:50/s") or run at a time ("gpu:2"),
                in the whole mesh; a text, a `Limit`, or several.
            detach: the task does not end with its program, and its outcome can be fetched by its id.
            keep: seconds after its end for which the outcome can be had by its id and its key; None for a day
                if it is detached, else 0.
            ignore_result: the result is not sent to the program, where it is None, but to tasks that depend
                on it; an error comes as ever.
            sink: the sink that its outcome goes to, in place of its future.
            stream_logs: what the task, its C code and its child processes print comes to the
                program, with what it logs.
            durable: True: only a hub with a journal takes it; False: it is not written there; None: it is
                written if there is a journal.

    Raises:
        ConfigError: an option is unknown, or its value cannot be used.
        TypeError: `fn` is not a function.
    """
    checked = TaskOptions().with_changes(options)
    if fn is None:
        return lambda function: _decorated(function, checked, schedule)
    return _decorated(fn, checked)


def _decorated(fn: Callable[..., Any], options: TaskOptions, when: object = None) -> Task[..., Any]:
    if isinstance(fn, staticmethod | classmethod):
        kind = type(fn).__name__
        cure = (
            "write @staticmethod above @task" if kind == "staticmethod" else "mesh.submit(Class.method, ...)"
        )
        raise TypeError(f"@task decorates a function, not a {kind}: {cure}")
    if not callable(fn):
        raise TypeError(f"@task decorates a function, not {fn!r}; options are given by name")
    made = Task(fn, options)
    if when is not None:
        from taskmesh.client.scheduled_functions import ScheduledTask  # most tasks have no schedule

        made.scheduled = ScheduledTask(made.__wrapped__, options, when)
        made.scheduled.register()
    return made
