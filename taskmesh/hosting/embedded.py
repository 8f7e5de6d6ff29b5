"""The embedded mesh: one thread whose loop drives client, hub and one pool; slots are child processes.

Lane, collector and control are in-process queues here: the three machines run in one loop and hand each other
messages by reference. Every ZeroMQ call would release the GIL, which a computing caller then keeps for 5 ms
(docs/adr/0003). Nothing listens anywhere, and ZeroMQ is not even imported, until a task submits tasks; or the
mesh listens (`Mesh(bind=)`): what dials in comes over the sockets of a hub program.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import TYPE_CHECKING

from taskmesh.client.port.port import SubmitPort
from taskmesh.client.port.settings import client_settings
from taskmesh.client.port.shell import OpenTasks
from taskmesh.config import Config
from taskmesh.core.actions import Send
from taskmesh.core.events import FromClient, Requested
from taskmesh.errors import HubUnreachable, MeshClosed
from taskmesh.hosting.local_pool import LocalPool
from taskmesh.hub.embedded_hub import EmbeddedHub, LocalLinks, OwnClient
from taskmesh.hub.settings import hub_settings, new_epoch
from taskmesh.messages import mesh_messages as m
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor
from taskmesh.pool.slots.spin_wait import SlotWait
from taskmesh.security.payload_signing import ClientSigner
from taskmesh.system.loop import Loop
from taskmesh.system.process import provided
from taskmesh.system.wakeup import Wakeup

if TYPE_CHECKING:
    from taskmesh.hub.journal.journal import HubJournal
    from taskmesh.hub.private_gateway import PrivateGateway

_log = logging.getLogger("taskmesh.hub")


class EmbeddedPort(SubmitPort):
    """A SubmitPort whose hub, and pool if it has slots, live in a thread of this process.

    Args:
        open_tasks: the client's pending table.
        config: the user's settings.
        fork_server: forks its slots; None if it has none.
    """

    def __init__(
        self, open_tasks: OpenTasks, config: Config, fork_server: ForkServerSupervisor | None
    ) -> None:
        listens = bool(config.mesh.bind)
        if not listens:  # nobody shows it a key
            config = replace(config, mesh=replace(config.mesh, keys=""))
        super().__init__(open_tasks, replace(client_settings(config, wired=listens), credit=0))
        self._config = config
        self._fork_server = fork_server
        self._loop: Loop | None = None
        self._hub: EmbeddedHub | None = None
        self._pool: LocalPool | None = None
        self._signer: ClientSigner | None = None
        self._resources = contextlib.ExitStack()

    def start(self, timeout: float) -> None:
        """Start hub, pool and thread; return when the client's session is open.

        Raises:
            InsecureBind: the address is beyond loopback and ipc, and no keys are in use.
            KeysUnusable: the hub's keys are missing, or open to others.
            EndpointError: the address is taken.
            ConfigError: the address or a setting cannot be used.
            HubUnreachable: the thread did not come up within `timeout` seconds.
            TaskMeshError: the system has no descriptors, threads or the like for it.
        """
        mesh = self._config.mesh
        try:
            if mesh.bind:
                from taskmesh.link.endpoints import check_local

                check_local(mesh.bind, "binding", keys=bool(mesh.keys))
            with provided():
                self._compose()
        except BaseException:
            self._end(0.0)
            if self._fork_server is not None:
                self._fork_server.reap()
            raise
        if not self._shell.opened.wait(timeout):
            self.close(cancel=True, timeout=timeout)
            raise HubUnreachable(f"the embedded hub did not start within {timeout:g} s")
        if self._failure is not None:
            raise self._failure

    def _compose(self) -> None:
        """Put client, hub and pool into a loop, and start its thread."""
        config, wake_up = self._config, Wakeup()
        loop = self._loop = self._new_loop(wake_up)
        loop.parts.append(self._shell)
        journal = self._open_journal()
        if config.mesh.bind:
            hub: EmbeddedHub = self._listening_hub(loop, journal)
        else:
            hub = EmbeddedHub(
                loop, LocalLinks(loop, _record), hub_settings(config, epoch=new_epoch()), journal
            )
        self._hub = hub
        self._for_hub = hub.links.events
        hub.links.client = OwnClient(self.client, self._shell.events, self._signer)
        if self._fork_server is not None:
            pool = self._pool = LocalPool(config, loop, hub, name="local", fork_server=self._fork_server)
            loop.busy_wait = SlotWait(pool.machine, pool.host.fileno(), wake_up.fd)
        self._start_thread("taskmesh-hub", lambda: self._work(loop))

    def _listening_hub(self, loop: Loop, journal: HubJournal | None) -> EmbeddedHub:
        from taskmesh.hub.listening_hub import ListeningHub
        from taskmesh.security.keys import KeyFolder

        mesh = self._config.mesh
        if mesh.keys:
            keys = KeyFolder(mesh.keys).mesh_keys()
            self._signer = ClientSigner(keys, self.client, self._shell.table.specs_of)
        else:
            self._open_tasks.memfd = mesh.local_pool
        hub = ListeningHub(loop, self._config, journal, _record, bind=mesh.bind)
        self.address = hub.sockets.endpoints.gateway
        return hub

    def _open_journal(self) -> HubJournal | None:
        hub = self._config.hub
        if not (hub.journal or hub.journal_file or hub.strict):
            return None
        from taskmesh.hub.journal.journal import hub_journal

        return self._resources.enter_context(hub_journal(hub))

    def gateway(self, timeout: float) -> str:
        """Return the address of the hub's private gateway, which the loop's thread opens; see SubmitPort."""
        hub, loop = self._hub, self._loop
        if hub is None or loop is None or self._closing.is_set():
            raise MeshClosed("this mesh is not open")
        wanted = GatewayWanted(loop, hub.links.private)
        loop.timers.append(wanted)
        self.wake()
        try:
            return wanted.address.result(timeout)
        except FutureTimeout:
            raise HubUnreachable(f"the embedded hub did not answer within {timeout:g} s") from None

    def forked(self) -> None:
        """Close this port's descriptors in a forked child, its slots' among them."""
        super().forked()
        if self._pool is not None:
            self._pool.host.close_after_fork()

    def _send(self, action: Send) -> None:
        message = action.message if self._signer is None else self._signer.signed(action.message)
        self._for_hub.append(FromClient(self.client, message))

    def _could_act(self) -> bool:
        """Return True if a slot is idle (or still starting: the first result is waited for).

        Where pools elsewhere may be, unless tasks wait already: then those that come wait behind them.
        """
        if self._hub is not None and self.address:
            return not self._hub.machine.state.ledger.backlog.routes
        if self._pool is not None:
            for slot in self._pool.machine.slots.values():
                if not slot.count and slot.spare_since is None:
                    return True
        return False

    def _work(self, loop: Loop) -> None:
        try:
            while not self._closing.is_set():
                loop.turn()
            if self._cancel and self.address:  # pools elsewhere are told
                self._shell.events.append(Requested(m.ClientBye(cancel=True)))
                loop.settle()
        finally:
            self._end(0.1 if self._cancel else 1.0)

    def _end(self, timeout: float) -> None:
        """End the slots, which have so many seconds to do so by themselves, then the hub."""
        if self._pool is not None:
            self._pool.close(timeout)
        if self._hub is not None:
            self._hub.close()
        self._resources.close()


class GatewayWanted:
    """Opens the private gateway when the loop comes by: its sockets belong to the loop's thread.

    Args:
        loop: the hub's.
        private: the gateway.

    Attributes:
        address: its address, once it is open.
    """

    deadline = 0.0

    def __init__(self, loop: Loop, private: PrivateGateway) -> None:
        self.address: Future[str] = Future()
        self._loop = loop
        self._private = private

    def turn(self, now: float) -> None:
        self._loop.timers.remove(self)
        try:
            self.address.set_result(self._private.address())
        except Exception as error:  # noqa: BLE001  raised where it was asked for
            self.address.set_exception(error)


def _record(kind: str, fields: dict[str, object]) -> None:
    """Log an event of the hub or the pool, for programs that want to see them."""
    level = logging.getLevelNamesMapping().get(str(fields.get("level", "info")).upper(), logging.INFO)
    _log.log(level, "%s %s", kind, fields)
