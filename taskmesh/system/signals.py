"""Requests that a program ends: by a signal, or by the end of the process that it serves."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

from taskmesh.system.loop import Loop
from taskmesh.system.wakeup import Wakeup

SIGNALS = (signal.SIGTERM, signal.SIGINT)
AT_ONCE = 0.5
"""Seconds within which a signal that comes again is the same one."""


class StopRequest:
    """Counts SIGTERM, SIGINT and SIGHUP in a program's loop, and looks after its parent.

    Attributes:
        asked: how many signals came. SIGHUP counts only as the first: a terminal that closes may send
            several, which must not look like a user who insists. Nor does a signal that comes twice at once:
            timeout(1) and others send it to the process and to its group.

    Args:
        loop: the program's; signals wake it.
        parent: id of the process that the program serves; 0 for none.
    """

    def __init__(self, loop: Loop, parent: int = 0) -> None:
        self.asked = 0
        self._loop = loop
        self._parent = parent
        self._came: dict[int, float] = {}

    @property
    def parent_gone(self) -> bool:
        """True when nobody is left to serve; the loop turns often enough to ask."""
        return bool(self._parent) and os.getppid() != self._parent

    @contextlib.contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Handle the signals until the end of the block; only in the main thread."""
        # The interpreter writes to the wake-up in the signal handler proper, so that a signal that comes
        # just before the loop blocks wakes it too.
        wakeup = Wakeup()
        former_fd = signal.set_wakeup_fd(wakeup.write_fd, warn_on_full_buffer=False)
        former = {number: signal.signal(number, self._signalled) for number in ending_signals()}
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, former)  # our parent may have blocked some
        self._loop.watch(wakeup.fd, wakeup.clear)
        try:
            yield self
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number, handler in former.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(former_fd)
            self._loop.unwatch(wakeup.fd)
            wakeup.close()

    def turn_until_asked(self) -> None:
        while not self.asked and not self.parent_gone:
            self._loop.turn()

    def turn_until(self, is_over: Callable[[], bool]) -> None:
        """Go on after the first signal until what is to end has ended, or a second signal comes."""
        while self.asked < 2 and not self.parent_gone and not is_over():
            self._loop.turn()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_new = now - self._came.get(number, -math.inf) >= AT_ONCE
        self._came[number] = now
        if is_new and (number != signal.SIGHUP or not self.asked):
            self.asked += 1


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a program. SIGHUP stays ignored where it is, for instance under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return SIGNALS if ignored else (*SIGNALS, signal.SIGHUP)
