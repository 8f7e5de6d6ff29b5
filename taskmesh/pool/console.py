"""What slots print, from their pipes to where people see it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from taskmesh.pool.output import OutputTail, Tee
from taskmesh.system.watch import Watch


class Console:
    """Reads slots' output and passes it on; stops reading while it cannot be passed on fast enough.

    Args:
        watch: where the pipes are watched.
        tee: pass output on; without it, it is only read, and its tail kept.
    """

    def __init__(self, watch: Watch, *, tee: bool) -> None:
        self._watch = watch
        self._tee = Tee(watch.alarm.ring) if tee else None
        self._held = False
        self._tails: set[OutputTail] = set()

    def add(self, tail: OutputTail) -> None:
        """Begins to read a slot's output."""
        self._tails.add(tail)
        if not self._held:
            self._listen([tail])

    def remove(self, tail: OutputTail) -> None:
        """Reads what a dead slot has left, and then no more."""
        for fd in tail.pipes:
            self._pass_on(tail, fd, at_most=64)
        self._tails.discard(tail)
        self._watch.remove(*tail.pipes)

    def relieve(self) -> None:
        """Reads on, if it had been stopped and there is room again."""
        if self._held and self._tee is not None and not self._tee.full:
            self._held = False
            self._listen(self._tails)

    def close(self, timeout: float) -> None:
        """Passes on what was read; gives up after `timeout` seconds."""
        if self._tee is not None:
            self._tee.close(timeout)

    def _listen(self, tails: Iterable[OutputTail]) -> None:
        for tail in tails:
            for fd in tail.pipes:
                self._watch.add(fd, partial(self._pass_on, tail, fd))

    def _pass_on(self, tail: OutputTail, fd: int, at_most: int = 1) -> None:
        for _ in range(at_most):
            text = tail.read(fd)
            if text is None:
                self._watch.remove(fd)
                return
            if not text:
                return
            if self._tee is not None:
                self._tee.put(tail.pipes.index(fd), text)
                if self._tee.full and not self._held:
                    self._held = True
                    for held in self._tails:
                        self._watch.remove(*held.pipes)
