"""Every error that taskmesh raises, in one tree.

    TaskMeshError
    |-- ConfigError (ValueError)              a setting is unknown or wrong
    |   |-- InsecureBind                      a bind beyond loopback without keys
    |   `-- KeysUnusable                      a key is missing, malformed, or open to others
    |-- ProtocolError                         two parts did not understand each other
    |   |-- LocalProtocolError                our own fault: a bug
    |   |   `-- InvalidTransition             a task was asked to do what its state forbids
    |   `-- RemoteProtocolError               the peer's fault: refused, counted
    |-- MeshClosed (RuntimeError)             used after close()
    |-- NoMesh (RuntimeError)                 fn.submit() without an open mesh, or with several
    |-- ForkedMeshError (RuntimeError)        used in a forked child of the process that opened it
    |-- HubUnreachable (ConnectionError)      no hub answered within the time-out
    |   `-- MeshRefused                         a hub answered, and refuses this client
    |-- QueueFull                             a cap is reached and the caller may not wait
    |-- NotDurable                            it needs a hub with a journal
    |-- SerializationError (TypeError)        a value or function cannot travel
    |   `-- TooLarge                          a value is above max_payload
    `-- TaskError                             how a task can end other than by its own exception
        |-- RemoteError                       the task's exception, which could not be rebuilt here
        |-- BadSignature                      task or result was changed, or signed with another mesh key
        |-- FunctionUnavailable               the worker cannot import or rebuild the function
        |-- TaskTimeout (TimeoutError)        a soft or hard time limit was exceeded
        |-- TaskExpired                       not started within `expires`
        |-- DependencyError                   a task that it depends on ended badly
        |-- UnknownTask                       nothing is known of it, or its outcome is not kept
        |-- TaskLost                          at-most-once task whose worker vanished: outcome unknown
        `-- WorkerCrashed                     the process died while running the task, too often

A task's own exception is raised as itself. Cancellation is concurrent.futures.CancelledError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

PAGE: Final = "https://github.com/taskmesh/taskmesh/blob/main/docs/reference/errors.md"
"""Address of the page that says of each error what to do."""


class TaskMeshError(Exception):
    """The root of every error that taskmesh raises; tracebacks of the others have the address of a cure."""

    _section: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:
            cls._section = cls.__name__.lower()

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if self._section:
            self.add_note(f"See {PAGE}#{self._section}")


class ConfigError(TaskMeshError, ValueError):
    """A setting is unknown or has a value that cannot be used."""


class InsecureBind(ConfigError):
    """An address beyond loopback was asked for without keys."""


class KeysUnusable(ConfigError):
    """A key is missing, is not a key, or its file can be read or changed by others."""


class ProtocolError(TaskMeshError):
    """Two parts of the mesh did not understand each other."""


class LocalProtocolError(ProtocolError):
    """This side broke the protocol: a bug in taskmesh."""


class InvalidTransition(LocalProtocolError):
    """A task, slot or lane was asked for a transition that its state does not have."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; its message was refused."""


class MeshClosed(TaskMeshError, RuntimeError):
    """The mesh was closed; open a new one."""


class NoMesh(TaskMeshError, RuntimeError):
    """A task was submitted while no mesh is open in this context, or none may be opened."""


class ForkedMeshError(TaskMeshError, RuntimeError):
    """A mesh was used in a forked child of the process that opened it."""


class HubUnreachable(TaskMeshError, ConnectionError):
    """No hub answered at the address within the time-out."""


class MeshRefused(HubUnreachable):
    """The hub refuses this client: its versions, its key, or one client too many; the text says which."""


class QueueFull(TaskMeshError):
    """A cap on tasks or bytes is reached, and the caller may not wait for room."""


class NotDurable(TaskMeshError):
    """A request needs a hub with a journal, and this one has none."""


class SerializationError(TaskMeshError, TypeError):
    """A function, argument, result or exception cannot be pickled or rebuilt."""


class TooLarge(SerializationError):
    """A payload is larger than `max_payload`."""


class TaskError(TaskMeshError):
    """A task ended otherwise than by returning or by its own exception."""


class RemoteError(TaskError):
    """The task's exception could not be rebuilt here; this one tells its type, text and frames.

    Attributes:
        type_name: qualified name of the exception's class on the worker.
        traceback_text: the traceback as printed on the worker.
    """

    def __init__(self, message: str, type_name: str = "", traceback_text: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback_text = traceback_text

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str, str]]:
        return type(self), (str(self), self.type_name, self.traceback_text)


class BadSignature(TaskError):
    """A task or its result is not signed as it should be: it was not run, or not unpickled."""


class FunctionUnavailable(TaskError):
    """The worker could not import or rebuild the task's function."""


class TaskTimeout(TaskError, TimeoutError):
    """The task ran longer than its `timeout` (raised inside it) or its `hard_timeout`."""


class DependencyError(TaskError):
    """The task never started: one that it depends on ended badly. `__cause__` is the error of that one.

    Attributes:
        task_id: the id of the first task that ended badly.
        path: the ids of the tasks from that one to this one.
    """

    def __init__(self, message: str, task_id: str = "", path: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.path = tuple(path)

    def __reduce__(self) -> tuple[type[DependencyError], tuple[str, str, tuple[str, ...]]]:
        return type(self), (str(self), self.task_id, self.path)


class TaskExpired(TaskError):
    """The task had not started within `expires` seconds of its acceptance."""


class UnknownTask(TaskError):
    """Nothing is known of a task that was asked for by its id, or its outcome is not kept."""


class TaskLost(TaskError):
    """An at-most-once task (`acks="early"`) whose worker vanished: it may or may not have run."""


class WorkerCrashed(TaskError):
    """The worker process died while it ran this task, as often as the crash limit allows."""


def missing_extra(what: str, package: str, extra: str) -> str:
    """Return the sentence that says what is not installed and how it is: taskmesh is on no package index."""
    return f"{what} needs {package}: `pip install '.[{extra}]'` in a clone of taskmesh"
