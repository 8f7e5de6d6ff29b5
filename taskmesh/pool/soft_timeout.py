"""The soft time limit: TaskTimeout raised inside a task that runs too long."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Final, TypeVar

from taskmesh.errors import TaskTimeout

_T = TypeVar("_T")

AGAIN_S: Final = 0.5
"""Seconds between signals once the limit is exceeded: one that comes just before the task begins to wait is
noticed by CPython only when the wait is over, or with the next signal."""

_SOON_S: Final = 0.001


class SoftTimeout:
    """SIGALRM for the task that runs in this process's main thread, where it is made.

    Attributes:
        fired: the limit of the latest `call` was exceeded.
        is_blocked: between `block` and `unblock`.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        self._armed = False
        self.is_blocked = False
        self._seconds = 0.0
        self._hook = sys.unraisablehook
        self.fired = False

    def call(self, seconds: float, function: Callable[..., _T], *args: Any) -> _T:
        """Call function(*args), and raise TaskTimeout in it after so many seconds; 0 for no limit."""
        if seconds <= 0:
            return function(*args)
        self.fired = False
        self._seconds = seconds
        signal.signal(signal.SIGALRM, self._alarm)  # each time: a task may have put its own there,
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))  # or have blocked it
        self._hook, sys.unraisablehook = sys.unraisablehook, self._lost
        self._armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
            return function(*args)
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = self._hook

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
        if self.fired and self._armed:
            self._raise()

    def _alarm(self, signum: int, frame: FrameType | None) -> None:
        if self._armed:
            self.fired = True
            if not self.is_blocked:
                self._raise()

    def _raise(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise TaskTimeout(f"the task ran longer than timeout={self._seconds:g} s")

    def _lost(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Set the alarm again: Python raises nothing out of a `__del__` or a weak reference's callback."""
        if isinstance(unraisable.exc_value, TaskTimeout) and self.fired:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, _SOON_S, AGAIN_S)
        else:
            self._hook(unraisable)
