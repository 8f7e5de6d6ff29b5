"""The hub and pool programs: a loop in the main thread, signals, a clean end. The CLI and the worker call these."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType

import zmq

from taskmesh.config import Config
from taskmesh.core.events import DrainRequested
from taskmesh.core.hub import HubMachine
from taskmesh.core.pool import PoolMachine
from taskmesh.errors import TaskMeshError
from taskmesh.net.embedded import InProcessLinks, host_slots
from taskmesh.net.endpoints import Endpoints, check_local, tcp_parts
from taskmesh.net.hub_links import HubSockets
from taskmesh.net.hub_shell import HubShell
from taskmesh.net.identity import hub_config, new_epoch, pool_config
from taskmesh.net.loop import Loop
from taskmesh.net.pool_links import PoolSockets
from taskmesh.net.pool_shell import PoolShell
from taskmesh.net.port import WakeUp
from taskmesh.sockets import Context, EndpointError, Router

Record = Callable[[str, dict[str, object]], None]


class Stop:
    """Why and how a program is to end: SIGTERM, SIGINT, or its parent's death.

    Attributes:
        asked: how often it was asked. parent_gone: there is nobody left to serve.
    """

    def __init__(self, loop: Loop, parent: int = 0) -> None:
        self.asked = 0
        self.parent_gone = False
        self._loop = loop
        self._parent = parent
        self._wake_up = WakeUp()
        self._pidfd = -1

    @contextlib.contextmanager
    def listening(self) -> Iterator[Stop]:
        """Hears signals, and the end of the parent process if one was named."""
        self._loop.watch(self._wake_up.fd, self._wake_up.heard)
        former = {
            number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)
        }
        if self._parent:
            try:
                self._pidfd = os.pidfd_open(self._parent)
                self._loop.watch(self._pidfd, self._orphaned)
            except ProcessLookupError:
                self.parent_gone = True
        try:
            yield self
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            if self._pidfd >= 0:
                self._loop.unwatch(self._pidfd)
                os.close(self._pidfd)
            self._loop.unwatch(self._wake_up.fd)
            self._wake_up.close()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        self._wake_up.ring()

    def _orphaned(self) -> None:
        self.parent_gone = True


def run_hub(
    config: Config,
    bind: str,
    *,
    slots: int = 0,
    ready: Callable[[Endpoints], None],
    record: Record,
    parent: int = 0,
) -> None:
    """Runs a hub until it is asked to stop; with `slots` also a pool in the same process.

    Args:
        bind: the gateway's address; port 0 takes three free ports.
        ready: called with the addresses once all of them listen. record: told what is worth telling.
        parent: process id whose end ends the hub too, 0 for none.

    Raises:
        InsecureBind: the address is beyond loopback and ipc. ConfigError: it is none.
        EndpointError: it is taken.
    """
    check_local(bind, "binding")
    raise_file_limit()
    now = time.monotonic()
    loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
    with Context() as context, Stop(loop, parent).listening() as stop:
        links = InProcessLinks()
        settings = pool_config(config, slots=max(1, slots))
        hub_settings = hub_config(config, epoch=new_epoch())
        sockets = listen(context, loop, links, record, bind, settings.pool if slots else "")
        hub = HubShell(HubMachine(hub_settings, now), sockets)
        hub.events = links.hub
        loop.parts = [hub, sockets]
        host = None
        if slots:
            pool = PoolShell(PoolMachine(settings, now), links)
            pool.events = links.pool
            host = host_slots(loop, pool, settings.pool)
            loop.parts.append(pool)
        try:
            ready(sockets.endpoints)
            while not stop.asked and not stop.parent_gone:
                loop.turn()
        finally:
            if host is not None:
                host.close(timeout=1.0)
            sockets.close()


def listen(
    context: Context, loop: Loop, links: InProcessLinks, record: Record, bind: str, local_pool: str
) -> HubSockets:
    """Binds a hub's sockets; with port 0 it looks for three free ports in a row."""
    free = bind.startswith("tcp://") and bind.endswith((":0", ":*"))
    for attempt in range(50):
        sockets = HubSockets(context, loop, links.hub, record, local_pool, links.pool if local_pool else None)
        try:
            sockets.bind(free_ports(context, bind) if free else Endpoints.of(bind))
        except EndpointError:
            sockets.close()
            if not free or attempt == 49:
                raise
        else:
            return sockets
    raise AssertionError("unreachable")


def free_ports(context: Context, bind: str) -> Endpoints:
    """Endpoints whose gateway's port the kernel has just given out."""
    with Router(context) as probe:
        host, port = tcp_parts(probe.bind(bind.rsplit(":", 1)[0] + ":*"))
    return Endpoints.of(f"tcp://{host}:{min(port, 65533)}")


def run_pool(
    config: Config,
    address: str,
    *,
    slots: int,
    name: str = "",
    ready: Callable[[str], None],
    preload: tuple[str, ...] = (),
) -> None:
    """Runs a pool until it has drained or its hub refuses it; SIGTERM drains, a second one ends it at once.

    Args:
        address: the hub's gateway. slots: how many tasks at once. preload: modules that slots import at start.
        ready: called with the pool's id when its first session is open.

    Raises:
        TaskMeshError: the hub refuses this pool.
        InsecureBind, ConfigError: the address cannot be used.
    """
    check_local(address, "dialling")
    raise_file_limit()
    now = time.monotonic()
    loop = Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)
    settings = replace(pool_config(config, slots=slots, name=name), hello=0.2)
    with Context() as context, Stop(loop).listening() as stop:
        machine = PoolMachine(settings, now)
        links = InProcessLinks()
        sockets = PoolSockets(context, loop, Endpoints.of(address), settings.pool, links.pool)
        pool = PoolShell(machine, sockets)
        pool.events = links.pool
        host = host_slots(loop, pool, settings.pool, preload)
        loop.parts = [pool]
        told = draining = False
        try:
            while pool.left is None and stop.asked < 2:
                loop.turn()
                if machine.session and not told:
                    told = True
                    ready(settings.pool)
                if stop.asked and not draining:
                    draining = True
                    pool.events.append(DrainRequested(config.pool.grace))
        finally:
            host.close(timeout=1.0)
            sockets.close()
    if pool.left:
        raise TaskMeshError(f"the hub refuses this pool: {pool.left}")


def raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard one: a hub needs three for each pool."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
