"""The hub program: a loop in the main thread, signals, a clean end."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import zmq

from taskmesh.config import ClientConfig, Config
from taskmesh.core.hub.machine import HubMachine
from taskmesh.core.hub.settings import HubSettings
from taskmesh.framing.fragments import Assembler
from taskmesh.http.hub_metrics import hub_answers
from taskmesh.http.metrics import Family
from taskmesh.http.side_port import hub_side
from taskmesh.net import socket_profiles as profiles
from taskmesh.net.endpoints import Endpoints, check_local, tcp_parts
from taskmesh.net.hub.file_limit import FileLimit, file_budget, socket_limit
from taskmesh.net.hub.journal import hub_journal
from taskmesh.net.hub.lanes import LanePorts
from taskmesh.net.hub.memory_limit import MemoryLimit
from taskmesh.net.hub.settings import hub_settings, new_epoch, payload_bytes
from taskmesh.net.hub.shell import HubShell, WallClock
from taskmesh.net.hub.sockets import HubSockets
from taskmesh.security.keys import KeyFolder
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.security.peer_errors import PeerErrors
from taskmesh.security.rate_limit import RateLimits
from taskmesh.security.zap import ZapHandler
from taskmesh.sockets import Context, EndpointError
from taskmesh.system.cgroups import memory_limit
from taskmesh.system.loop import Loop
from taskmesh.system.process import raise_file_limit
from taskmesh.system.signals import StopRequest

Record = Callable[[str, dict[str, object]], None]

FREE_PORT_TRIES = 50


class PoolInHub(Protocol):
    """A pool in the hub's own loop: `taskmesh.net.local_pool.LocalPool`.

    Attributes:
        name: the pool's name.
        events: events for it, to which the hub's sockets append.
    """

    name: str
    events: deque[object]

    def start(self, loop: Loop, hub: deque[object], gateway: str, signer: PayloadSigner | None) -> None:
        """Join the hub's loop, and start the slots."""
        ...

    def families(self) -> list[Family]:
        """Return the pool's metrics."""
        ...

    def close(self) -> None:
        """End the slots."""
        ...


def run_hub(
    config: Config,
    bind: str,
    *,
    ready: Callable[[Endpoints], None],
    record: Record,
    pool: PoolInHub | None = None,
    parent: int = 0,
    deployments: tuple[str, ...] = (),
) -> None:
    """Run a hub until it is asked to stop.

    Args:
        config: the user's settings.
        bind: the gateway's address; with port 0 three free ports are used.
        ready: called with the addresses once all of them listen.
        record: logs events.
        pool: a pool in the same process.
        parent: a process id whose end ends the hub too, 0 for none.
        deployments: in Kubernetes, the Deployments whose pods' deletion costs it keeps.

    Raises:
        InsecureBind: the address is beyond loopback and ipc, and no keys are in use.
        KeysUnusable: the hub's keys are missing, or open to others.
        ConfigError: the address or a setting cannot be used.
        EndpointError: the address is taken.
        TaskMeshError: no slot could be started within `mesh.open_timeout`.
    """
    check_local(bind, "binding", keys=bool(config.mesh.keys))
    settings, loop = affordable(config, record, pool), new_loop()
    with (
        Context(max_sockets=socket_limit(settings.max_pools)) as context,
        StopRequest(loop, parent).listening() as stop,
        hub_journal(config.hub) as journal,
        hub_side(config, loop, record, deployments) as reception,
    ):
        settings = replace(settings, journaled=journal is not None)
        events: deque[object] = deque()
        sockets = listen(
            context, loop, events, record, config=config, settings=settings, bind=bind, pool=pool
        )
        hub = HubShell(HubMachine(settings, time.monotonic()), sockets, events, journal)
        files = FileLimit(raise_file_limit(), sockets.listeners, events, sockets.peer_errors.add)
        loop.parts = [hub]
        memory = MemoryLimit(sockets.cut_off, sockets.peer_errors.add)
        loop.timers = [*sockets.timers, files, memory, WallClock(events)]
        if journal is not None:
            journal.start(loop, hub)
        try:
            if pool is not None:
                pool.start(loop, events, sockets.endpoints.gateway, sockets.signer)
            if reception is not None:
                reception.serve(answers_of(hub.machine, sockets, pool))
            ready(sockets.endpoints)
            stop.turn_until_asked()
        finally:
            report_tasks_left(hub.machine, record, parent)
            for part in [part for part in (pool, files, sockets) if part is not None]:
                part.close()


def answers_of(
    machine: HubMachine, sockets: HubSockets, pool: PoolInHub | None
) -> dict[str, Callable[[], Any]]:
    """Return the answers of a hub and of the pool in its process to those who ask over HTTP."""
    families = pool.families if pool is not None else None
    return hub_answers(machine, sockets.peer_errors.counts, families)


def report_tasks_left(machine: HubMachine, record: Record, parent: int) -> None:
    """Log how many tasks a hub leaves behind, unless it is a child of its only client."""
    total, orphans = len(machine.state.ledger.tasks), machine.clients.orphans
    if total and machine.state.journal is not None:
        text = "a hub with this journal goes on with those that are durable; clients submit theirs again"
        record("tasks.left", {"tasks": total, "orphans": orphans, "text": text})
    elif total and not parent:
        record(
            "tasks.left",
            {
                "tasks": total,
                "orphans": orphans,
                "text": f"{orphans} are lost, for their clients have left, but for what pools run of them; "
                f"{total - orphans} come again from their clients when a hub is back",
            },
        )


def affordable(config: Config, record: Record, pool: PoolInHub | None = None) -> HubSettings:
    """Return the hub machine's settings, with no more pools than there are files for; log its limits.

    Raises:
        ConfigError: there are not even enough files for one pool, or less memory than payloads are to take.
    """
    budget = file_budget(config.hub.max_pools)
    if budget.pools < config.hub.max_pools:
        record("limits", {"open_files": budget.files, "max_pools": budget.pools})
    settings = hub_settings(config, epoch=new_epoch(), wired=True)
    settings = replace(settings, max_pools=budget.pools, local=pool.name if pool is not None else "")
    record(
        "memory",
        {
            "limit": memory_limit(),
            "max_bytes": payload_bytes(config),
            "calls": settings.max_bytes,
            "results": settings.result_bytes,
            "max_payload": settings.max_payload,
            "each_client": settings.client_max_bytes,
        },
    )
    asked = config.client.max_bytes
    if asked > settings.client_max_bytes and asked != ClientConfig().max_bytes:
        text = "lower client.max_bytes, raise hub.max_bytes, or give the hub more memory"
        record("limits", {"client_max_bytes": settings.client_max_bytes, "asked": asked, "text": text})
    return settings


def new_loop() -> Loop:
    """Return a loop that ZeroMQ sockets can take part in."""
    return Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)


def listen(
    context: Context,
    loop: Loop,
    events: deque[object],
    record: Record,
    *,
    config: Config,
    settings: HubSettings,
    bind: str,
    pool: PoolInHub | None = None,
) -> HubSockets:
    """Bind a hub's sockets; with port 0 look for three free ports in a row.

    Args:
        context: makes the sockets.
        loop: watches them.
        events: the hub's events.
        record: logs events.
        config: the user's settings.
        settings: the hub machine's, as `affordable` returns them.
        bind: the gateway's address.
        pool: a pool in the same loop.

    Raises:
        EndpointError: an address is taken.
        KeysUnusable: the hub's keys are missing, or open to others.
    """
    keys = KeyFolder(config.mesh.keys) if config.mesh.keys else None
    ports = LanePorts(config.hub.lanes)
    free = bind.startswith("tcp://") and bind.endswith(":0")
    tries = FREE_PORT_TRIES if free else 1
    for left in reversed(range(tries)):
        peer_errors = PeerErrors(record)
        zap_handler = ZapHandler(context, loop, keys, record, peer_errors) if keys is not None else None
        sockets = HubSockets(
            context,
            loop,
            events,
            record,
            local_pool=pool.name if pool is not None else "",
            local=pool.events if pool is not None else None,
            zap_handler=zap_handler,
            ports=ports,
            assembler=assembler(settings, keyed=keys is not None),
            max_pools=config.hub.max_pools,
            peer_errors=peer_errors,
            rates=RateLimits(config.hub.key_messages_per_s, config.hub.key_bytes_per_s),
        )
        try:
            sockets.bind(free_ports(bind) if free else Endpoints.of(bind))
        except EndpointError:
            sockets.close()
            if not left:
                raise
        except BaseException:
            sockets.close()
            raise
        else:
            break
    return sockets


def assembler(settings: HubSettings, *, keyed: bool) -> Assembler:
    """Return an assembler of large messages: one key may take half as many bytes as all together."""
    share = settings.arriving_bytes
    return Assembler(2 * share, share if keyed else 0, 2 * settings.max_payload + profiles.BATCHES)


def free_ports(bind: str) -> Endpoints:
    """Return endpoints on three ports in a row that nobody uses now.

    Plain sockets look for them: libzmq gives a port back some time after its socket was closed.

    Raises:
        EndpointError: the host is not this machine's.
    """
    host, _ = tcp_parts(bind)
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with contextlib.ExitStack() as probes:
        first = 0
        try:
            for number in range(3):
                probe = probes.enter_context(socket.socket(family, socket.SOCK_STREAM))
                probe.bind((host.strip("[]").replace("*", ""), first + number if first else 0))
                first = first or probe.getsockname()[1]
        except (OSError, OverflowError) as error:
            raise EndpointError(
                f"cannot bind {bind!r}: {error}", getattr(error, "errno", None) or 0
            ) from None
    return Endpoints.of(f"tcp://{host}:{first}")
