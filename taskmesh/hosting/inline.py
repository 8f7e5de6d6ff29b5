"""The inline mesh: client, hub and pool in the thread that waits, under a virtual clock (docs/adr/0049).

The machines and shells are those of an embedded mesh. There is no thread that drives them, and there are no
processes: its driver does what is next when somebody waits, and lets the time pass when nothing is left.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from queue import Empty
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from taskmesh.client.futures.callbacks import CallbackThread
from taskmesh.client.futures.driver import driven
from taskmesh.client.port.port import SubmitPort
from taskmesh.client.port.settings import client_settings
from taskmesh.core.actions import Send, SendClient
from taskmesh.core.events import FromClient, FromHub, FromHubToClient, FromPool, LinksLost, Requested
from taskmesh.errors import ConfigError, HubUnreachable
from taskmesh.hosting.inline_slots import InlineSlot, InlineSlots, SlotDriver
from taskmesh.hosting.local_pool import LocalHubLink
from taskmesh.hub.embedded_hub import EmbeddedHub, Intake, LocalLinks, OwnPool
from taskmesh.hub.settings import hub_settings, new_epoch
from taskmesh.messages import frames
from taskmesh.messages import mesh_messages as m
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.settings import pool_settings
from taskmesh.pool.shell import Gateway, PoolShell
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop

if TYPE_CHECKING:
    from taskmesh.client.port.shell import OpenTasks
    from taskmesh.config import Config

SLOW = 3600.0
"""Seconds between beats: nobody can be gone, and each beat is a stop of the clock."""
_POOL = "inline"
_DECODERS: Final[dict[type, frames.Decoder[Any]]] = {
    FromClient: frames.from_client,
    FromPool: frames.from_pool,
    FromHub: frames.to_pool,
    FromHubToClient: frames.to_client,
}


class InlineLoop(Loop):
    """A loop that waits for nothing: its time is what its driver says."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    @property
    def is_settled(self) -> bool:
        return not any(part.events or part.pending for part in self.parts)

    def settle(self) -> None:
        """Give parts their turns until none has an event left."""
        while not self.is_settled:
            for part in self.parts:
                if part.events or part.pending:
                    part.turn(self.now)


class LateMail:
    """Messages that arrive later: a part of the loop, so that its time stops for them."""

    pending = False

    def __init__(self) -> None:
        self.events: deque[object] = deque()
        self._count = itertools.count()
        self._heap: list[tuple[float, int, Intake, object]] = []

    @property
    def deadline(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def post(self, when: float, to: Intake, event: object) -> None:
        heapq.heappush(self._heap, (when, next(self._count), to, event))

    def turn(self, now: float) -> None:
        while self.deadline <= now:
            _, _, to, event = heapq.heappop(self._heap)
            to.append(event)


class Wire:
    """A link to one machine: messages by reference, or, where there is a fate, encoded and at its mercy.

    Args:
        driver: of the mesh.
        events: the machine's.
    """

    def __init__(self, driver: InlineDriver, events: Intake) -> None:
        self._driver = driver
        self._events = events

    def append(self, event: Any) -> None:
        fate = self._driver.fate
        if fate is None:
            self._events.append(event)
            return
        written = frames.encode(event.message)
        for delay in fate.carry(event.message):
            message = _DECODERS[type(event)].decode(written)
            again = structs.replace(event, message=message)
            self._driver.mail.post(self._driver.now + delay, self._events, again)


class InlineLinks(LocalLinks):
    """A hub's links to the clients and the pool in its loop: the program, and tasks that submit tasks."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop, _nothing)
        self.clients: dict[int, Wire] = {}

    def send_client(self, action: SendClient) -> None:
        events = self.clients.get(action.client)
        if events is not None:
            events.append(FromHubToClient(action.message))


class InlineHubLink(LocalHubLink):
    """A pool's link to a hub in the same loop, for slots in the same process."""

    def __init__(self, driver: InlineDriver, hub: LocalLinks) -> None:
        super().__init__(hub, "")
        self._hub = Wire(driver, hub.events)

    def gateway(self) -> Gateway:
        return Gateway("inline", "", "worker")


class CallbackQueue(CallbackThread):
    """A callback thread without a thread: who waits in the same process, or slot, does its jobs."""

    def __init__(self, name: str, slot: InlineSlot | None) -> None:
        super().__init__(name)
        self.slot = slot
        self._is_busy = False

    def start(self) -> None:
        """Do nothing: there is no thread."""

    @property
    def is_here(self) -> bool:
        return self._is_busy

    def run_one(self) -> bool:
        """Do the next job; return False if there is none, or one waits for something."""
        if self._is_busy:
            return False
        try:
            job = self._jobs.get_nowait()
        except Empty:
            return False
        if job is None:
            return False
        self._is_busy = True
        try:
            self.context.run(self.do, job)
        finally:
            self._is_busy = False
        return True

    def flush(self) -> None:
        """Do all jobs."""
        while self.run_one():
            pass

    def close(self, timeout: float | None) -> None:
        self._closed = True
        self.flush()


class InlineDriver(SlotDriver):
    """The driver of an inline mesh; see `taskmesh.client.futures.driver.Driver`.

    Attributes:
        loop: the parts of the mesh, and its time.
        links: the hub's, once it is open.
        mail: messages on their way, where there is a fate.
    """

    def __init__(self) -> None:
        self.loop = InlineLoop()
        self.mail = LateMail()
        self.loop.parts.append(self.mail)
        self.links: InlineLinks | None = None
        self._slots: InlineSlots | None = None
        self._lose_pool: Callable[[], None] = lambda: None
        self._queues: list[CallbackQueue] = []
        self._lock = RLock()  # of the thread that does the work

    @property
    def now(self) -> float:
        return self.loop.now

    def callback_thread(self, name: str) -> CallbackThread:
        queue = CallbackQueue(name, self._running)
        self._queues.append(queue)
        return queue

    def __call__(self, open_tasks: OpenTasks, config: Config, role: str, slot: str) -> InlinePort:
        return InlinePort(open_tasks, config, self, slot)

    def composed(self, config: Config) -> InlineLinks:
        """Return the hub's links; put hub and pool into the loop, if they are not there."""
        if self.links is not None:
            return self.links
        loop, links = self.loop, InlineLinks(self.loop)
        loop.now = monotonic()  # the hub adds the distance of the clock on the wall from that
        settings = hub_settings(config, epoch=new_epoch(), wired=self.fate is not None)
        if self.fate is None:
            settings = replace(settings, beat=SLOW, lease=10 * SLOW, stall=math.inf)
        hub = EmbeddedHub(loop, links, settings, None)
        loop.timers.clear()  # the clock on the wall goes as the virtual one does
        hub.shell.clock = loop.time
        self.links = links
        self._start_pool(config, links)
        return links

    def _start_pool(self, config: Config, links: InlineLinks) -> None:
        settings = pool_settings(config, _POOL)
        if self.fate is None:
            settings = replace(settings, beat=SLOW, lease=10 * SLOW)
        link = InlineHubLink(self, links)
        slots = self._slots = InlineSlots(self, link.events, config.pool.middleware)
        machine = PoolMachine(settings, self.now)
        shell = PoolShell(machine, link, slots, _nothing)
        shell.clock = self.loop.time
        links.pool = OwnPool(_POOL, Wire(self, link.events), None)
        self.loop.parts.append(shell)

        def lose() -> None:
            slots.close()
            self.loop.parts.remove(shell)
            links.events.append(LinksLost(machine.session))
            self._start_pool(config, links)

        self._lose_pool = lose

    def lose_pool(self) -> None:
        """Have the pool die with its slots, and another one come in its place."""
        self._lose_pool()

    def close(self) -> None:
        """Leave nothing behind: later waits are not its own, and whoever keeps the mesh keeps no results."""
        if self._slots is not None:
            self._slots.close()
        self._slots, self._lose_pool = None, lambda: None
        self.loop.parts.clear()

    # --- the work

    @property
    def _running(self) -> InlineSlot | None:
        """The slot whose task this thread runs."""
        return None if self._slots is None else self._slots.running

    def settle(self) -> None:
        """Have client, hub and pool take in what has come; no task runs."""
        if self._lock.acquire(blocking=False):
            try:
                self.loop.settle()
            finally:
                self._lock.release()

    def step(self, until: float) -> bool:
        """Do what is next; see Driver."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._settle_some() or self._call_back() or self._run_task() or self._pass(until)
        finally:
            self._lock.release()

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and do all that is to be done meanwhile."""
        until = self.now + seconds
        while self.step(until):
            pass

    def _settle_some(self) -> bool:
        if self.loop.is_settled:
            return False
        self.loop.settle()
        return True

    def _call_back(self) -> bool:
        running = self._running
        return any(queue.run_one() for queue in self._queues if queue.slot is running)

    def _run_task(self) -> bool:
        return self._slots is not None and self._slots.run_one()

    def _pass(self, until: float) -> bool:
        """Go to the next time at which something is due."""
        loop = self.loop
        first = min((part.deadline for part in loop.parts), default=math.inf)
        if first > until:
            loop.now = max(loop.now, until)
            return False
        loop.now = max(loop.now, first)
        for part in list(loop.parts):
            if part.deadline <= loop.now:
                part.turn(loop.now)
        return True


class InlinePort(SubmitPort):
    """A SubmitPort to the hub of an inline mesh.

    Args:
        open_tasks: the client's pending table.
        config: the user's settings.
        driver: does the mesh's work.
        slot: pool and process of the slot in which this runs, for a task that submits tasks.
    """

    def __init__(self, open_tasks: OpenTasks, config: Config, driver: InlineDriver, slot: str = "") -> None:
        open_tasks.memfd = False
        settings = client_settings(config, wired=driver.fate is not None, slot=slot)
        super().__init__(open_tasks, settings if driver.fate else replace(settings, credit=0, slot=slot))
        self._config = config
        self._driver = driver
        self._is_nested = bool(slot)
        self._is_open = False
        self._shell.requests.driver = driver

    def start(self, timeout: float) -> None:
        """Open the client's session.

        Raises:
            ConfigError: a setting cannot be used.
            HubUnreachable: the hub does not answer within `timeout` virtual seconds.
        """
        driver = self._driver
        if not self._is_nested:
            _check(self._config)
        driver.composed(self._config).clients[self.client] = Wire(driver, self._shell.events)
        driver.loop.parts.insert(0, self._shell)
        self._is_open = True
        if not driven(driver, lambda seconds: self._shell.opened.is_set(), timeout):
            raise HubUnreachable(f"the hub of an inline mesh did not answer within {timeout:g} s")

    def gateway(self, timeout: float) -> str:
        """Refuse: no other process reaches an inline mesh."""
        raise HubUnreachable("an inline mesh has no address: no other process can reach it")

    def wake(self) -> None:
        """Do nothing: who waits does the work."""

    def close(self, *, cancel: bool, timeout: float) -> None:
        """Say goodbye to the hub, and end it if this is the program's port."""
        if self._closing.is_set() or not self._is_open:
            return
        self._shell.events.append(Requested(m.ClientBye(cancel=cancel)))
        self._driver.settle()
        self._closing.set()
        self._shell.requests.end()
        for intake in list(self._shell.intakes.values()):
            intake.end()
        if self._is_nested:
            self._driver.loop.parts.remove(self._shell)
        else:
            self._driver.close()

    def _send(self, action: Send) -> None:
        if self._driver.links is not None:
            Wire(self._driver, self._driver.links.events).append(FromClient(self.client, action.message))

    def _put(self, request: Requested) -> None:
        super()._put(request)
        self._driver.settle()

    @property
    def _was_started(self) -> bool:
        return self._is_open

    @property
    def _is_running(self) -> bool:
        return self._is_open and not self._closing.is_set()

    def _could_act(self) -> bool:
        return False


def _check(config: Config) -> None:
    """Refuse what other processes, or a later program, would have to do with."""
    mesh, hub = config.mesh, config.hub
    if mesh.bind or mesh.hub == "process" or hub.journal or hub.journal_file or hub.strict:
        raise ConfigError("an inline mesh is of one process and one test: leave bind=, hub= and journal= out")


def _nothing(kind: str, fields: dict[str, object]) -> None:
    """Log no events: they would be the test's."""
