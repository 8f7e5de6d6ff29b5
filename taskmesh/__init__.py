"""taskmesh: one decorated Python function, run on local processes or remote worker pools over ZeroMQ.

The public names are loaded when they are first used: `import taskmesh` alone costs next to nothing, and a
slot that imports a module full of tasks never loads ZeroMQ.
"""

from __future__ import annotations

import sys
from importlib import import_module


def _check_system(name: str) -> None:
    """Refuse systems that lack epoll, memfd and pidfd.

    It is a function: a type checker that sees the condition on a Mac would find no names below it.
    """
    if name != "linux":
        raise ImportError(
            f"taskmesh runs on Linux only, not on {name}: use a Linux machine, a container, or "
            "WSL 2 on Windows"
        )


_check_system(sys.platform)
TYPE_CHECKING = False  # type checkers know the name; importing `typing` would cost more than all the rest
if TYPE_CHECKING:
    from taskmesh import errors
    from taskmesh.client.futures.future import TaskFuture, lazy
    from taskmesh.client.futures.outcome import Outcome, TaskState
    from taskmesh.client.futures.wait import as_completed, gather, wait
    from taskmesh.client.nested_client import promise
    from taskmesh.client.progress import Progress
    from taskmesh.context import current_task
    from taskmesh.executor import MeshExecutor
    from taskmesh.function import Task, task
    from taskmesh.limit import Limit
    from taskmesh.mesh import Mesh
    from taskmesh.middleware import Call, Middleware
    from taskmesh.retry import NoRetry, Retry, RetryAfter
    from taskmesh.schedule import Schedule
    from taskmesh.serialize.code import register_by_value

__version__ = "0.1.0"

__all__ = [
    "Call",
    "Limit",
    "Mesh",
    "MeshExecutor",
    "Middleware",
    "NoRetry",
    "Outcome",
    "Progress",
    "Retry",
    "RetryAfter",
    "Schedule",
    "Task",
    "TaskFuture",
    "TaskState",
    "as_completed",
    "current_task",
    "errors",
    "gather",
    "lazy",
    "promise",
    "register_by_value",
    "task",
    "wait",
]

_HOMES = {
    "Call": "taskmesh.middleware",
    "Limit": "taskmesh.limit",
    "Mesh": "taskmesh.mesh",
    "MeshExecutor": "taskmesh.executor",
    "Middleware": "taskmesh.middleware",
    "NoRetry": "taskmesh.retry",
    "Outcome": "taskmesh.client.futures.outcome",
    "Progress": "taskmesh.client.progress",
    "Retry": "taskmesh.retry",
    "RetryAfter": "taskmesh.retry",
    "Schedule": "taskmesh.schedule",
    "Task": "taskmesh.function",
    "TaskFuture": "taskmesh.client.futures.future",
    "TaskState": "taskmesh.client.futures.outcome",
    "as_completed": "taskmesh.client.futures.wait",
    "current_task": "taskmesh.context",
    "gather": "taskmesh.client.futures.wait",
    "lazy": "taskmesh.client.futures.future",
    "promise": "taskmesh.client.nested_client",
    "register_by_value": "taskmesh.serialize.code",
    "task": "taskmesh.function",
    "wait": "taskmesh.client.futures.wait",
}


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    if name == "errors":
        return import_module("taskmesh.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
