"""Task functions with a schedule, as they are declared to hubs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from taskmesh.client.functions import function_name, spec_of
from taskmesh.client.options import TaskOptions
from taskmesh.errors import ConfigError
from taskmesh.messages.runs import FIRING, LONGEST_NAME, Spec
from taskmesh.messages.schedules import Declaration
from taskmesh.schedule import register, schedule_of
from taskmesh.serialize.code import FunctionCodec
from taskmesh.serialize.payload import dumps_call


class ScheduledTask:
    """A task function that `@task(schedule=...)` has given a schedule.

    Args:
        fn: the function.
        options: the options of its tasks.
        when: the schedule, as a user writes it.

    Attributes:
        schedule: the schedule.
        name: the schedule's name, which is the task's.

    Raises:
        ConfigError: the schedule cannot be used, or the function cannot be called without arguments.
    """

    def __init__(self, fn: Callable[..., Any], options: TaskOptions, when: object) -> None:
        self.schedule = schedule_of(when)
        self.name = (options.name or function_name(fn))[:LONGEST_NAME]
        self._fn = fn
        self._options = options
        check_options(options, self.name)
        try:
            inspect.signature(fn).bind()
        except TypeError as error:
            raise ConfigError(
                f"a schedule calls {self.name} without arguments, and it needs some ({error}): give them "
                "defaults, or use mesh.schedule(name, task, *args, when=...)"
            ) from None
        except ValueError:  # a function in C that does not tell
            pass

    def register(self) -> None:
        """Have every mesh of this process declare it, those that are open at once.

        Raises:
            ConfigError: a hub cannot keep it.
        """
        register(self.name, self)

    def declaration(self) -> Declaration:
        """Return the schedule and the call as they travel.

        Raises:
            SerializationError: the function cannot travel.
        """
        function, carried = FunctionCodec().encode(self._fn)
        spec = firing_spec(spec_of(function, self._options, self.name))
        payload = dumps_call(carried, {}, where=self.name)
        by = self._options.by
        part = "" if by is None else str(by())
        return Declaration(self.name, self.schedule.timing, spec, payload, part, in_code=True)


def check_options(options: TaskOptions, name: str) -> None:
    """Refuse options that a schedule's task cannot have.

    Raises:
        ConfigError: it has a key, or options of single calls.
    """
    if options.key is not None:
        raise ConfigError(
            f"the key of a task that a schedule runs is the name of its time: leave key= of {name} out"
        )
    if not options.starts_at_once:
        raise ConfigError(f"delay=, at=, after= and when= are of single calls, not of a schedule: {name}")


def firing_spec(spec: Spec) -> Spec:
    """Return the spec of a schedule's tasks. They are the hub's own: no client's end is theirs."""
    return replace(spec, kind=FIRING, on_client_loss="run")
