"""The port to a hub in another process: a thread whose loop drives the client machine over sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import zmq

from taskmesh.client.port.port import SubmitPort
from taskmesh.client.port.settings import client_settings
from taskmesh.client.port.shell import NoTasks, OpenTasks
from taskmesh.client.port.sockets import GatewayLink
from taskmesh.client.port.watchdog import HubWatchdog
from taskmesh.config import Config
from taskmesh.core.actions import Reconnect, Send
from taskmesh.core.events import Requested
from taskmesh.errors import ConfigError, HubUnreachable, MeshRefused
from taskmesh.link.endpoints import check_dialled, is_local
from taskmesh.messages import mesh_messages as m
from taskmesh.security.keys import CLIENT, HUB, OPERATOR, KeyFolder, credentials_of
from taskmesh.security.payload_signing import ClientSigner
from taskmesh.sockets import Context
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.system.process import provided
from taskmesh.system.wakeup import Wakeup

LOOK = 0.05
"""Seconds between looks at a link that is being made."""
GOODBYE = 2.0
"""Seconds that the end of an operator's session may take."""
LEAVE = 1.0
"""Seconds that the hub has to acknowledge what came last."""
REFUSED = 0.4
"""Seconds for which this machine may refuse a command's connections; a program waits for its hub to start."""


class RemotePort(SubmitPort):
    """A SubmitPort to a hub in another process.

    Args:
        open_tasks: the client's pending table.
        config: the user's settings.
        role: the role whose key is shown, where keys are in use; HUB for none, at a private gateway.
        slot: pool and process of the slot in which this runs, for a task that submits tasks.

    Raises:
        KeysUnusable: the configuration names a directory of keys that lacks one, or that others can read.
    """

    def __init__(self, open_tasks: OpenTasks, config: Config, role: str = CLIENT, slot: str = "") -> None:
        super().__init__(open_tasks, client_settings(config, slot=slot, operator=role == OPERATOR))
        keys = config.mesh.keys
        self._credentials = None if role == HUB else credentials_of(keys, role)
        self._mesh_keys = KeyFolder(keys).mesh_keys() if keys else None
        self._address = config.mesh.address
        self._is_command = config.command_line
        self._link: GatewayLink | None = None
        self._lease = config.hub.lease
        self._patience = config.client.hub_timeout

    def start(self, timeout: float) -> None:
        """Dial the hub; return when it has welcomed this client.

        Raises:
            HubUnreachable: no hub answered within `timeout` seconds.
            MeshRefused: the hub refuses this client.
            ConfigError: the address cannot be used.
            TaskMeshError: the system has no descriptors, threads or the like for the link.
        """
        if not self._address:
            raise ConfigError("no address: give Mesh('tcp://127.0.0.1:5550') or set TASKMESH_ADDRESS")
        check_dialled(self._address, keys=self._credentials is not None)
        with provided():
            loop = self._new_loop(Wakeup())
            loop.use(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
            self._start_thread("taskmesh-client", lambda: self._work(loop))
        unwelcome = self._wait_for_hub(timeout)
        if self._failure is not None:
            self.close(cancel=True, timeout=1.0)
            raise self._failure
        if unwelcome is not None:
            self.close(cancel=True, timeout=1.0)
            raise unwelcome

    def _wait_for_hub(self, timeout: float) -> HubUnreachable | None:
        """Return None when the hub has welcomed this client, else the error that says why it has not."""
        end, opened = monotonic() + timeout, self._shell.opened
        while not opened.wait(max(0.0, min(LOOK, end - monotonic()))) and monotonic() < end:
            if self._is_refused():
                return HubUnreachable(
                    f"no hub listens at {self._address}: `taskmesh hub --bind {self._address}` starts one"
                )
        machine = self._shell.machine
        if machine.open:
            return None
        if machine.refused:
            return MeshRefused(f"the hub at {self._address} refuses this client: {machine.refused}")
        return HubUnreachable(
            f"no hub answered at {self._address} within {timeout:g} s: is one running there? `taskmesh hub "
            f"--bind {self._address}` starts one. Behind a firewall that drops connections, or at its limit "
            "of open files (it says `files.short` then), a hub does not answer either"
        )

    def _is_refused(self) -> bool:
        """Return True if nobody listens there, and this is no program whose hub may be starting too."""
        if self._link is None or not self._is_command or not is_local(self._address):
            return False
        return monotonic() - self._link.refused_since > REFUSED

    def _signer(self) -> ClientSigner | None:
        """Return what signs calls and verifies outcomes, if keys are in use."""
        if self._mesh_keys is None:
            return None
        return ClientSigner(self._mesh_keys, self.client, self._shell.table.specs_of)

    def _watch_more(self, loop: Loop) -> None:
        """Let the loop watch further descriptors of a subclass."""

    def _watchdog(self) -> HubWatchdog:
        return HubWatchdog(self._address, self._lease, self._patience, self._open_tasks.broken, monotonic())

    def _could_act(self) -> bool:
        """Return True while at most one Submit is under way; an acknowledgement of two will wake the loop."""
        return self._shell.machine.under_way < 2

    def _send(self, action: Send) -> None:
        if self._link is not None:
            self._link.send(action.message)

    def _reconnect(self, action: Reconnect) -> None:
        if self._link is not None:
            self._link.reconnect()

    def _work(self, loop: Loop) -> None:
        shell = self._shell
        with Context() as context:
            try:
                self._link = GatewayLink(
                    context,
                    loop,
                    self._address,
                    shell.events,
                    credentials=self._credentials,
                    signer=self._signer(),
                )
                loop.parts = [shell]
                self._watch_more(loop)
                watchdog: HubWatchdog | None = None
                while not self._closing.is_set():
                    loop.turn()
                    if watchdog is not None:
                        watchdog.check(monotonic(), linked=shell.machine.open)
                    elif shell.machine.open:  # until then `start` raises
                        watchdog = self._watchdog()
                self._take_leave(loop)
            finally:
                if self._link is not None:
                    self._link.close(None if shell.machine.open else 0)

    def _take_leave(self, loop: Loop) -> None:
        """Say goodbye once the hub has taken in what came last, such as cancellations.

        A socket that is closed with a message unread resets its connection: what the hub has not read yet is
        lost with it.
        """
        machine, until = self._shell.machine, monotonic() + LEAVE
        loop.settle()
        while machine.open and machine.under_way and monotonic() < until:
            loop.turn()
        self._shell.events.append(Requested(m.ClientBye(cancel=self._cancel)))
        loop.settle()


@contextlib.contextmanager
def operator_session(config: Config, timeout: float) -> Iterator[SubmitPort]:
    """Open a session that asks and steers, until the end of the block.

    Raises:
        HubUnreachable: the hub does not answer in time, or does not let us in.
        ConfigError: the address cannot be used, or keys are missing.
    """
    port = RemotePort(NoTasks(), config, role=OPERATOR)
    port.start(timeout)
    try:
        yield port
    finally:
        port.close(cancel=True, timeout=GOODBYE)
