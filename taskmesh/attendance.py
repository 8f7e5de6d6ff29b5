"""Those who wait for a future: made when the first of them comes, so that most futures never have any."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from taskmesh.wire.messages import Progress

if TYPE_CHECKING:
    import asyncio


LOOK_S = 0.5
"""Seconds after which those who wait look up. A signal that comes just before a wait begins does not end it:
CPython runs its handler, Ctrl-C's too, when the wait is over."""


class Attendance:
    """Everyone who wants to know when one future ends, and the news of it meanwhile.

    Attributes:
        condition, waiters: concurrent.futures' own way of waiting.
        watchers: ours; called with the future by the thread that ends it, so they have to be quick.
        callbacks: the user's, for the delivery thread; `delivering` while it is at them.
        awaiting: asyncio's: an event loop and what to wake there.
    """

    __slots__ = ("awaiting", "callbacks", "condition", "delivering", "progress", "waiters", "watchers")

    def __init__(self) -> None:
        self.condition: threading.Condition | None = None
        self.waiters: list[Any] = []
        self.watchers: list[Callable[[Any], object]] = []
        self.callbacks: list[Callable[[Any], object]] = []
        self.awaiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.delivering = False
        self.progress: Progress | None = None


class Bell:
    """Wakes one thread, however often it is rung; a bare lock.

    An interrupt in a method of threading.Event can leave its inner lock held: whoever rings would hang.
    """

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Ends the wait, or the next one."""
        if self._silent.locked():
            with suppress(RuntimeError):  # somebody else has rung it at the same time
                self._silent.release()

    def clear(self) -> None:
        """Forgets that it was rung."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout: float | None) -> bool:
        """Waits until it is rung, and forgets that; False when `timeout` seconds did not suffice."""
        return interruptible(lambda seconds: self._silent.acquire(timeout=seconds), timeout)


class Gate(Bell):
    """One thread's wait for one future: a watcher that rings once."""

    __slots__ = ()

    def __call__(self, future: object) -> None:
        """Lets the waiting thread go on."""
        self._silent.release()


def interruptible(wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Waits by a call that waits so many seconds and tells whether it was long enough; returns what it says.

    Args:
        wait: called again and again, for at most LOOK_S.
        timeout: seconds in all; None waits for ever.
    """
    left = math.inf if timeout is None else max(0.0, timeout)
    deadline = time.monotonic() + left
    while not wait(min(left, LOOK_S)):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
    return True


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread.

    asyncio takes longer to import than all of taskmesh, and where nobody has imported it no loop can run.
    """
    loaded = sys.modules.get("asyncio")
    loop: asyncio.AbstractEventLoop | None = loaded._get_running_loop() if loaded else None
    return loop


def refuse_loop_callback(fn: Callable[..., object]) -> None:
    """Refuses asyncio.wait's own callback: called in another thread it wakes no loop.

    All else in asyncio that takes something to await goes by `__await__` or `asyncio.wrap_future`.

    Raises:
        TypeError: `fn` is that callback.
    """
    if getattr(fn, "__module__", None) == "asyncio.tasks":
        raise TypeError(
            "asyncio.wait() takes asyncio's own futures: wrap each in asyncio.wrap_future(), "
            "or use asyncio.gather() or asyncio.as_completed()"
        )


def wake(awaiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]) -> None:
    """Wakes everything that awaits, with one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, waiter in awaiting:
        loops.setdefault(loop, []).append(waiter)
    for loop, waiters in loops.items():
        with suppress(RuntimeError):  # closed meanwhile: nobody awaits there any more
            loop.call_soon_threadsafe(_set_all, waiters)


def _set_all(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
