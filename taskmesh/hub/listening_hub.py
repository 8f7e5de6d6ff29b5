"""A hub that listens: its machine, its sockets and its limits, as parts and timers of a loop."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import zmq

from taskmesh.config import ClientConfig, Config
from taskmesh.core.events import FromHubToClient
from taskmesh.http.metrics import Family
from taskmesh.hub.file_limit import FileLimit, file_budget
from taskmesh.hub.journal.journal import HubJournal
from taskmesh.hub.lanes import LanePorts
from taskmesh.hub.machine import owners
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.memory_limit import MemoryLimit
from taskmesh.hub.private_gateway import PrivateGateway
from taskmesh.hub.settings import hub_settings, new_epoch, payload_bytes
from taskmesh.hub.shell import HubShell, WallClock
from taskmesh.hub.sockets import HubSockets
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.endpoints import Endpoints, tcp_parts
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.fragments import Assembler
from taskmesh.security.keys import KeyFolder
from taskmesh.security.payload_signing import ClientSigner, PayloadSigner
from taskmesh.security.peer_errors import PeerErrors
from taskmesh.security.zap import ZapHandler
from taskmesh.sockets import Context, EndpointError
from taskmesh.system.cgroups import memory_limit
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.system.process import raise_file_limit

Record = Callable[[str, dict[str, object]], None]

FREE_PORT_TRIES = 50


class PoolInHub(Protocol):
    """A pool in the hub's own loop: `taskmesh.hosting.local_pool.LocalPool`.

    Attributes:
        name: the pool's name.
        events: events for it, to which the hub's sockets append.
    """

    name: str
    events: deque[object]

    @property
    def has_left(self) -> bool:
        """True once it has drained."""
        ...

    def start(
        self, loop: Loop, hub: deque[object], gateway: Callable[[], str], signer: PayloadSigner | None
    ) -> None:
        """Join the hub's loop, and start the slots."""
        ...

    def families(self) -> list[Family]: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


class OwnClient(NamedTuple):
    """A client in the hub's own loop: its id, its events, and its signatures where a mesh key is in use."""

    client: int
    events: deque[object]
    signer: ClientSigner | None


class OwnLinks:
    """HubLinks of a hub that has clients of its own: in its loop, or by a gateway that asks for no keys.

    Args:
        sockets: the links to everybody else.
        private: the gateway for own processes.
        own: the client in the same loop, if there is one.
    """

    def __init__(self, sockets: HubSockets, private: PrivateGateway, own: OwnClient | None) -> None:
        self.push, self.publish = sockets.push, sockets.publish
        self.open_lane, self.close_lane = sockets.open_lane, sockets.close_lane
        self.record = sockets.record
        self._sockets = sockets
        self._private = private
        self._own = own
        sockets.is_taken = self._is_own

    def _is_own(self, client: int) -> bool:
        """Return True if a client's id is one that nobody else may have."""
        return self._private.knows(client) or (self._own is not None and client == self._own.client)

    def send_client(self, client: int, message: m.ToClient) -> None:
        """Pass a message to the client in the same loop, or send it to another one."""
        own = self._own
        if own is not None and client == own.client:
            verified = message if own.signer is None else own.signer.verified(message)
            own.events.append(FromHubToClient(verified))
        elif self._private.knows(client):
            self._private.send_client(client, message)
        else:
            self._sockets.send_client(client, message)


class ListeningHub:
    """A hub with its sockets, which has added its parts and timers to a loop.

    Args:
        context: makes the sockets.
        loop: the loop.
        record: logs events.
        config: the user's settings.
        settings: the hub machine's, as `affordable` returns them.
        bind: the gateway's address; with port 0 three free ports are used.
        pool: a pool in the same loop, which starts afterwards.
        journal: where tasks are written down, if there is one.
        private: the address of a gateway for own processes; by default it has a folder of its own, and opens
            when its address is asked for.
        own: a client in the same loop, if there is one.

    Attributes:
        events: the events of its machine.
        machine: its machine.
        sockets: its sockets.
        private: the gateway for own processes.

    Raises:
        EndpointError: the address is taken.
        KeysUnusable: the hub's keys are missing, or open to others.
    """

    def __init__(
        self,
        context: Context,
        loop: Loop,
        record: Record,
        config: Config,
        settings: HubSettings,
        *,
        bind: str,
        pool: PoolInHub | None = None,
        journal: HubJournal | None = None,
        private: str = "",
        own: OwnClient | None = None,
    ) -> None:
        settings = replace(settings, journaled=journal is not None)
        self.events: deque[object] = deque()
        self.sockets = sockets = listen(
            context, loop, self.events, record, config=config, settings=settings, bind=bind, pool=pool
        )
        self.private = PrivateGateway(loop, self.events, private)
        if private:
            self.private.address()
        self.machine = HubMachine(settings, monotonic())
        sockets.is_another_s = partial(owners.is_another_s, self.machine.state)
        links = OwnLinks(sockets, self.private, own)
        shell = HubShell(self.machine, links, self.events, journal)
        refused = sockets.peer_errors.add
        self._files = FileLimit(raise_file_limit(), sockets.listeners, self.events, refused)
        memory = MemoryLimit(sockets.cut_off, refused)
        loop.parts.append(shell)
        loop.timers += [*sockets.timers, self._files, memory, WallClock(self.events)]
        if journal is not None:
            journal.start(loop, shell)

    def close(self) -> None:
        self._files.close()
        self.private.close()
        self.sockets.close()


def affordable(config: Config, record: Record) -> HubSettings:
    """Return the hub machine's settings, with no more pools than there are files for; log its limits.

    Raises:
        ConfigError: there are not even enough files for one pool, or less memory than payloads are to take.
    """
    budget = file_budget(config.hub.max_pools)
    if budget.pools < config.hub.max_pools:
        record("limits", {"open_files": budget.files, "max_pools": budget.pools})
    settings = hub_settings(config, epoch=new_epoch(), wired=True)
    settings = replace(settings, max_pools=budget.pools)
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
