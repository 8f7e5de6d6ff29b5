"""A timer of the kernel's that sends this process a signal which nobody else uses."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from functools import cache
from typing import Any, Final

SIGNAL: Final = signal.SIGRTMIN + 5
"""Not SIGALRM: there is one of that for a process, and a task's libraries may want it."""
_LONGEST: Final = 1e9
"""Seconds; more is as good as no limit, and above 9e9 the kernel's own clock ends."""
_CLOCK_MONOTONIC: Final = 1
_SIGEV_SIGNAL: Final = 0


class _SignalEvent(ctypes.Structure):
    """`struct sigevent` of 64-bit Linux, see sigevent(7)."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec`: the time between two signals, and until the first."""

    _fields_ = (
        ("again_s", ctypes.c_long),
        ("again_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class SignalTimer:
    """Sends SIGNAL after a time, and again and again until it is stopped; a child that is forked has none.

    Raises:
        OSError: the kernel has no timer to give.
    """

    def __init__(self) -> None:
        self._id = ctypes.c_void_p()
        event = _SignalEvent(signo=SIGNAL, notify=_SIGEV_SIGNAL)
        _call("timer_create", _CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._id))

    def start(self, seconds: float, again: float) -> None:
        """Send the signal after `seconds`, which is more than 0, and then each `again` seconds."""
        self._set(again, min(seconds, _LONGEST))

    def stop(self) -> None:
        """Send it no more."""
        with contextlib.suppress(OSError):  # this may be a forked child
            self._set(0.0, 0.0)

    @property
    def left(self) -> float:
        """Seconds until the next signal, 0 when there will be none."""
        times = _Times()
        _call("timer_gettime", self._id, ctypes.byref(times))
        return float(times.first_s + times.first_ns / 1e9)

    def close(self) -> None:
        """Give the timer back to the kernel."""
        _call("timer_delete", self._id)

    def _set(self, again: float, first: float) -> None:
        times = _Times(*_split(again), *_split(first))
        _call("timer_settime", self._id, 0, ctypes.byref(times), None)


def _split(seconds: float) -> tuple[int, int]:
    whole = int(seconds)
    part = int((seconds - whole) * 1e9)
    return whole, part or int(0 < seconds < 1e-9)


@cache
def _function(name: str) -> Any:
    """Return a function of the C library; before glibc 2.34 those of timers are in another one."""
    for library in (None, "librt.so.1"):
        found = getattr(ctypes.CDLL(library, use_errno=True), name, None)
        if found is not None:
            return found
    raise OSError(f"the C library has no {name}")


def _call(name: str, *args: object) -> None:
    if _function(name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
