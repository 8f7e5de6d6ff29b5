"""The embedded mesh: one thread whose loop drives client, hub and one pool; slots are child processes.

Lane, collector and control are in-process queues here: the three machines run in one loop and hand each other
messages by reference. Every ZeroMQ call would release the GIL, which a computing caller then keeps for 5 ms
(docs/adr/0003). Nothing listens anywhere, and ZeroMQ is not even imported, until a task submits tasks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from taskmesh.config import Config
from taskmesh.core.events import FromClient, FromHub, FromHubToClient, FromPool, SlotExited, SlotReady
from taskmesh.core.hub.machine import HubMachine
from taskmesh.core.pool.machine import PoolMachine
from taskmesh.errors import HubUnreachable
from taskmesh.net.client.port import ThreadPort, provided
from taskmesh.net.client.ports import OutcomeSink
from taskmesh.net.client.shell import ClientShell
from taskmesh.net.hub.inner import InnerGateway
from taskmesh.net.hub.settings import hub_config, new_epoch
from taskmesh.net.hub.shell import HubShell
from taskmesh.net.pool.answers import Answers
from taskmesh.net.pool.first_slots import FirstSlots
from taskmesh.net.pool.settings import pool_config
from taskmesh.net.pool.shell import PoolShell
from taskmesh.pool.host import SlotEvent, SlotHost
from taskmesh.pool.nursery import Nursery
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.system.wake_up import WakeUp
from taskmesh.wire import messages as m

_log = logging.getLogger("taskmesh")


class InProcessLinks:
    """Every link of the embedded mesh: what one machine sends is another's event."""

    def __init__(self) -> None:
        self.hub: deque[object] = deque()
        self.pool: deque[object] = deque()
        self.client: deque[object] = deque()
        self.client_id = 0
        self.inner: InnerGateway | None = None
        self.seal: PayloadSigner | None = None

    # hub's ways
    def push(self, session: int, message: m.Tasks) -> None:
        """The lane."""
        self.pool.append(FromHub(message))

    def publish(self, pool: str, message: m.ToPool) -> None:
        """The control channel."""
        self.pool.append(FromHub(message))

    def send_client(self, client: int, message: m.ToClient) -> None:
        """The gateway: to this process's client, or to one in a slot whose task submits tasks."""
        if client == self.client_id:
            self.client.append(FromHubToClient(message))
        elif self.inner is not None:
            self.inner.send_client(client, message)

    def open_lane(self, session: int, pool: str, key: bytes) -> str:
        """Nothing to bind."""
        return "embedded"

    def close_lane(self, session: int) -> None:
        """Nothing to close."""

    def record(self, kind: str, fields: dict[str, object]) -> None:
        """The hub machine keeps its own ring of events."""

    # pool's ways
    def send(self, message: m.PoolMessage) -> None:
        """The collector."""
        if self.seal is not None and isinstance(message, m.Results):
            message = self.seal.results(message)
        self.hub.append(FromPool(message))

    def beat(self, message: m.Beat) -> None:
        """The collector."""
        self.hub.append(FromPool(message))

    def dial(self, endpoint: str, max_payload: int = 0) -> None:
        """Nothing to dial."""

    def hang_up(self) -> None:
        """Nothing to hang up."""

    # client's way
    def to_hub(self, message: m.ClientMessage) -> None:
        """The gateway."""
        self.hub.append(FromClient(self.client_id, message))


class EmbeddedPort(ThreadPort):
    """A SubmitPort whose hub and pool live in a thread of this process.

    Args:
        nursery: where its slots come from.
    """

    def __init__(self, sink: OutcomeSink, config: Config, nursery: Nursery) -> None:
        super().__init__(sink)
        self._client_config = replace(self._client_config, credit=0)
        self._config = config
        self._nursery = nursery
        self._host: SlotHost | None = None
        self._pool: PoolMachine | None = None

    def start(self, timeout: float) -> None:
        """Starts fork server and thread; returns when the client's session is open.

        Raises:
            HubUnreachable: the thread did not come up within `timeout` seconds.
            TaskMeshError: the system has no descriptors, threads or the like for it.
        """
        try:
            with provided():
                shell = self._compose()
        except BaseException:
            if self._host is not None:
                self._host.close(timeout=0)
            self._nursery.bury()
            raise
        if not shell.opened.wait(timeout):
            self.close(cancel=True, timeout=timeout)
            raise HubUnreachable(f"the embedded hub did not start within {timeout:g} s")
        if self._failure is not None:
            raise self._failure

    def _compose(self) -> ClientShell:
        """Puts the machines into a loop, and starts its thread."""
        now = monotonic()
        wake_up = self._wake_up = WakeUp()
        links = InProcessLinks()
        links.client_id = self.client
        loop = Loop(idle=self._about_to_block, awake=self._blocked)
        hub = HubShell(HubMachine(hub_config(self._config, epoch=new_epoch()), now), links)
        settings = pool_config(self._config, slots=self._config.pool.slots, name="local")
        machine = self._pool = PoolMachine(settings, now)
        pool = PoolShell(machine, [links])
        shell = ClientShell(self._sink, self._client_config, now, links.to_hub, lambda: None)
        hub.events, pool.events, shell.events = links.hub, links.pool, links.client
        inner = links.inner = InnerGateway(loop, links.hub)
        host = self._host = host_slots(
            loop,
            pool,
            "local",
            lambda _: inner.addresses(),
            patience=self._config.mesh.open_timeout,
            nursery=self._nursery,
            urgent=(wake_up.fd,),
        )
        loop.parts = [shell, hub, pool]
        loop.watch(wake_up.fd, wake_up.heard)
        self._shell = shell
        self._start_thread("taskmesh-hub", lambda: self._work(loop, host, inner))
        return shell

    def forked(self) -> None:
        """In a forked child: closes this port's descriptors, its slots' among them."""
        super().forked()
        if self._host is not None:
            self._host.forsake()

    def _could_act(self, shell: ClientShell) -> bool:
        """A slot is idle (or still starting, when the first result is what somebody waits for)."""
        pool = self._pool
        return pool is None or any(
            not slot.count and slot.spare_since is None for slot in pool.slots.values()
        )

    def _work(self, loop: Loop, host: SlotHost, inner: InnerGateway) -> None:
        try:
            while not self._closing.is_set():
                loop.turn()
        finally:
            host.close(timeout=0.1 if self._cancel else 1.0)
            inner.close()


def host_slots(
    loop: Loop,
    pool: PoolShell,
    name: str,
    gateway: Callable[[int], list[str]],
    config: Config | None = None,
    *,
    patience: float,
    modules: tuple[str, ...] = (),
    complain: Callable[[str], None] = _log.warning,
    nursery: Nursery | None = None,
    urgent: tuple[int, ...] = (),
) -> SlotHost:
    """Gives a pool in a loop its slots.

    Args:
        gateway: the addresses, a given hub's first, for its tasks that submit tasks.
        config: says which keys these show it, and whether functions of some modules alone may be run.
        patience: seconds in which one of them has to come up; a TaskMeshError ends the loop if none does.
        modules: what slots import when they start. complain: told when one cannot be started, and why.
        nursery: one that has been started earlier.
        urgent: descriptors that are looked at, too, while a slot's answer is polled for.

    Raises:
        TaskMeshError: there are no descriptors to begin with.
    """
    starts = FirstSlots(pool.machine, patience, complain)
    keys = config.mesh.keys if config is not None else ""
    only = config.pool.only_registered if config is not None else ()

    def take(event: SlotEvent) -> None:
        pool.events.append(event)
        if type(event) is SlotReady:
            starts.came()
        elif type(event) is SlotExited and not event.ready and not host.is_closing:
            starts.failed(event)

    with provided("slots cannot be started here"):
        host = SlotHost(
            on_event=take,
            watch=loop.watch,
            unwatch=loop.unwatch,
            name=name,
            preload=(*modules, *only),
            only=only,
            nursery=nursery,
        )
    pool.attach(host, gateway, keys)
    loop.answers = Answers(pool.machine, host.fileno(), *urgent)
    return host
