"""The news of a hub for all browsers together, and their questions to it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import msgspec

from taskmesh.client.port.port import SubmitPort
from taskmesh.errors import HubUnreachable, MeshClosed, TaskMeshError
from taskmesh.messages.status import HubStatus

WATCHED, UNWATCHED = 1.0, 10.0
"""Seconds between questions to the hub, while a page is open and while none is."""
PATIENCE = 2.0
"""Seconds that an answer may take; a program that is asked to end waits no longer for it."""
FINE, COARSE = 300, 360
"""Points of the flow's series: of each second, and of each ten seconds before."""
MOST_ROWS = 200
"""Pools and clients in a message; it says how many there are."""
FRESH = 1.0
"""Seconds for which an answer serves all who ask the same."""
PAUSE = 0.5
"""Seconds between questions of pages, on average."""
BURST = 8
"""Questions that need not wait, after a time without any."""
MOST_WAITING = 16
BAD = ("failed", "expired", "dead", "lost")
"""Ends in a status that count as failures."""


def encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=repr)


class HubSession:
    """An operator's session with the hub, which is opened again when it was lost. For any thread.

    Args:
        open_port: opens a session, until the end of the block.
    """

    def __init__(self, open_port: Callable[[], AbstractContextManager[SubmitPort]]) -> None:
        self._open_port = open_port
        self._lock = threading.Lock()
        self._port: SubmitPort | None = None
        self._held = ExitStack()

    def port(self) -> SubmitPort:
        """Return the port, opened.

        Raises:
            HubUnreachable: no hub answers.
            ConfigError: the address cannot be used, or keys are missing.
        """
        with self._lock:
            if self._port is None:
                self._port = self._held.enter_context(self._open_port())
            return self._port

    def query(self, what: str, argument: str = "", limit: int = 100) -> Any:
        """Return a view of the hub; raises as `SubmitPort.query`, and as `port`."""
        return self._asked(lambda port: port.query(what, argument, limit, PATIENCE))

    def command(self, verb: str, target: str) -> Any:
        """Have the hub carry a command out, if it is there now; raises as `query`."""

        def at_once(port: SubmitPort) -> object:
            if not port.connected:
                raise HubUnreachable("the hub does not answer: nothing was done")
            return port.command(verb, target, PATIENCE)

        return self._asked(at_once)

    def _asked(self, ask: Callable[[SubmitPort], object]) -> Any:
        port = self.port()
        try:
            return ask(port)
        except MeshClosed:
            self.close()
            raise HubUnreachable("the session with the hub has ended") from None

    def close(self) -> None:
        with self._lock:
            self._port = None
            self._held.close()


class Flow:
    """Tasks accepted, finished and failed a second, of the last hour."""

    def __init__(self) -> None:
        self._fine: deque[tuple[float, ...]] = deque(maxlen=FINE)
        self._coarse: deque[tuple[float, ...]] = deque(maxlen=COARSE)
        self._last: tuple[object, float, list[int]] | None = None
        self._sum = [0.0, 0.0, 0.0, 0.0]

    def take(self, status: HubStatus, now: float) -> None:
        """Add a point. The counts of a hub that was started anew begin at zero, and so does the series."""
        ended = status["ended"]
        counts = [status["accepted"], status["finished"], sum(ended.get(end, 0) for end in BAD)]
        last, self._last = self._last, (status["epoch"], now, counts)
        if last is None or last[0] != status["epoch"] or now <= last[1]:
            return
        passed = now - last[1]
        grown = [max(0, count - former) for count, former in zip(counts, last[2], strict=True)]
        self._fine.append((round(now, 1), *(round(each / passed, 2) for each in grown)))
        self._sum = [self._sum[0] + passed, *(a + b for a, b in zip(self._sum[1:], grown, strict=True))]
        if self._sum[0] >= UNWATCHED - 0.5:
            seconds, *sums = self._sum
            self._coarse.append((round(now, 1), *(round(each / seconds, 2) for each in sums)))
            self._sum = [0.0, 0.0, 0.0, 0.0]

    def points(self) -> list[tuple[float, ...]]:
        """Return the series: time, and accepted, finished and failed a second."""
        since = self._fine[0][0] if self._fine else time.time()
        return [*(point for point in self._coarse if point[0] < since), *self._fine]


class Feed:
    """Messages for all streams: what the hub said last, or that it is silent.

    Args:
        hub: the session with the hub.

    Attributes:
        flow: the series of rates.
        message: the last message, in JSON.
        next: set when there is a newer one, or at the end; then it is replaced.
        ended: the program ends.
    """

    def __init__(self, hub: HubSession) -> None:
        self.hub = hub
        self.flow = Flow()
        self.message = encoded({"error": "the hub has not been asked yet"})
        self.next = asyncio.Event()
        self.ended = False
        self._watchers = 0
        self._wanted = asyncio.Event()

    @contextlib.contextmanager
    def watched(self) -> Any:
        """Ask the hub each second until the end of the block."""
        self._watchers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def run(self) -> None:
        """Ask the hub, for ever."""
        while True:
            self.message = encoded(await self._news())
            self._publish()
            if self._watchers:
                await asyncio.sleep(WATCHED)
                continue
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), UNWATCHED)

    async def _news(self) -> dict[str, Any]:
        now = time.time()
        try:
            status = await asyncio.to_thread(self.hub.query, "status")
        except TaskMeshError as error:
            return {"at": now, "error": str(error)}
        self.flow.take(status, now)
        points = self.flow.points()[-1:]
        totals = {name: len(status[name]) for name in ("pools", "clients")}
        slots = {name: sum(pool[name] for pool in status["pools"]) for name in ("slots", "busy")}
        cut = {name: status[name][:MOST_ROWS] for name in totals}
        return {"at": now, "error": "", "flow": points, "totals": totals | slots, "status": status | cut}

    def _publish(self) -> None:
        self.next.set()
        self.next = asyncio.Event()

    def end(self) -> None:
        """End all streams."""
        self.ended = True
        self._publish()


class Questions:
    """Questions of pages to the hub: the same one once a second at most, and two a second in all.

    Args:
        hub: the session with the hub.
    """

    def __init__(self, hub: HubSession) -> None:
        self._hub = hub
        self._answers: dict[tuple[str, str, int], tuple[float, asyncio.Task[bytes]]] = {}
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0
        self._free_at = 0.0

    async def ask(self, what: str, argument: str, limit: int) -> bytes:
        """Return the hub's answer as JSON; raises as `HubSession.query`.

        Raises:
            HubUnreachable: too many questions wait.
        """
        now = time.monotonic()
        for old in [each for each, (until, task) in self._answers.items() if now >= until and task.done()]:
            del self._answers[old]
        question = what, argument, limit
        if question not in self._answers:
            if self._waiting >= MOST_WAITING:
                raise HubUnreachable("too many questions wait for the hub: try again")
            task = asyncio.create_task(self._asked(question))
            task.add_done_callback(self._answered)
            self._waiting += 1
            self._answers[question] = now + FRESH, task
        return await asyncio.shield(self._answers[question][1])

    async def _asked(self, question: tuple[str, str, int]) -> bytes:
        async with self._turn:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - BURST * PAUSE) + PAUSE
            await asyncio.sleep(self._free_at - now)
            return encoded(await asyncio.to_thread(self._hub.query, *question))

    def _answered(self, task: asyncio.Task[bytes]) -> None:
        self._waiting -= 1
        if not task.cancelled():
            task.exception()  # it counts as seen: who asked may be gone
