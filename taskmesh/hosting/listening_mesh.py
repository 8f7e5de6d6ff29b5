"""A mesh that listens: an embedded hub that pools and clients elsewhere dial, in a thread of the program.

Its own client, and its own pool if it has slots, share the hub's loop as in any embedded mesh; what dials in
comes over the sockets of a hub program (docs/adr/0003).
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

import zmq

from taskmesh.client.port.port import SubmitPort
from taskmesh.client.port.settings import client_settings
from taskmesh.client.port.shell import OpenTasks
from taskmesh.config import Config
from taskmesh.core.actions import Send
from taskmesh.core.events import FromClient, Requested
from taskmesh.hosting.local_pool import LocalPool
from taskmesh.hub.file_limit import socket_limit
from taskmesh.hub.journal.journal import hub_journal
from taskmesh.hub.listening_hub import ListeningHub, OwnClient, affordable
from taskmesh.link.endpoints import check_local
from taskmesh.messages import mesh_messages as m
from taskmesh.security.keys import KeyFolder
from taskmesh.security.payload_signing import ClientSigner
from taskmesh.sockets import Context
from taskmesh.system.loop import Loop
from taskmesh.system.process import provided
from taskmesh.system.wakeup import Wakeup

_log = logging.getLogger("taskmesh.hub")


class ListeningPort(SubmitPort):
    """A SubmitPort whose hub listens, in a thread of this process.

    Args:
        open_tasks: the client's pending table.
        config: the user's settings.
    """

    def __init__(self, open_tasks: OpenTasks, config: Config) -> None:
        super().__init__(open_tasks, replace(client_settings(config, wired=True), credit=0))
        self._config = config
        self._hub: ListeningHub | None = None
        self._pool: LocalPool | None = None
        self._signer: ClientSigner | None = None
        self._resources = contextlib.ExitStack()

    def start(self, timeout: float) -> None:
        """Listen, and start the thread; return when the client's session is open.

        Raises:
            InsecureBind: the address is beyond loopback and ipc, and no keys are in use.
            KeysUnusable: the hub's keys are missing, or open to others.
            EndpointError: the address is taken.
            ConfigError: the address or a setting cannot be used.
            HubUnreachable: the thread did not come up within `timeout` seconds.
            TaskMeshError: the system has no descriptors, threads or the like for it.
        """
        check_local(self._config.mesh.bind, "binding", keys=bool(self._config.mesh.keys))
        try:
            with provided():
                self._compose()
        except BaseException:
            self._end()
            raise
        self._wait_for_own_hub(timeout)

    def _compose(self) -> None:
        """Put client, hub and pool into a loop, and start its thread."""
        config, closing = self._config, self._resources
        wake_up = self._wake_up = Wakeup()
        loop = Loop(
            zmq.Poller(),
            readable=zmq.POLLIN,
            writable=zmq.POLLOUT,
            idle=self._about_to_block,
            awake=self._blocked,
        )
        if config.mesh.local_pool:
            self._pool = LocalPool(config, slots=config.pool.slots, name="local")
        settings = affordable(config, _record)
        if config.mesh.keys:
            keys = KeyFolder(config.mesh.keys).mesh_keys()
            self._signer = ClientSigner(keys, self.client, self._shell.table.specs_of)
        else:
            self._open_tasks.memfd = self._pool is not None
        context = closing.enter_context(Context(max_sockets=socket_limit(settings.max_pools)))
        journal = closing.enter_context(hub_journal(config.hub))
        loop.parts.append(self._shell)
        hub = self._hub = ListeningHub(
            context,
            loop,
            _record,
            config,
            settings,
            bind=config.mesh.bind,
            pool=self._pool,
            journal=journal,
            own=OwnClient(self.client, self._shell.events, self._signer),
        )
        self.address = hub.sockets.endpoints.gateway
        loop.watch(wake_up.fd, wake_up.clear)
        if self._pool is not None:
            self._pool.start(loop, hub.events, hub.private.address, hub.sockets.signer, (wake_up.fd,))
        self._start_thread("taskmesh-hub", lambda: self._work(loop))

    def _send(self, action: Send) -> None:
        if self._hub is not None:
            message = action.message if self._signer is None else self._signer.signed(action.message)
            self._hub.events.append(FromClient(self.client, message))

    def _could_act(self) -> bool:
        """Return True unless tasks wait already: then those that come wait behind them."""
        return self._hub is not None and not self._hub.machine.state.ledger.backlog.routes

    def _work(self, loop: Loop) -> None:
        try:
            while not self._closing.is_set():
                loop.turn()
            if self._cancel:  # pools elsewhere are told
                self._shell.events.append(Requested(m.ClientBye(cancel=True)))
                loop.settle()
        finally:
            self._end()

    def _end(self) -> None:
        for part in (self._pool, self._hub):
            if part is not None:
                part.close()
        self._resources.close()


def _record(kind: str, fields: dict[str, object]) -> None:
    """Log an event of the hub, for programs that want to see them."""
    _log.info("%s %s", kind, fields)
