"""Waiters of a future, made when the first of them comes: most futures never have one."""

from __future__ import annotations

import math
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from taskmesh.system.clock import monotonic
from taskmesh.system.wake_up import WakeUp
from taskmesh.wire.runs import Progress

if TYPE_CHECKING:
    import asyncio


LOOK_S = 0.5
"""Seconds after which those who wait look up. A signal that comes just before a wait begins does not end it:
CPython runs its handler, Ctrl-C's too, when the wait is over."""


CROWD = 64
"""So many waits have locks once two threads have waited at a time."""


class Waiters:
    """Everyone who wants to know when one future ends, and the news of it meanwhile.

    Attributes:
        condition, waiters: concurrent.futures' own way of waiting.
        watchers: ours; called with the future by the thread that ends it, so they have to be quick.
        callbacks: the user's, for the callback thread; `delivering` while it is at them.
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


class LockEvent:
    """Wakes one thread, however often it is set; a bare lock.

    An interrupt in a method of threading.Event can leave its inner lock held: whoever sets it would hang.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Ends the wait, or the next one."""
        if self._lock.locked():
            with suppress(RuntimeError):  # somebody else has set it at the same time
                self._lock.release()

    def clear(self) -> None:
        """Clears it."""
        self._lock.acquire(blocking=False)

    def wait(self, timeout: float | None) -> bool:
        """Waits until it is set, and clears it; False when `timeout` seconds did not suffice."""
        return interruptible(lambda seconds: self._lock.acquire(timeout=seconds), timeout)


class Waiter(LockEvent):
    """One thread's wait for one future: a watcher that is called once."""

    __slots__ = ()

    def __call__(self, future: object) -> None:
        """Lets the waiting thread go on."""
        self._lock.release()


class LoneWaiter:
    """A waiter that is woken through a descriptor: who writes to one lets go of the GIL meanwhile.

    Who releases a lock does not. The woken thread often runs at once, on the same CPU, finds the GIL taken
    and sleeps again: 2.4 switches of context a trip in place of 1.0, and 125 us for a lone embedded trip in
    place of 109. Letting go has its price where many are told: whoever computes keeps the GIL for 5 ms each
    time. So a mesh has one such waiter.
    """

    __slots__ = ("_poll", "_wake_up")

    def __init__(self) -> None:
        """Raises OSError when there is no descriptor to be had."""
        self._wake_up = WakeUp()
        self._poll = select.poll()
        self._poll.register(self._wake_up.fd, select.POLLIN)

    def __call__(self, future: object) -> None:
        """Lets the waiting thread go on."""
        self._wake_up.ring()

    def wait(self, timeout: float | None) -> bool:
        """Waits; False when `timeout` seconds (None: for ever) did not suffice."""
        poll = self._poll.poll
        if timeout is None:
            while not poll(1000 * LOOK_S):
                pass
        elif not interruptible(lambda seconds: bool(poll(1000 * seconds)), timeout):
            return False
        self._wake_up.heard()
        return True


class Watched(Protocol):
    """What a waiter asks of a future."""

    def _watch(self, watcher: Callable[[Any], None]) -> bool:
        """Has `watcher(self)` called at the end; False when that is past."""
        ...

    def _unwatch(self, watcher: Callable[[Any], None]) -> None:
        """Takes that back; it may be called all the same, if the end comes just now."""
        ...


class WaiterPool:
    """The waiters of one mesh: a thread that waits alone gets the LoneWaiter, several have locks."""

    def __init__(self) -> None:
        self._free: list[LoneWaiter | None] = [None]
        self._crowd = 0
        self._closed = False

    def wait(self, future: Watched, timeout: float | None) -> None:
        """Waits for a future's end, `timeout` seconds at most (None: for ever)."""
        waiter = self._take()
        over = False
        try:
            over = not future._watch(waiter) or waiter.wait(timeout)
        finally:
            if not over:  # it may yet be opened: nobody else must get it
                future._unwatch(waiter)
            if isinstance(waiter, LoneWaiter):
                self._free.append(waiter if over else None)
            if self._closed:
                self._free.clear()

    def _take(self) -> Waiter | LoneWaiter:
        if self._crowd:
            self._crowd -= 1
            return Waiter()
        try:
            waiter = self._free.pop()
        except IndexError:  # somebody has it
            self._crowd = CROWD
            return Waiter()
        try:
            return waiter or LoneWaiter()
        except OSError:  # a shortage of descriptors
            self._free.append(None)
            return Waiter()

    def close(self) -> None:
        """Lets go of the descriptor; if somebody waits by it, when that is over."""
        self._closed = True
        self._free.clear()


def interruptible(wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Waits by a call that waits so many seconds and tells whether it was long enough; returns what it says.

    Args:
        wait: called again and again, for at most LOOK_S.
        timeout: seconds in all; None waits for ever.
    """
    left = math.inf if timeout is None else max(0.0, timeout)
    deadline = monotonic() + left
    while not wait(min(left, LOOK_S)):
        left = deadline - monotonic()
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
