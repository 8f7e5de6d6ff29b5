"""Where the side port's thread asks the loop: the loop's own thread looks at the machines and answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

from taskmesh.errors import TaskMeshError
from taskmesh.system.loop import Loop
from taskmesh.system.wake_up import WakeUp

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


class LoopRequest:
    """One request, and the event that tells that its answer is there."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.answered = threading.Event()
        self.answer: object = None
        self.error: BaseException | None = None


class LoopRequests:
    """A part of the loop that answers other threads.

    Attributes:
        events: questions that wait. turned: when the loop came by last (CLOCK_MONOTONIC).
        address: where the side port listens, as http://HOST:PORT.
    """

    def __init__(self, loop: Loop) -> None:
        self.events: deque[object] = deque()
        self.turned = time.monotonic()
        self.address = ""
        self._answers: Answers = {}
        self._closed = False
        self._loop = loop
        self._wake_up = WakeUp()
        loop.watch(self._wake_up.fd, self._wake_up.heard)

    # --- in the loop's thread -----------------------------------------------------------------------------

    def serve(self, answers: Answers) -> None:
        """Knows the answers from now on, and is a part of the loop."""
        self._answers = answers
        self._loop.parts.append(self)

    @property
    def deadline(self) -> float:
        """When the loop is to come by at the latest."""
        return self.turned + TURN

    @property
    def pending(self) -> bool:
        """True if questions wait."""
        return bool(self.events)

    def turn(self, now: float) -> None:
        """Answers what waits."""
        self.turned = now
        while self.events:
            request = cast("LoopRequest", self.events.popleft())
            try:
                request.answer = self._answers[request.what]()
            except Exception as error:  # noqa: BLE001  the asker's, not the loop's
                request.error = error
            request.answered.set()

    def close(self) -> None:
        """Nobody is answered any more; those who wait are told."""
        self._closed = True
        self._loop.unwatch(self._wake_up.fd)
        self._wake_up.close()
        while self.events:
            request = cast("LoopRequest", self.events.popleft())
            request.error = NoAnswer("this program is ending")
            request.answered.set()

    # --- in other threads ---------------------------------------------------------------------------------

    @property
    def silence(self) -> float:
        """Seconds since the loop came by."""
        return time.monotonic() - self.turned

    @property
    def alive(self) -> bool:
        """True if the loop turns. What slots do has no part in it."""
        return self.silence < STALE

    def ask(self, what: str) -> object:
        """The loop's answer.

        Raises:
            NothingHere: this program has no answer to that.
            NoAnswer: the program is starting, ending, or its loop is stuck.
        """
        if self._closed or not self._answers:
            raise NoAnswer("this program is ending" if self._closed else "this program is starting")
        if what not in self._answers:
            raise NothingHere("this program has no such thing")
        request = LoopRequest(what)
        self.events.append(request)
        self._wake_up.ring()
        if self._closed:  # meanwhile
            raise NoAnswer("this program is ending")
        if not request.answered.wait(PATIENCE):
            raise NoAnswer(f"the loop has not come by for {self.silence:.1f} s")
        if request.error is not None:
            raise NoAnswer(str(request.error)) from request.error
        return request.answer
