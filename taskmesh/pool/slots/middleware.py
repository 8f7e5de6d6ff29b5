"""The middleware of a slot: it starts with the process, and stands around the slot's tasks."""

from __future__ import annotations

import logging
import pkgutil
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from taskmesh.middleware import Around, Block, Call, checked_middleware, hooks_of, install, value_of
from taskmesh.pool.slots.soft_timeout import TimeLimit
from taskmesh.serialize.code import load_function
from taskmesh.serialize.namespaces import Scope, enter

BY_VALUE: Final = "pickle:"
"""The beginning of a reference of middleware that travels by value: its pickle follows, as text."""
NO_CALL: Final = Call("", "")
"""The call while none runs that hooks, or headers, belong to."""
_log = logging.getLogger("taskmesh.middleware")


def load(reference: str) -> object:
    """Return the middleware that a text leads to: MODULE:NAME of an object or a class, or its pickle."""
    if reference.startswith(BY_VALUE):
        enter(Scope())
        return load_function(b64decode(reference.removeprefix(BY_VALUE)))()
    return pkgutil.resolve_name(reference)


class SlotMiddleware:
    """The middleware of one slot.

    Args:
        limit: the soft limit, which strikes in the task, and not in a hook.

    Attributes:
        is_needed: one has a hook around tasks.
        call: the call that runs, for hooks; its headers are those of the running task.
    """

    def __init__(self, limit: TimeLimit) -> None:
        self.call = NO_CALL
        self._limit = limit
        self.is_needed = False
        self._around: list[Callable[[Call], Block]] = []
        self._failed: list[Callable[[Call, BaseException], object]] = []
        self._sees_arguments = False

    def start(self, references: Sequence[str]) -> None:
        """Load the middleware that these texts lead to, in order, and start it in this process.

        Raises:
            Exception: that of a `process_start`.
        """
        found = checked_middleware([load(reference) for reference in references])
        install(found)
        self._around = hooks_of(found, "around_task")
        self._failed = hooks_of(found, "on_failure")
        self._sees_arguments = any(getattr(each, "sees_arguments", False) for each in found)
        self.is_needed = bool(self._around or self._failed)
        for each in found:
            if hasattr(each, "process_start") or hasattr(each, "process_stop"):
                value_of(each)

    def share(self, started: SlotMiddleware) -> None:
        """Have the hooks of another, which has started them in this process."""
        self._around, self._failed = started._around, started._failed
        self._sees_arguments, self.is_needed = started._sees_arguments, started.is_needed

    def run(
        self, call: Call, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a function, and the hooks around that."""
        if self._sees_arguments:
            call.arguments = args, kwargs
        limit = self._limit
        limit.block()
        try:
            with Around(self._around, call):
                limit.unblock()
                try:
                    return function(*args, **kwargs)
                finally:
                    limit.block()
        finally:
            limit.unblock()

    def failed(self, call: Call, error: BaseException) -> None:
        """Tell the hooks that a call has failed, or an item of it."""
        self._limit.block()
        try:
            for hook in self._failed:
                try:
                    hook(call, error)
                except Exception:  # noqa: BLE001  whatever it is, it is logged
                    _log.exception("%r failed for %s", hook, call.name)
        finally:
            self._limit.unblock()
