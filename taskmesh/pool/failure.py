"""What a task's failure is reported as."""

from __future__ import annotations

from taskmesh.retry import verdict
from taskmesh.serialize.payload import dumps_exception, loads_filter
from taskmesh.serialize.values import class_name
from taskmesh.wire.runs import Spec
from taskmesh.wire.slot_messages import SlotFailure


def failure_of(serial: int, kind: str, error: BaseException, spec: Spec, elapsed: float) -> SlotFailure:
    """The report of an error that ended a task.

    Args:
        serial: of the task.
        kind: as in `SlotFailure`. A result that cannot travel is never retried: it would not the next time
        either.
        error: what was raised; its traceback is dropped, so that the task's values can go.
        spec: of the task, for its retry filter.
        elapsed: seconds that the task took.
    """
    try:
        on, never = loads_filter(spec.retry_filter)
        reported, retryable, retry_after = verdict(error, on, never)
        type_name, text, traceback, pickled = dumps_exception(reported)
    except BaseException as trouble:  # noqa: BLE001  out of memory, or no such classes here
        text = f"(it cannot be described: {class_name(type(trouble))})"
        return SlotFailure(serial, kind, class_name(type(error)), text, elapsed=elapsed)
    finally:
        BaseException.with_traceback(error, None)  # a frozen dataclass forbids the assignment
    retryable = retryable and kind != "result"
    return SlotFailure(serial, kind, type_name, text, traceback, pickled, retryable, retry_after, elapsed)
