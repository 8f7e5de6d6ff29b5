"""The loop that drives machines: wait, take in what has arrived, let every part act until nothing is left."""

from __future__ import annotations

import math
import select
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from taskmesh.system.clock import monotonic

MAX_WAIT = 0.5
"""Seconds after which the loop turns even if nothing happens."""
FRESH = 0.001
"""Seconds for which the parts' deadlines are not asked for again while there is always something to do."""
MAX_ROUNDS = 64
"""Turns between looks at descriptors, at most: parts that feed each other must not starve the sockets."""


class Timed(Protocol):
    """Something in a loop that is given a turn when its time has come."""

    @property
    def deadline(self) -> float:
        """The time of its next turn at the latest (CLOCK_MONOTONIC)."""
        ...

    def turn(self, now: float) -> None:
        """Do what is due; of a part, take in its events and perform its machine's actions, too."""
        ...


class Part(Timed, Protocol):
    """Something in a loop that is given a turn when it has events: a shell around one machine.

    Attributes:
        events: events that it has not taken in yet.
    """

    events: deque[Any]

    @property
    def pending(self) -> bool:
        """True if it has events, or others have queued something for it (`idle` then returns 0)."""
        ...


class Poller(Protocol):
    """select.poll, or zmq.Poller where ZeroMQ sockets are among the sources."""

    def register(self, source: Any, flags: int, /) -> Any: ...

    def unregister(self, source: Any, /) -> Any: ...

    def poll(self, timeout: Any = None, /) -> list[tuple[Any, int]]:
        """Wait for at most `timeout` milliseconds; return the sources that are ready, with their flags."""
        ...


class BusyWait(Protocol):
    """Polls for a moment before the loop sleeps."""

    def came(self) -> bool:
        """Called before the loop sleeps; returns True if something has come."""
        ...

    def awake(self) -> None:
        """Called after the loop has slept."""
        ...


class Loop:
    """Sources with callbacks, parts with events and deadlines, and timers, which have deadlines alone.

    Attributes:
        parts: the shells of machines, and others that have events.
        timers: things that have no events.
        busy_wait: polls before the loop sleeps; None to sleep at once.

    Args:
        poller: None for select.poll, which is enough where no ZeroMQ socket takes part.
        readable: the poller's flag for reading.
        writable: the poller's flag for writing.
        idle: called before the loop blocks; returns for how many seconds it may, 0 if work has come up.
        awake: called after it has blocked.
    """

    def __init__(
        self,
        poller: Poller | None = None,
        *,
        readable: int = select.POLLIN,
        writable: int = select.POLLOUT,
        idle: Callable[[], float] | None = None,
        awake: Callable[[], None] | None = None,
    ) -> None:
        self.parts: list[Part] = []
        self.timers: list[Timed] = []
        self.busy_wait: BusyWait | None = None
        self._poller: Poller = select.poll() if poller is None else poller
        self._readable = int(readable)  # of an enum's members each & is a call in Python
        self._writable = int(writable)
        self._idle = idle
        self._awake = awake
        self._readers: dict[Any, Callable[[], None]] = {}
        self._writers: dict[Any, Callable[[], None]] = {}
        self._deadlines: list[float] = []
        self._first = math.inf
        self._fresh_until = 0.0
        self._settled = True

    # --- sources ------------------------------------------------------------------------------------------

    def use(self, poller: Poller, *, readable: int, writable: int) -> None:
        """Take another poller from the next turn on: ZeroMQ sockets are about to take part."""
        self._poller, self._readable, self._writable = poller, int(readable), int(writable)
        for source in {*self._readers, *self._writers}:
            self._register(source)

    def watch(self, source: Any, callback: Callable[[], None]) -> None:
        """Call back whenever the source can be read (or is closed by its peer)."""
        self._readers[source] = callback
        self._register(source)

    def unwatch(self, source: Any) -> None:
        if self._readers.pop(source, None) is not None:
            self._register(source)

    def watch_write(self, source: Any, callback: Callable[[], None]) -> None:
        """Call back whenever the source can be written."""
        self._writers[source] = callback
        self._register(source)

    def unwatch_write(self, source: Any) -> None:
        if self._writers.pop(source, None) is not None:
            self._register(source)

    def _register(self, source: Any) -> None:
        flags = (self._readable if source in self._readers else 0) | (
            self._writable if source in self._writers else 0
        )
        if flags:
            self._poller.register(source, flags)
        else:
            self._poller.unregister(source)

    # --- running ------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Wait for the next thing to happen; handle it and all that follows from it."""
        parts, readable, readers = self.parts, self._readable, self._readers
        ready = self._poller.poll(math.ceil(self._wait() * 1000.0))
        if self.busy_wait is not None:
            self.busy_wait.awake()
        if self._awake is not None:
            self._awake()
        for source, flags in ready:
            if flags != readable:
                self._call_back(source, flags)
            elif source in readers:
                readers[source]()
        now = monotonic()
        if now >= self._first:
            self._keep_deadlines(now)
        for part in parts:
            if part.events or part.pending:
                part.turn(now)
        self.settle()

    def _keep_deadlines(self, now: float) -> None:
        """Give a turn to each part and timer whose deadline has come."""
        self._fresh_until = 0.0
        for timed, deadline in zip((*self.parts, *self.timers), self._deadlines, strict=False):
            if deadline <= now:
                timed.turn(now)

    def _wait(self) -> float:
        """Return for how many seconds the loop may wait.

        The deadlines are asked for before every wait. To wait a millisecond with old ones instead would take
        longer: for so short a time-out the kernel sets the clock anew (12 us of a lone trip's 105, measured).
        """
        now = monotonic()
        wait = MAX_WAIT if self._settled else 0.0
        if wait and self._idle is not None:
            wait = min(wait, self._idle())
        if wait > 0 and self.busy_wait is not None and self.busy_wait.came():
            wait = 0.0
        if (
            wait <= 0
            and now < self._fresh_until
            and len(self._deadlines) == len(self.parts) + len(self.timers)
        ):
            return 0.0
        self._deadlines = [one.deadline for one in (*self.parts, *self.timers)]
        self._first = min(self._deadlines)
        self._fresh_until = now + FRESH
        return max(0.0, min(wait, self._first - now))

    def _call_back(self, source: Any, flags: int) -> None:
        if flags & ~self._writable:
            reader = self._readers.get(source)
            if reader is not None:
                reader()
        if flags & self._writable:
            writer = self._writers.get(source)
            if writer is not None:
                writer()

    def settle(self) -> None:
        """Give parts their turns until none has an event left."""
        parts = self.parts
        for _ in range(MAX_ROUNDS):
            busy = False
            for part in parts:
                if part.events:
                    part.turn(monotonic())
                    busy = True
            if not busy:
                break
        self._settled = not busy
