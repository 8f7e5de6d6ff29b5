"""Exceptions as records, and records as exceptions."""

from __future__ import annotations

import pickle
import traceback

from taskmesh.errors import RemoteError


class RemoteTraceback(Exception):
    """The `__cause__` of a task's exception: its text is the traceback as it was on the worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def dumps_exception(exc: BaseException) -> tuple[str, str, str, bytes]:
    """(type name, text, traceback text, pickled exception or b"" when it does not survive a round trip)."""
    text = "".join(traceback.format_exception(exc))
    try:
        pickled = pickle.dumps(exc, 5)
        pickle.loads(pickled)
    except Exception:
        pickled = b""
    return f"{type(exc).__module__}.{type(exc).__qualname__}", str(exc), text, pickled


def load_exception(
    type_name: str, text: str, traceback_text: str, pickled: bytes, *, task: str, worker: str, attempt: int
) -> BaseException:
    """The exception to raise for a failed attempt: the user's own, else RemoteError.

    `task` is the task's name and id as people should see them.
    """
    try:
        exc = pickle.loads(pickled)
    except Exception:
        exc = RemoteError(f"{type_name}: {text}", type_name, traceback_text)
    exc.__cause__ = RemoteTraceback(traceback_text)
    exc.add_note(f"task {task}, attempt {attempt}, worker {worker}")
    return exc
