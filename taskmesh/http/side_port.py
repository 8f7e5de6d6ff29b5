"""The side port of a program: requests of its threads to the loop, whose own thread reads the machines.

Its server is loaded only where the settings ask for one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from taskmesh.config import Config
from taskmesh.errors import TaskMeshError
from taskmesh.http.settings import side_settings
from taskmesh.system.loop import Loop
from taskmesh.system.wakeup import Wakeup

TURN = 1.0
"""Seconds after which the loop turns here though nobody asks."""
STALE = 5.0
"""Seconds without a turn after which the loop counts as stuck."""
PATIENCE = 2.0
"""Seconds that a request waits for the loop."""

Answers = Mapping[str, Callable[[], object]]


class LoopRequests:
    """A part of the loop that answers other threads.

    Args:
        loop: the program's loop.

    Attributes:
        events: requests that wait: the route of each, and the future of its answer.
        turned: the time of the last turn (CLOCK_MONOTONIC).
        address: where the side port listens, as http://HOST:PORT.
    """

    def __init__(self, loop: Loop) -> None:
        self.events: deque[tuple[str, Future[object]]] = deque()
        self.turned = time.monotonic()
        self.address = ""
        self._answers: Answers = {}
        self._closed = threading.Event()
        self._loop = loop
        self._wake_up = Wakeup()
        loop.watch(self._wake_up.fd, self._wake_up.clear)

    # --- in the loop's thread -------------------------------------------------------------------------------

    def serve(self, answers: Answers) -> None:
        """Join the loop, with functions that return the answers by route."""
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
        if self._closed.is_set():
            return
        self._closed.set()
        self._loop.unwatch(self._wake_up.fd)
        self._wake_up.close()
        while self.events:
            self.events.popleft()[1].set_exception(TaskMeshError("this program is ending"))

    # --- in other threads -----------------------------------------------------------------------------------

    def ask(self, route: str) -> tuple[int, object]:
        """Return a status of HTTP, and the loop's answer to a request, or the reason why there is none.

        `GET /livez` does not ask: it is about the loop, and slots have no part in it.
        """
        if route == "GET /livez":
            silence = time.monotonic() - self.turned
            late = f"the loop has not turned for {silence:.1f} s"
            return (200, "live") if silence < STALE else (503, late)
        ending = 503, "this program is ending"
        if self._closed.is_set() or not self._answers:
            return ending if self._closed.is_set() else (503, "this program is starting")
        if route not in self._answers:
            return 404, f"nothing at {route}"
        answered: Future[object] = Future()
        self.events.append((route, answered))
        self._wake_up.set()
        if self._closed.is_set():  # meanwhile
            return ending
        try:
            return 200, answered.result(PATIENCE)
        except FutureTimeout:
            return 503, f"the loop has not come by for {time.monotonic() - self.turned:.1f} s"
        except Exception as error:  # noqa: BLE001  whatever the answer has raised
            return 503, str(error)


@contextlib.contextmanager
def side_port(config: Config, loop: Loop, tell: Callable[[str], None]) -> Iterator[LoopRequests | None]:
    """Open the side port that the settings ask for, until the end of the block.

    Args:
        config: the user's settings.
        loop: the program's loop.
        tell: called with the address once it listens.

    Raises:
        ConfigError: the address cannot be bound or may not be used; nothing listens then.
    """
    settings = side_settings(config)
    if settings is None:
        yield None
        return
    from taskmesh.http.server import served

    with contextlib.closing(LoopRequests(loop)) as requests, served(settings, requests.ask) as address:
        requests.address = address
        tell(address)
        try:
            yield requests
        finally:
            requests.close()  # those that wait are told so, before the port closes
