"""Errors of tasks to Sentry, with the task as tags and context (extra `sentry`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sentry_sdk

from taskmesh.middleware import Call, Middleware

FLUSH_S = 2.0


class Sentry(Middleware[None]):
    """Report each attempt that fails in a slot, with what its task has left as breadcrumbs.

    Args:
        options: those of `sentry_sdk.init`, which each slot calls; none if the worker's code does.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._scope: sentry_sdk.Scope | None = None

    def process_start(self) -> Iterator[None]:
        """Connect the slot; what has not been sent is, before the process ends."""
        if self._options:
            sentry_sdk.init(**self._options)
        yield
        sentry_sdk.flush(FLUSH_S)

    def around_task(self, call: Call) -> Iterator[None]:
        """Give the task a scope of its own."""
        with sentry_sdk.isolation_scope() as self._scope:
            yield

    def on_failure(self, call: Call, error: BaseException) -> None:
        """Report the error in the scope of its task; one that could not be called has none."""
        scope, self._scope = self._scope or sentry_sdk.get_isolation_scope().fork(), None
        with sentry_sdk.scope.use_isolation_scope(scope):
            scope.set_tag("taskmesh.task", call.name)
            scope.set_tag("taskmesh.queue", call.queue)
            scope.set_context("taskmesh", {"id": call.id, "attempt": call.attempt, "headers": call.headers})
            sentry_sdk.capture_exception(error)
