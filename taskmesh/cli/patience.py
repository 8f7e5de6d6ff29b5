"""Waiting for a task's end, and telling meanwhile why one that has not started does not."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, cast

from taskmesh.cli.output import Output
from taskmesh.errors import HubUnreachable, TaskMeshError

if TYPE_CHECKING:
    from taskmesh.future import TaskFuture
    from taskmesh.mesh import Mesh

PATIENCE = 3.0
"""Seconds between two questions to the hub; a task that has ended by then is asked nothing about."""
ANSWER_S = 1.0
"""Seconds that the hub has to answer; the task's end is noticed so much later at most."""


def error_of(future: TaskFuture[Any], mesh: Mesh, out: Output, timeout: float | None) -> BaseException | None:
    """What ended the task, None for a result; on stderr, meanwhile, why it does not start.

    Raises:
        TimeoutError: not ended within `timeout` seconds. CancelledError: it was cancelled.
    """
    deadline = time.monotonic() + (math.inf if timeout is None else timeout)
    told: object = None
    while True:
        left = deadline - time.monotonic()
        try:
            return future.exception(max(0.0, min(left, PATIENCE)))
        except TimeoutError:
            if left <= PATIENCE:
                raise
        told = _told(future, mesh, out, told)


def _told(future: TaskFuture[Any], mesh: Mesh, out: Output, former: object) -> object:
    """Tells where the task stands, if that is news; returns what is known now.

    A task that has started is on its way, and nothing is told of it but to who has read that it waited.
    """
    try:
        answer = mesh._client.open().query("task", future.task_id, timeout=ANSWER_S)
    except HubUnreachable:
        answer = {"state": "UNKNOWN", "why": "the hub does not answer"}
    except TaskMeshError:  # it has ended just now, or this hub is a new one that it goes to again
        return former
    found = cast("dict[str, Any]", answer)
    state, why = found["state"], found["why"]
    # A WAITING task's reason counts seconds down: its attempt shows whether it is another wait.
    now = (state, found["attempt"] if state == "WAITING" else why)
    waits = state in ("QUEUED", "WAITING", "SENT", "UNKNOWN")
    if now == former or state == "FINISHED" or not (waits or former):
        return former
    out.news("waiting" if waits else "started", f"task {future.task_id}: {why}", {"state": state, "why": why})
    return now
