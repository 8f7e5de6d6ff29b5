"""Requests of the side port's threads to a program's loop, whose own thread reads the machines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from taskmesh.errors import TaskMeshError
from taskmesh.system.loop import Loop
from taskmesh.system.wakeup import Wakeup

TURN = 1.0
"""Seconds after which the loop turns here though nobody asks."""
STALE = 5.0
"""Seconds without a turn after which the loop counts as stuck."""
PATIENCE = 2.0
"""Seconds that a request waits for the loop."""

Answers = Mapping[str, Callable[[], object]]


class NoAnswer(TaskMeshError):
    """The loop does not answer, for the reason given."""


class NothingHere(NoAnswer):
    """This program has no answer to such a request."""


class LoopRequests:
    """A part of the loop that answers other threads.

    Args:
        loop: the program's loop.

    Attributes:
        events: requests that wait: the name of each, and the future of its answer.
        turned: the time of the last turn (CLOCK_MONOTONIC).
        address: where the side port listens, as http://HOST:PORT.
    """

    def __init__(self, loop: Loop) -> None:
        self.events: deque[tuple[str, Future[object]]] = deque()
        self.turned = time.monotonic()
        self.address = ""
        self._answers: Answers = {}
        self._closed = False
        self._loop = loop
        self._wake_up = Wakeup()
        loop.watch(self._wake_up.fd, self._wake_up.clear)

    # --- in the loop's thread -------------------------------------------------------------------------------

    def serve(self, answers: Answers) -> None:
        """Join the loop, with functions that return the answers."""
        self._answers = answers
        self._loop.parts.append(self)

    @property
    def deadline(self) -> float:
        return self.turned + TURN

    @property
    def pending(self) -> bool:
        return bool(self.events)

    def turn(self, now: float) -> None:
        self.turned = now
        while self.events:
            what, answered = self.events.popleft()
            try:
                answered.set_result(self._answers[what]())
            except Exception as error:  # noqa: BLE001  raised in the thread that asks, not in the loop
                answered.set_exception(error)

    def close(self) -> None:
        """Fail the requests that wait, and all later ones."""
        self._closed = True
        self._loop.unwatch(self._wake_up.fd)
        self._wake_up.close()
        while self.events:
            self.events.popleft()[1].set_exception(NoAnswer("this program is ending"))

    # --- in other threads -----------------------------------------------------------------------------------

    @property
    def silence(self) -> float:
        """Seconds since the last turn."""
        return time.monotonic() - self.turned

    @property
    def alive(self) -> bool:
        """True if the loop turns; slots have no part in it."""
        return self.silence < STALE

    def ask(self, what: str) -> object:
        """Return the loop's answer to the request of this name.

        Raises:
            NothingHere: this program has no such answer.
            NoAnswer: the program is starting or ending, its loop is stuck, or the answer failed.
        """
        if self._closed or not self._answers:
            raise NoAnswer("this program is ending" if self._closed else "this program is starting")
        if what not in self._answers:
            raise NothingHere("this program has no such thing")
        answered: Future[object] = Future()
        self.events.append((what, answered))
        self._wake_up.set()
        if self._closed:  # meanwhile
            raise NoAnswer("this program is ending")
        try:
            return answered.result(PATIENCE)
        except FutureTimeout:
            raise NoAnswer(f"the loop has not come by for {self.silence:.1f} s") from None
        except Exception as error:  # whatever the answer has raised
            raise NoAnswer(str(error)) from error
