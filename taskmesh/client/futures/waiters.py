"""Waiters of a future, allocated when the first of them comes: most futures never have one."""

from __future__ import annotations

import math
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from taskmesh.client.futures.driver import Driver, driven
from taskmesh.messages.runs import Progress
from taskmesh.system.clock import monotonic
from taskmesh.system.wakeup import Wakeup

if TYPE_CHECKING:
    import asyncio

    from taskmesh.client.futures.task_logs import TaskLogLine


LOOK_S = 0.5
"""Seconds after which a waiting thread wakes to let signal handlers run. A signal that comes just before a
wait begins does not end it: CPython runs its handler, Ctrl-C's too, when the wait is over."""


CROWD = 64
"""The number of waits that use locks after two threads have waited at the same time."""


class Edges:
    """The edges of one task in the graph of dependencies, as its client knows them.

    Attributes:
        needs: futures whose outcomes are among its arguments.
        after: further futures that it waits for.
        dependents: how many tasks depend on it that are pending, or may run again for others that are.
        holds: its own upstream is held for it.
        is_over: it has ended.
    """

    __slots__ = ("after", "dependents", "holds", "is_over", "needs")

    def __init__(self, needs: Iterable[Any] = (), after: Iterable[Any] = ()) -> None:
        self.needs: tuple[Any, ...] = tuple(needs)
        self.after: tuple[Any, ...] = tuple(after)
        self.dependents = 0
        self.holds = False
        self.is_over = False

    @property
    def upstream(self) -> tuple[Any, ...]:
        """All futures that it depends on; one that is among both counts twice."""
        return self.needs + self.after


class Waiters:
    """The waiters of one future, and its last progress.

    There are three kinds of hooks because none can do the work of another. A watcher runs in the thread that
    ends the future, so it wakes a thread even while the callback thread is in a function of the user that
    waits for this very future. Callbacks are the user's and may block, so they have a thread of their own.
    Coroutines are woken by one call of their loop for all futures that end together: 0.15 us for each of
    2,000, where a call for each costs 3.5 us.

    Attributes:
        condition: the condition of concurrent.futures' own functions, None until one of them uses it.
        waiters: the waiters of these functions.
        watchers: functions that the thread which ends the future calls with it, so they must be quick.
        callbacks: the user's functions, for the callback thread.
        delivering: True while the callback thread runs them.
        awaiting: event loops, each with the asyncio future to wake there.
        progress: the last report of `current_task().progress()`.
        edges: the edges of the task in the graph of dependencies, if it has any.
        lines: what it has logged, if it has.
    """

    __slots__ = (
        "awaiting",
        "callbacks",
        "condition",
        "delivering",
        "edges",
        "lines",
        "progress",
        "waiters",
        "watchers",
    )

    def __init__(self) -> None:
        self.condition: threading.Condition | None = None
        self.waiters: list[Any] = []
        self.watchers: list[Callable[[Any], object]] = []
        self.callbacks: list[Callable[[Any], object]] = []
        self.awaiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.delivering = False
        self.progress: Progress | None = None
        self.edges: Edges | None = None
        self.lines: deque[TaskLogLine] | None = None


class LockEvent:
    """An event for one waiting thread, made of a bare lock.

    An interrupt in a method of threading.Event can leave its inner lock held: the next `set` would hang.
    """

    __slots__ = ("_driver", "_lock")

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End the wait, or the next one."""
        if self._lock.locked():
            with suppress(RuntimeError):  # somebody else has set it at the same time
                self._lock.release()

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, and clear it; return False after `timeout` seconds (None: for ever)."""
        return interruptible(lambda seconds: self._lock.acquire(timeout=seconds), timeout, self._driver)


class Waiter(LockEvent):
    """One thread's wait for one future: a watcher that is called once."""

    __slots__ = ()

    def __call__(self, future: object) -> None:
        self._lock.release()


class LoneWaiter:
    """A waiter that is woken through a descriptor: the thread that writes to it releases the GIL meanwhile.

    A thread that releases a lock keeps the GIL. The woken thread often runs at once, on the same CPU, finds
    the GIL taken and sleeps again: 2.4 context switches a trip instead of 1.0, and 125 us for a lone embedded
    trip instead of 109. (Measured again in turns, medians of 14 runs each, on two CPUs with a load of 8: 199
    instead of 193 us.) Releasing the GIL has its price if many are woken: a thread that computes keeps it for
    5 ms each time. So a mesh has one such waiter.
    """

    __slots__ = ("_poll", "_wake_up")

    def __init__(self) -> None:
        """Raise OSError if no descriptor can be had."""
        self._wake_up = Wakeup()
        self._poll = select.poll()
        self._poll.register(self._wake_up.fd, select.POLLIN)

    def __call__(self, future: object) -> None:
        self._wake_up.set()

    def wait(self, timeout: float | None) -> bool:
        poll = self._poll.poll
        if timeout is None:
            while not poll(1000 * LOOK_S):
                pass
        elif not interruptible(lambda seconds: bool(poll(1000 * seconds)), timeout):
            return False
        self._wake_up.clear()
        return True


class Watched(Protocol):
    """The part of a future that its waiters use."""

    def _watch(self, watcher: Callable[[Any], None]) -> bool:
        """Call `watcher(self)` at the end; return False if the future has ended."""
        ...

    def _unwatch(self, watcher: Callable[[Any], None]) -> None:
        """Remove the watcher; it may still be called if the future ends just now."""
        ...


class WaiterPool:
    """The waiters of one mesh: a thread that waits alone gets the LoneWaiter, several have locks.

    Attributes:
        driver: of a mesh without threads.
    """

    def __init__(self) -> None:
        self.driver: Driver | None = None
        self._free: list[LoneWaiter | None] = [None]
        self._crowd = 0
        self._closed = False

    def wait(self, future: Watched, timeout: float | None) -> None:
        """Wait for a future's end, `timeout` seconds at most (None: for ever)."""
        waiter = self._take()
        over = False
        try:
            over = not future._watch(waiter) or waiter.wait(timeout)
        finally:
            if not over:  # it may yet be opened: no other thread must get it
                future._unwatch(waiter)
            if isinstance(waiter, LoneWaiter):
                self._free.append(waiter if over else None)
            if self._closed:
                self._free.clear()

    def _take(self) -> Waiter | LoneWaiter:
        if self.driver is not None:
            return Waiter(self.driver)
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
        """Release the descriptor; if a thread waits by it, after that wait."""
        self._closed = True
        self._free.clear()


def interruptible(wait: Callable[[float], bool], timeout: float | None, driver: Driver | None = None) -> bool:
    """Wait in portions, so that signal handlers can run; return False after `timeout` seconds.

    Args:
        wait: waits the given seconds, LOOK_S at most, and returns True once the wait is over.
        timeout: seconds in all; None waits for ever.
        driver: of a mesh without threads, whose work is done meanwhile; then the seconds are virtual.
    """
    if driver is not None:
        return driven(driver, wait, timeout)
    left = math.inf if timeout is None else max(0.0, timeout)
    deadline = monotonic() + left
    while not wait(min(left, LOOK_S)):
        left = deadline - monotonic()
        if left <= 0:
            return False
    return True


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if one does.

    asyncio takes longer to import than all of taskmesh, and no loop can run where it was not imported.
    """
    loaded = sys.modules.get("asyncio")
    loop: asyncio.AbstractEventLoop | None = loaded._get_running_loop() if loaded else None
    return loop


def loop_callback(fn: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the callback that works in place of asyncio's own ones, and any other as it is.

    Raises:
        TypeError: it is that of asyncio.wait(), which wakes no loop when it is called in another thread.
    """
    module = getattr(fn, "__module__", None)
    if module == "asyncio.tasks":
        raise TypeError(
            "asyncio.wait() takes asyncio's own futures: wrap each in asyncio.wrap_future(), "
            "or use asyncio.gather() or asyncio.as_completed()"
        )
    if module == "asyncio.futures" and sys.version_info < (3, 12):
        return partial(_copy_outcome, fn)
    return fn


def _copy_outcome(fn: Callable[[Any], object], future: Future[Any]) -> None:
    """Call asyncio.wrap_future()'s callback: before Python 3.12 it waits for ever for a StopIteration."""
    error = None if future.cancelled() else future.exception()
    if isinstance(error, StopIteration):
        future = Future()
        future.set_exception(RuntimeError("StopIteration cannot be raised into an asyncio.Future"))
    fn(future)


def wake(awaiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]) -> None:
    """Wake all awaiting coroutines, with one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, waiter in awaiting:
        loops.setdefault(loop, []).append(waiter)
    for loop, waiters in loops.items():
        with suppress(RuntimeError):  # closed meanwhile: nothing awaits there any more
            loop.call_soon_threadsafe(_set_all, waiters)


def _set_all(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
