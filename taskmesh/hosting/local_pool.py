"""A pool in the process of its hub, as `taskmesh up` and `Mesh(hub="process")` have one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from taskmesh.config import Config
from taskmesh.core.events import DrainRequested
from taskmesh.http.metrics import Family
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.metrics import pool_families
from taskmesh.pool.settings import check_all_names, pool_settings
from taskmesh.pool.shell import LocalHubLink, PoolShell
from taskmesh.pool.slot_starter import FAREWELL, pool_with_slots
from taskmesh.pool.startup import SlotStarts
from taskmesh.security.keys import HUB
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.system.loop import Loop


class LocalPool:
    """A pool in a hub's loop.

    Args:
        config: the user's settings.
        slots: number of tasks that run at once.
        name: the pool's name.
        modules: modules that slots import when they start.

    Attributes:
        name: the pool's name.
        events: the events of its shell, to which the hub's sockets append.

    Raises:
        ConfigError: the name, or one of a queue or tag, cannot be used.
    """

    def __init__(
        self,
        config: Config,
        *,
        slots: int,
        name: str = "",
        modules: tuple[str, ...] = (),
    ) -> None:
        check_all_names(config, name)
        self._config = config
        self._settings = pool_settings(config, slots=slots, name=name)
        self._modules = modules
        self._pool: PoolShell | None = None
        self.name = self._settings.pool
        self.events: deque[object] = deque()

    def start(
        self,
        loop: Loop,
        hub: deque[object],
        gateway: Callable[[], str],
        signer: PayloadSigner | None,
        urgent: tuple[int, ...] = (),
    ) -> None:
        """Join the hub's loop, and start the slots.

        Args:
            loop: the hub's loop.
            hub: the hub's events.
            gateway: returns the address of the hub's private gateway, for tasks that submit tasks.
            signer: signs results, where keys are in use.
            urgent: descriptors that are looked at, too, while a slot's answer is polled for.

        Raises:
            TaskMeshError: there are no descriptors to begin with.
        """
        machine = PoolMachine(self._settings, time.monotonic())
        self._pool = pool_with_slots(
            loop,
            machine,
            LocalHubLink(hub, signer),
            gateway,
            SlotStarts(machine, self._config.mesh.open_timeout),
            self._config,
            events=self.events,
            modules=self._modules,
            urgent=urgent,
            role=HUB,
        )
        loop.parts.append(self._pool)
        loop.settle()

    def families(self) -> list[Family]:
        return pool_families(self._pool.machine) if self._pool is not None else []

    def drain(self) -> None:
        if self._pool is not None:
            self._pool.events.append(DrainRequested(self._config.pool.grace))
            self._pool.turn(time.monotonic())

    @property
    def has_left(self) -> bool:
        return self._pool is None or self._pool.left is not None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.host.close(timeout=FAREWELL)
