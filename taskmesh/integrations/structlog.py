"""The task, and what its submitter has bound, in each line that a task logs by structlog (its extra)."""

from __future__ import annotations

from collections.abc import Iterator

from structlog.contextvars import bound_contextvars, get_contextvars

from taskmesh.middleware import Call, Middleware

PREFIX = "structlog."


class StructlogContext(Middleware[None]):
    """Bind the task's id, name and attempt while it runs, and bring context variables of the submitter along.

    Args:
        keys: the names of context variables that travel with a call, as text.
    """

    def __init__(self, *keys: str) -> None:
        self._keys = keys

    def around_submit(self, call: Call) -> Iterator[None]:
        """Send the submitter's context variables along."""
        bound = get_contextvars()
        call.headers |= {PREFIX + key: str(bound[key]) for key in self._keys if key in bound}
        yield

    def around_task(self, call: Call) -> Iterator[None]:
        """Bind them, and the task, while it runs."""
        sent = {
            key.removeprefix(PREFIX): text for key, text in call.headers.items() if key.startswith(PREFIX)
        }
        with bound_contextvars(**sent, task_id=call.id, task_name=call.name, task_attempt=call.attempt):
            yield
