"""Waiting in tests: on a condition, with a deadline, never for a length of time."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
_TICK_S = 0.005


def wait_until(
    predicate: Callable[[], Value], timeout: float = 10.0, message: str = "", tick: float = _TICK_S
) -> Value:
    """Return the predicate's first true value.

    Args:
        predicate: asked every `tick` seconds, the last time after the deadline.
        timeout: seconds.
        message: what was waited for, for the error.
        tick: 5 ms; longer where a question costs a lot.

    Raises:
        AssertionError: the predicate was still false (or zero, or empty) at the deadline.
    """
    never = threading.Event()  # its wait is the tick
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        value = predicate()
        if value:
            return value
        if late:
            what = message or getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(f"not within {timeout} s: {what} (last value: {value!r})")
        never.wait(tick)
