"""A hub that listens: its sockets and its limits are parts and timers of its loop, too."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from functools import partial

from taskmesh.config import ClientConfig, Config
from taskmesh.hub.embedded_hub import EmbeddedHub, LocalLinks, Record
from taskmesh.hub.file_limit import FileLimit, file_budget, socket_limit
from taskmesh.hub.journal.journal import HubJournal
from taskmesh.hub.lanes import LanePorts
from taskmesh.hub.machine import owners
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.hub.machine.views.quantities import Bytes
from taskmesh.hub.memory_limit import MemoryLimit
from taskmesh.hub.settings import hub_settings, new_epoch, payload_bytes
from taskmesh.hub.sockets import HubAccess, HubSockets
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.endpoints import Endpoints, tcp_parts
from taskmesh.messages.fragments import Assembler
from taskmesh.security.keys import KeyFolder
from taskmesh.sockets import Context, EndpointError
from taskmesh.system.cgroups import memory_limit
from taskmesh.system.loop import Loop
from taskmesh.system.process import raise_file_limit

FREE_PORT_TRIES = 50


class ListeningHub(EmbeddedHub):
    """A hub with its sockets.

    Args:
        loop: the loop.
        config: the user's settings.
        journal: where tasks are written down, if there is one.
        record: logs events.
        bind: the gateway's address; with port 0 three free ports are used.
        private: the address of a gateway for own processes; by default it has a folder of its own, and opens
            when its address is asked for.

    Attributes:
        sockets: its sockets.

    Raises:
        ConfigError: a setting cannot be used.
        EndpointError: the address is taken.
        KeysUnusable: the hub's keys are missing, or open to others.
    """

    def __init__(
        self,
        loop: Loop,
        config: Config,
        journal: HubJournal | None,
        record: Record,
        *,
        bind: str,
        private: str = "",
    ) -> None:
        settings = affordable(config, record)
        with contextlib.ExitStack() as closing:
            context = closing.enter_context(Context(max_sockets=socket_limit(settings.max_pools)))
            links = LocalLinks(loop, record, private)
            links.sockets = self.sockets = sockets = listen(context, loop, links, config, settings, bind)
            closing.callback(sockets.close)
            closing.callback(links.private.close)
            if private:
                links.private.address()
            super().__init__(loop, links, settings, journal)
            sockets.is_another_s = partial(owners.is_another_s, self.machine.state)
            refused = sockets.peer_errors.add
            files = FileLimit(raise_file_limit(), sockets.listeners, links.events, refused)
            closing.callback(files.close)
            loop.timers += [*sockets.timers, files, MemoryLimit(sockets.cut_off, refused)]
            self._closing = closing.pop_all()

    def close(self) -> None:
        self._closing.close()


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
            "limit": Bytes(memory_limit()),
            "max_bytes": Bytes(payload_bytes(config)),
            "calls": Bytes(settings.max_bytes),
            "results": Bytes(settings.result_bytes),
            "max_payload": Bytes(settings.max_payload),
            "each_client": Bytes(settings.client_max_bytes),
        },
    )
    asked = config.client.max_bytes
    if asked > settings.client_max_bytes and asked != ClientConfig().max_bytes:
        text = "lower client.max_bytes, raise hub.max_bytes, or give the hub more memory"
        granted = Bytes(settings.client_max_bytes)
        record("limits", {"client_max_bytes": granted, "asked": Bytes(asked), "text": text})
    return settings


def listen(
    context: Context, loop: Loop, links: LocalLinks, config: Config, settings: HubSettings, bind: str
) -> HubSockets:
    """Bind a hub's sockets; with port 0 look for three free ports in a row.

    Args:
        context: makes the sockets.
        loop: watches them.
        links: the hub's.
        config: the user's settings.
        settings: the hub machine's, as `affordable` returns them.
        bind: the gateway's address.

    Raises:
        EndpointError: an address is taken.
        KeysUnusable: the hub's keys are missing, or open to others.
    """
    keys = KeyFolder(config.mesh.keys) if config.mesh.keys else None
    share = settings.arriving_bytes  # one key may take half as many as all together
    largest = 2 * settings.max_payload + profiles.BATCHES
    ports, most = LanePorts(config.hub.lanes), config.hub.max_pools
    free = bind.startswith("tcp://") and bind.endswith(":0")
    tries = FREE_PORT_TRIES if free else 1
    while True:
        tries -= 1
        assembler = Assembler(2 * share, share if keys is not None else 0, largest)
        sockets = HubSockets(context, loop, links, HubAccess(keys, ports, assembler, most))
        try:
            sockets.bind(free_ports(bind) if free else Endpoints.of(bind))
        except BaseException as error:
            sockets.close()
            if not (tries and isinstance(error, EndpointError)):
                raise
        else:
            return sockets


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
