"""The embedded mesh: one thread whose loop drives client, hub and one pool; slots are child processes.

Lane, collector and control are in-process queues here: the three machines run in one loop and hand each other
messages by reference. Every ZeroMQ call would release the GIL, which a computing caller then keeps for 5 ms
(docs/adr/0003). Nothing listens anywhere, and ZeroMQ is not even imported, until a task submits tasks.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from taskmesh.client.port.port import SubmitPort
from taskmesh.client.port.settings import client_settings
from taskmesh.client.port.shell import OpenTasks
from taskmesh.config import Config
from taskmesh.core.actions import Send
from taskmesh.core.events import FromClient, FromHub, FromHubToClient
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.private_gateway import PrivateGateway
from taskmesh.hub.settings import hub_settings, new_epoch
from taskmesh.hub.shell import HubShell, WallClock
from taskmesh.messages import mesh_messages as m
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.settings import pool_settings
from taskmesh.pool.shell import LocalHubLink, PoolShell
from taskmesh.pool.slot_starter import pool_with_slots
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor
from taskmesh.pool.slots.supervisor import SlotSupervisor
from taskmesh.pool.startup import SlotStarts
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.system.process import provided
from taskmesh.system.wakeup import Wakeup

if TYPE_CHECKING:
    from taskmesh.hub.journal.journal import HubJournal


class EmbeddedHubLinks:
    """The hub's links to pool and client in the same loop: its messages are their events.

    Args:
        client: the id of this process's client.
        for_client: its events.
        for_pool: the pool's events.
        nested: the gateway for clients in slots, whose tasks submit tasks.
    """

    def __init__(
        self, client: int, for_client: deque[object], for_pool: deque[object], nested: PrivateGateway
    ) -> None:
        self._client = client
        self._for_client = for_client
        self._for_pool = for_pool
        self._nested = nested

    def push(self, session: int, message: m.Tasks) -> None:
        self._for_pool.append(FromHub(message))

    def publish(self, pool: str, message: m.ToPool) -> None:
        self._for_pool.append(FromHub(message))

    def send_client(self, client: int, message: m.ToClient) -> None:
        """Pass a message to this process's client, or send it to one in a slot."""
        if client == self._client:
            self._for_client.append(FromHubToClient(message))
        else:
            self._nested.send_client(client, message)

    def open_lane(self, session: int, pool: str, key: bytes) -> str:
        """Bind nothing; return a name that says so."""
        return "embedded"

    def close_lane(self, session: int) -> None:
        """Do nothing: the lane is a queue."""

    def record(self, kind: str, fields: dict[str, object]) -> None:
        """Do nothing: the hub machine keeps its last events itself."""


class EmbeddedPort(SubmitPort):
    """A SubmitPort whose hub and pool live in a thread of this process.

    Args:
        open_tasks: the client's pending table.
        config: the user's settings.
        fork_server: forks its slots.
    """

    def __init__(self, open_tasks: OpenTasks, config: Config, fork_server: ForkServerSupervisor) -> None:
        super().__init__(open_tasks, client_settings(config))
        self._config = config
        self._fork_server = fork_server
        self._for_hub: deque[object] = deque()
        self._pool: PoolShell | None = None
        self._resources = contextlib.ExitStack()

    def start(self, timeout: float) -> None:
        """Start fork server and thread; return when the client's session is open.

        Raises:
            HubUnreachable: the thread did not come up within `timeout` seconds.
            TaskMeshError: the system has no descriptors, threads or the like for it.
        """
        try:
            with provided():
                self._compose()
        except BaseException:
            if self._pool is not None:
                self._pool.host.close(timeout=0)
            self._resources.close()
            self._fork_server.reap()
            raise
        self._wait_for_own_hub(timeout)

    def _compose(self) -> None:
        """Put the machines into a loop, and start its thread."""
        now = monotonic()
        wake_up = self._wake_up = Wakeup()
        loop = Loop(idle=self._about_to_block, awake=self._blocked)
        for_pool: deque[object] = deque()
        nested = PrivateGateway(loop, self._for_hub)
        links = EmbeddedHubLinks(self.client, self._shell.events, for_pool, nested)
        journal = self._open_journal()
        settings = replace(hub_settings(self._config, epoch=new_epoch()), journaled=journal is not None)
        hub = HubShell(HubMachine(settings, now), links, events=self._for_hub, journal=journal)
        slots = self._config.pool.slots
        pool_machine = PoolMachine(pool_settings(self._config, slots=slots, name="local"), now)
        pool = self._pool = pool_with_slots(
            loop,
            pool_machine,
            LocalHubLink(self._for_hub),
            nested.address,
            SlotStarts(pool_machine, self._config.mesh.open_timeout),
            events=for_pool,
            fork_server=self._fork_server,
            urgent=(wake_up.fd,),
        )
        loop.parts = [self._shell, hub, pool]
        loop.timers.append(WallClock(hub.events))  # the pool has its own there
        loop.watch(wake_up.fd, wake_up.clear)
        if journal is not None:
            journal.start(loop, hub)
        self._start_thread("taskmesh-hub", lambda: self._work(loop, pool.host, nested))

    def _open_journal(self) -> HubJournal | None:
        if not self._config.hub.journal and not self._config.hub.journal_file:
            return None
        from taskmesh.hub.journal.journal import hub_journal

        return self._resources.enter_context(hub_journal(self._config.hub))

    def forked(self) -> None:
        """Close this port's descriptors in a forked child, its slots' among them."""
        super().forked()
        if self._pool is not None:
            self._pool.host.close_after_fork()

    def _send(self, action: Send) -> None:
        self._for_hub.append(FromClient(self.client, action.message))

    def _could_act(self) -> bool:
        """Return True if a slot is idle (or still starting: the first result is waited for)."""
        if self._pool is not None:
            for slot in self._pool.machine.slots.values():
                if not slot.count and slot.spare_since is None:
                    return True
        return False

    def _work(self, loop: Loop, host: SlotSupervisor, nested: PrivateGateway) -> None:
        try:
            while not self._closing.is_set():
                loop.turn()
        finally:
            host.close(timeout=0.1 if self._cancel else 1.0)
            nested.close()
            self._resources.close()
