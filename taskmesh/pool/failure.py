"""What a task's failure is reported as."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

from taskmesh.errors import FunctionUnavailable, SerializationError
from taskmesh.retry import verdict
from taskmesh.wire import payload
from taskmesh.wire.messages import SlotFailure, Spec

_OURS: Final = str(Path(__file__).resolve().parent.parent)
_TEXT: Final = 32 << 10


def failure_of(serial: int, kind: str, error: BaseException, spec: Spec, elapsed: float) -> SlotFailure:
    """The report of an error that ended a task.

    Args:
        serial: of the task.
        kind: as in `SlotFailure`.
        error: what was raised; its traceback is cut down to the user's frames and then dropped.
        spec: of the task, for its retry filter.
        elapsed: seconds that the task took.
    """
    try:
        reported, retryable, retry_after = _verdict(error, kind, spec)
        _strip(error)
        if reported is not error:
            _strip(reported)
        type_name, text, traceback, pickled = payload.dumps_exception(reported)
    except BaseException as trouble:  # noqa: BLE001  out of memory, or an exception whose own methods raise
        return SlotFailure(
            serial, kind, _name(error), f"(not describable: {_name(trouble)})", elapsed=elapsed
        )
    finally:
        error.__traceback__ = None
    return SlotFailure(
        serial,
        kind,
        type_name,
        _shorten(text),
        _shorten(traceback),
        pickled,
        retryable,
        retry_after,
        elapsed,
    )


def _verdict(error: BaseException, kind: str, spec: Spec) -> tuple[BaseException, bool, float]:
    if kind in {"function", "argument", "result"} or isinstance(
        error, FunctionUnavailable | SerializationError
    ):
        return error, False, -1.0
    on, never = payload.loads_filter(spec.retry_filter)
    return verdict(error, on, never)


def _strip(error: BaseException) -> None:
    """Takes the frames of taskmesh off the top of the traceback: it begins with the user's code."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    error.__traceback__ = frames


def _name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _shorten(text: str) -> str:
    if len(text) <= _TEXT:
        return text
    return f"{text[: _TEXT // 2]}\n... ({len(text) - _TEXT} characters left out) ...\n{text[-_TEXT // 2 :]}"
