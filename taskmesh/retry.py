"""When a failed attempt is worth another: the policy, and two exceptions by which a task overrules it.

Imports nothing but the errors, so that slots can use it as well as clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import cast

from taskmesh.errors import ConfigError, TaskMeshError

Classes = type[BaseException] | tuple[type[BaseException], ...]


class RetryAfter(TaskMeshError):
    """Raised inside a task: try me again after `seconds`, whatever the policy's back-off says.

    It spends one of `Retry.max` all the same; when none is left the caller gets it as the task's exception.

    Attributes:
        seconds: how long to wait at least.

    Raises:
        ConfigError: `seconds` is not a finite number >= 0.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        self.seconds = _seconds("RetryAfter(seconds)", seconds)
        self.reason = reason
        super().__init__(seconds, reason)

    def __str__(self) -> str:
        return self.reason or f"try again after {self.seconds:g} s"


class NoRetry(TaskMeshError):
    """Raised inside a task: this failure is final, whatever the policy says.

    `raise NoRetry(error)` gives `error` itself to the caller; `raise NoRetry("text")` gives NoRetry.
    """

    def __init__(self, cause: BaseException | str = "") -> None:
        super().__init__(cause)
        self.cause = cause if isinstance(cause, BaseException) else None


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, for which errors and how fast a task is tried again after an error of its own.

    Crashes of a worker are not counted here; they have a limit of their own.

    Attributes:
        max: retries after the first attempt.
        on: exception classes that are retried. never: classes that are not, even when in `on`.
        backoff: seconds before the first retry. factor: growth of the wait from one retry to the next.
        max_backoff: upper bound of the wait, in seconds.
        jitter: choose the wait at random between half of it and all of it: retries must not come in herds.

    Raises:
        ConfigError: a field has a value that cannot be used.
    """

    max: int = 3
    on: Classes = (Exception,)
    never: Classes = ()
    backoff: float = 1.0
    factor: float = 2.0
    max_backoff: float = 600.0
    jitter: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.max, bool) or not isinstance(self.max, int) or self.max < 0:
            raise ConfigError(f"Retry(max=) counts retries: a whole number >= 0, not {self.max!r}")
        object.__setattr__(self, "on", _classes("on", self.on))
        object.__setattr__(self, "never", _classes("never", self.never))
        _seconds("Retry(backoff=)", self.backoff)
        _seconds("Retry(max_backoff=)", self.max_backoff)
        if _seconds("Retry(factor=)", self.factor) < 1.0:
            raise ConfigError(f"Retry(factor=) must be >= 1, not {self.factor!r}: waits must not shrink")
        if self.max_backoff < self.backoff:
            raise ConfigError(
                f"Retry(max_backoff={self.max_backoff:g}) is below backoff={self.backoff:g}: "
                "raise the one or lower the other"
            )
        if not isinstance(self.jitter, bool):
            raise ConfigError(f"Retry(jitter=) is True or False, not {self.jitter!r}")


def verdict(
    exc: BaseException,
    on: tuple[type[BaseException], ...] = (Exception,),
    never: tuple[type[BaseException], ...] = (),
) -> tuple[BaseException, bool, float]:
    """Return what a task's exception means: (exception to report, may be retried, seconds asked for or -1).

    Its type is asked, as `except` does, and not the exception: its own attribute access may be broken.
    """
    cls = type(exc)
    if issubclass(cls, NoRetry):
        cause = cast("NoRetry", exc).cause
        return (exc if cause is None else cause), False, -1.0
    if issubclass(cls, RetryAfter):
        return exc, True, cast("RetryAfter", exc).seconds
    return exc, issubclass(cls, on) and not issubclass(cls, never), -1.0


def _seconds(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{what} takes a finite number >= 0, not {value!r}")
    return float(value)


def _classes(what: str, value: object) -> tuple[type[BaseException], ...]:
    """One class or a tuple of them, as a tuple."""
    classes = value if isinstance(value, tuple) else (value,)
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise ConfigError(f"Retry({what}=) takes an exception class or a tuple of them, not {item!r}")
    return classes
