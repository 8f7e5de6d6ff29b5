"""What to tell people whose values cannot travel: the reason, and what to do instead."""

from __future__ import annotations

from typing import Final

from taskmesh.wire.values import WrongPython, error_text

_FLATTEN: Final = "it is nested too deeply: flatten it, or pass it as bytes or a file"

# A word in the pickler's complaint, and the cure. The first that fits is told.
_PICKLE_CURES: Final = (
    ("recursion", _FLATTEN),
    ("RecursionError", _FLATTEN),  # whose text is "Stack overflow" in Python 3.14
    ("lock", "make the lock inside the task; tasks run in other processes and cannot share one"),
    ("RLock", "make the lock inside the task; tasks run in other processes and cannot share one"),
    ("socket", "open the connection inside the task and pass its address"),
    ("sqlite3", "open the database inside the task and pass its path"),
    ("generator", "pass a list made of it"),
    ("coroutine", "pass the async function and its arguments, not the coroutine"),
    ("TextIOWrapper", "pass the file's path and open it inside the task"),
    ("Buffered", "pass the file's path and open it inside the task"),
    ("mmap", "pass the file's path and map it inside the task"),
    ("thread", "make threads and what belongs to them inside the task"),
    ("Mesh", "inside a task use the mesh that runs it; do not pass one"),
    ("Future", "pass the future's result(), not the future"),
    ("contiguous", "pass a contiguous copy of the buffer"),
)
_PICKLE_CURE: Final = "pass plain data instead, or give its class a __reduce__ that says how to remake it"


def cannot_pickle(what: str, error: BaseException) -> str:
    """The text of a SerializationError for a value that cannot be pickled."""
    reason = error_text(error)
    cure = next((cure for word, cure in _PICKLE_CURES if word in reason), _PICKLE_CURE)
    return f"{what} cannot be pickled: {reason}. Cure: {cure}"


def cannot_rebuild(what: str, error: BaseException) -> str:
    """The text of a SerializationError for a payload that cannot be unpickled."""
    return f"{what} cannot be rebuilt here: {error_text(error)}. Cure: {_rebuild_cure(error)}"


def _rebuild_cure(error: BaseException) -> str:
    match error:
        case WrongPython():
            return (
                "run the same Python minor version on both sides, or move what is defined in __main__ into a "
                "module that both sides can import"
            )
        case ModuleNotFoundError():
            return (
                f"install or ship the module {error.name!r} on this side, or call "
                "taskmesh.wire.code.register_by_value(module) on the side that sends"
            )
        case ImportError() | AttributeError():
            return "both sides need the same version of the module that defines it"
        case OSError():
            return "submit it again; its memory was no longer there"
        case _:
            return (
                "its class's own code failed (__init__, __setstate__ or what __reduce__ names): "
                "check that pickle.loads(pickle.dumps(value)) works"
            )
