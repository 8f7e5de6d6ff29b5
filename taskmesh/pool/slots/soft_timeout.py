"""The soft time limit: TaskTimeout raised inside a task that runs too long."""

from __future__ import annotations

import signal
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Final, Protocol, TypeVar

from taskmesh.errors import TaskTimeout
from taskmesh.system.signal_timer import SIGNAL, SignalTimer

_T = TypeVar("_T")

AGAIN_S: Final = 1.0
"""Seconds after which a task that goes on is told again. It may have swallowed the error, a finalizer may
have, or the signal came just before it began to wait: CPython notices that one only when the wait is over."""


class TimeLimit(Protocol):
    """Raises TaskTimeout in a task that runs too long; `SoftTimeout` says how."""

    fired: bool
    is_blocked: bool

    def call(self, seconds: float, function: Callable[..., _T], *args: Any) -> _T: ...

    def block(self) -> None: ...

    def unblock(self) -> None: ...


class SoftTimeout:
    """A signal for the task that runs in this process's main thread, where it is made.

    Attributes:
        fired: the limit of the latest `call` was exceeded.
        is_blocked: between `block` and `unblock`.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        self._timer: SignalTimer | None = None
        self._armed = False
        self._is_due = False
        self.is_blocked = False
        self._seconds = 0.0
        self.fired = False

    def call(self, seconds: float, function: Callable[..., _T], *args: Any) -> _T:
        """Call function(*args), and raise TaskTimeout in it after so many seconds; 0 for no limit.

        There is none in another thread, to which no signal comes.

        It is raised each second from then on until the function ends: what it returns then counts.
        """
        if seconds <= 0 or get_ident() != self._thread:
            return function(*args)
        if self._timer is None:
            self._timer = SignalTimer()
        self.fired = self._is_due = False
        self._seconds = seconds
        signal.signal(SIGNAL, self._signalled)  # each time: a task may have put its own there,
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (SIGNAL,))  # or have blocked it
        self._armed = True
        try:
            self._timer.start(seconds, AGAIN_S)
            return function(*args)
        finally:
            self._armed = False
            self._timer.stop()

    def block(self) -> None:
        """Raise nothing until `unblock`: what follows must not be torn in two.

        In other threads nothing is raised anyway.
        """
        if get_ident() == self._thread:
            self.is_blocked = True

    def unblock(self) -> None:
        """End `block`; raise TaskTimeout if that was due meanwhile."""
        if get_ident() != self._thread:
            return
        self.is_blocked = False
        if self._is_due and self._armed:
            self._raise()

    def close(self) -> None:
        """Give the timer back."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _signalled(self, signum: int, frame: FrameType | None) -> None:
        if self._armed:
            self.fired = self._is_due = True
            if not self.is_blocked:
                self._raise()

    def _raise(self) -> None:
        self._is_due = False
        raise timed_out(self._seconds)


def timed_out(seconds: float) -> TaskTimeout:
    """Return the error of a task that has run longer than its soft limit."""
    return TaskTimeout(f"the task ran longer than timeout={seconds:g} s")
