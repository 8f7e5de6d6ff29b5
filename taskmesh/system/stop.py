"""Why a program is to end: a signal, or the end of the process that it serves."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from taskmesh.system.loop import Loop

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Hears SIGTERM, SIGINT and SIGHUP in a program's loop, and looks after its parent.

    Attributes:
        asked: how many signals came. SIGHUP asks and does not urge: a terminal that closes may send several.
    """

    def __init__(self, loop: Loop, parent: int = 0) -> None:
        self.asked = 0
        self._loop = loop
        self._parent = parent

    @property
    def parent_gone(self) -> bool:
        """Whether there is nobody left to serve; the loop turns often enough to ask."""
        return bool(self._parent) and os.getppid() != self._parent

    @contextlib.contextmanager
    def listening(self) -> Iterator[Stop]:
        """Hears, from here to the end of the block; only in the main thread."""
        # The interpreter writes to this pipe in the signal handler proper, so that a signal that comes just
        # before the loop blocks wakes it too.
        heard, wakes = os.pipe()
        os.set_blocking(heard, False)
        os.set_blocking(wakes, False)
        former_fd = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        former = {number: signal.signal(number, self._signalled) for number in heeded()}
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, former)  # by who started this program, perhaps
        self._loop.watch(heard, lambda: drain(heard))
        try:
            yield self
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number, handler in former.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(former_fd)
            self._loop.unwatch(heard)
            os.close(heard)
            os.close(wakes)

    def turn_until_asked(self) -> None:
        """Turns the loop until a signal comes or the parent is gone."""
        while not self.asked and not self.parent_gone:
            self._loop.turn()

    def wait(self, seconds: float) -> None:
        """Waits for a signal unless one has come, at most so many seconds; in the main thread."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, heeded())
        try:
            if not self.asked and seconds > 0:
                signal.sigtimedwait(heeded(), seconds)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGHUP or not self.asked:
            self.asked += 1


def heeded() -> tuple[signal.Signals, ...]:
    """The signals that end a program. Where nohup, say, has SIGHUP ignored, it stays so."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return SIGNALS if ignored else (*SIGNALS, signal.SIGHUP)


def drain(fd: int) -> None:
    """Takes in what stands in a non-blocking pipe."""
    with contextlib.suppress(OSError):
        os.read(fd, 4096)
