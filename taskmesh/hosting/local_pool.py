"""A pool in the loop of its hub, as an embedded mesh and `taskmesh up` have one."""

from __future__ import annotations

from collections import deque

from taskmesh.config import Config
from taskmesh.core.events import DrainRequested, FromPool
from taskmesh.http.metrics import Family
from taskmesh.hub.embedded_hub import EmbeddedHub, Intake, LocalLinks, OwnPool
from taskmesh.messages import mesh_messages as m
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.metrics import pool_families
from taskmesh.pool.settings import pool_settings
from taskmesh.pool.shell import Gateway, PoolShell
from taskmesh.pool.slot_starter import FAREWELL, slots_in
from taskmesh.pool.slots.fork_server_client import NO_OPTIONS, ForkServerSupervisor, SlotOptions, SlotSettings
from taskmesh.pool.startup import SlotStarts
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.system.process import raise_file_limit


class LocalHubLink:
    """A pool's link to a hub in the same loop: its messages are the hub's events.

    Args:
        hub: the hub's links.
        keys: the folder of keys for its tasks; empty for none.
    """

    def __init__(self, hub: LocalLinks, keys: str) -> None:
        self.events: deque[object] = deque()
        self._hub: Intake = hub.events
        self._signer = hub.signer
        self._private = hub.private
        self._keys = keys

    def send(self, message: m.PoolMessage) -> None:
        """Pass a message on, results signed."""
        if self._signer is not None and isinstance(message, m.Results):
            message = self._signer.results(message)
        self._hub.append(FromPool(message))

    def beat(self, message: m.Beat) -> None:
        self._hub.append(FromPool(message))

    def dial(self, endpoint: str, max_payload: int = 0) -> None:
        """Do nothing: the lane is a queue."""

    def hang_up(self) -> None:
        """Do nothing: the lane is a queue."""

    def gateway(self) -> Gateway:
        from taskmesh.security.keys import HUB  # ZeroMQ, as the private gateway

        return Gateway(self._private.address(), self._keys, HUB)


class LocalPool:
    """A pool that has joined its hub's loop and starts its slots.

    Args:
        config: the user's settings.
        loop: the hub's loop.
        hub: the hub.
        name: the pool's name.
        options: of its slots, unless `fork_server` has some.
        fork_server: forks the slots, if it has been started earlier.

    Attributes:
        machine: its machine.
        host: its slots.

    Raises:
        ConfigError: the name, or one of a queue or tag, cannot be used.
        TaskMeshError: there are no descriptors to begin with.
    """

    def __init__(
        self,
        config: Config,
        loop: Loop,
        hub: EmbeddedHub,
        *,
        name: str = "",
        options: SlotOptions = NO_OPTIONS,
        fork_server: ForkServerSupervisor | None = None,
    ) -> None:
        options = options if fork_server is None else fork_server.slots.options
        settings = pool_settings(config, name, options=options)
        if settings.shared:  # many slots, of half a dozen descriptors each
            raise_file_limit()
        link = LocalHubLink(hub.links, config.mesh.keys)
        self.machine = PoolMachine(settings, monotonic())
        fork_server = fork_server or ForkServerSupervisor(
            SlotSettings.of(config.pool, settings.pool, options)
        )
        starts = SlotStarts(self.machine, config.mesh.open_timeout)
        self.host = slots_in(loop, self.machine, fork_server, starts, link.events, hub.links.record)
        self._shell = PoolShell(self.machine, link, self.host, hub.links.record)
        hub.links.pool = OwnPool(settings.pool, link.events, hub.links.signer)
        loop.parts.append(self._shell)
        loop.settle()

    def families(self) -> list[Family]:
        return pool_families(self.machine)

    def drain(self) -> None:
        self._shell.events.append(DrainRequested(self.machine.config.grace))
        self._shell.turn(monotonic())

    @property
    def has_left(self) -> bool:
        return self._shell.left is not None

    def close(self, timeout: float = FAREWELL) -> None:
        self.host.close(timeout)
