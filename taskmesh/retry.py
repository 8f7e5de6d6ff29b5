"""The retry policy of a task, and two exceptions by which a task overrules it.

It imports errors and settings only, so that slots can use it as well as clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, cast

from msgspec import Meta

from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.settings.setting import Setting, SettingError, settings_of

Wait = Annotated[float, Meta(ge=0, description="a finite number of seconds >= 0"), math.isfinite]
Classes = type[BaseException] | tuple[type[BaseException], ...]


class RetryAfter(TaskMeshError):
    """Raised inside a task: try the task again after `seconds`, whatever the policy's back-off says.

    It counts as one of `Retry.max` retries; when none is left the caller gets it as the task's exception.

    Attributes:
        seconds: the shortest wait before the next attempt.

    Raises:
        ConfigError: `seconds` is not a finite number >= 0.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        try:
            self.seconds: float = _AFTER.read(seconds, as_text=False)
        except SettingError as error:
            raise ConfigError(f"RetryAfter(seconds) {error}") from None
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
    """The retry policy of a task: how often, for which errors and how fast it is tried again.

    Crashes of a worker do not count; they have a limit of their own.

    Attributes:
        max: retries after the first attempt.
        on: exception classes that are retried.
        never: exception classes that are not retried, even if they are in `on`.
        backoff: seconds before the first retry.
        factor: growth of the wait from one retry to the next.
        max_backoff: upper bound of the wait, in seconds.
        jitter: choose the wait at random between half of it and all of it; this avoids a thundering herd.

    Raises:
        ConfigError: a field has a value that cannot be used.
    """

    max: Annotated[int, Meta(ge=0, description="a whole number of retries >= 0")] = 3
    on: Classes = (Exception,)
    never: Classes = ()
    backoff: Wait = 1.0
    factor: Annotated[
        float, Meta(ge=1, description="a finite number >= 1, as waits must not shrink"), math.isfinite
    ] = 2.0
    max_backoff: Wait = 600.0
    jitter: Annotated[bool, Meta(description="True or False")] = True

    def __post_init__(self) -> None:
        for name, setting in _SETTINGS.items():
            try:
                value = setting.read(getattr(self, name), as_text=False)
            except SettingError as error:
                raise ConfigError(f"Retry({name}=) {error}") from None
            object.__setattr__(self, name, value)
        object.__setattr__(self, "on", _classes("on", self.on))
        object.__setattr__(self, "never", _classes("never", self.never))
        if self.max_backoff < self.backoff:
            raise ConfigError(
                f"Retry(max_backoff={self.max_backoff:g}) is below backoff={self.backoff:g}: "
                "raise the one or lower the other"
            )


_SETTINGS = {name: setting for name, setting in settings_of(Retry).items() if name not in {"on", "never"}}
_AFTER = Setting(Wait)


def verdict(
    exc: BaseException,
    on: tuple[type[BaseException], ...] = (Exception,),
    never: tuple[type[BaseException], ...] = (),
) -> tuple[BaseException, bool, float]:
    """Return what a task's exception means: (error to report, may be retried, seconds asked for or -1).

    It looks at the type, as `except` does, and not at the exception, whose attribute access may be broken.
    """
    cls = type(exc)
    if issubclass(cls, NoRetry):
        cause = cast("NoRetry", exc).cause
        return (exc if cause is None else cause), False, -1.0
    if issubclass(cls, RetryAfter):
        return exc, True, cast("RetryAfter", exc).seconds
    return exc, issubclass(cls, on) and not issubclass(cls, never), -1.0


def _classes(what: str, value: object) -> tuple[type[BaseException], ...]:
    """Return one class, or a tuple of classes, as a tuple."""
    classes = value if isinstance(value, tuple) else (value,)
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise ConfigError(f"Retry({what}=) takes an exception class or a tuple of them, not {item!r}")
    return classes
