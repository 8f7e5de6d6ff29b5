"""The hub and pool programs: a loop in the main thread, signals, a clean end. CLI and worker call these."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import zmq

from taskmesh.config import ClientConfig, Config
from taskmesh.core.events import DrainRequested
from taskmesh.core.hub.machine import HubMachine
from taskmesh.core.hub.settings import HubSettings
from taskmesh.core.pool.machine import PoolMachine
from taskmesh.core.pool.settings import PoolSettings
from taskmesh.errors import ConfigError, TaskMeshError
from taskmesh.framing.fragments import Assembler
from taskmesh.http.hub_metrics import hub_answers
from taskmesh.http.side_port import hub_side, side_port
from taskmesh.net import wires
from taskmesh.net.embedded import InProcessLinks, host_slots
from taskmesh.net.endpoints import Endpoints, check_dialled, check_local, tcp_parts
from taskmesh.net.hub.budget import hub_budget, raise_file_limit, socket_limit
from taskmesh.net.hub.file_limit import FileLimit
from taskmesh.net.hub.links import HubSockets
from taskmesh.net.hub.listening import PortRange
from taskmesh.net.hub.memory_limit import MemoryLimit
from taskmesh.net.hub.settings import hub_config, new_epoch, payload_bytes
from taskmesh.net.hub.shell import HubShell
from taskmesh.net.hub.storing import outcome_store
from taskmesh.net.pool.first_slots import PATIENCE
from taskmesh.net.pool.links import PoolSockets
from taskmesh.net.pool.session_watcher import News, SessionWatcher
from taskmesh.net.pool.settings import pool_config
from taskmesh.net.pool.shell import PoolShell
from taskmesh.net.pool.side_answers import both, pool_answers
from taskmesh.pool.host import SlotHost
from taskmesh.security.keys import WORKER, Credentials, KeyFolder, credentials_of
from taskmesh.security.peer_errors import PeerErrors
from taskmesh.security.rate_limit import RateLimits
from taskmesh.security.zap import ZapHandler
from taskmesh.sockets import Context, EndpointError
from taskmesh.system.cgroups import memory_limit
from taskmesh.system.loop import Loop
from taskmesh.system.stop import Stop
from taskmesh.wire.runs import LONGEST_NAME as LONGEST_TEXT

Record = Callable[[str, dict[str, object]], None]

FREE_PORT_TRIES = 50
LONGEST_NAME = 200
FAREWELL = 0.2
"""Seconds that idle slots have to end by themselves."""


def run_hub(
    config: Config,
    bind: str,
    *,
    slots: int = 0,
    name: str = "",
    modules: tuple[str, ...] = (),
    ready: Callable[[Endpoints], None],
    record: Record,
    parent: int = 0,
    deployments: tuple[str, ...] = (),
) -> None:
    """Runs a hub until it is asked to stop; with `slots` also a pool in the same process.

    Args:
        bind: the gateway's address; port 0 takes three free ports.
        name, modules: the pool's name, and what its slots import when they start.
        ready: called with the addresses once all of them listen. record: told what is worth telling.
        parent: process id whose end ends the hub too, 0 for none.
        deployments: in Kubernetes, those of whose pods it keeps the deletion costs.

    Raises:
        InsecureBind: the address is beyond loopback and ipc, and no keys are in use.
        KeysUnusable: the hub's keys are missing, or open to others.
        ConfigError: it is no address, or a name is not usable. EndpointError: it is taken.
        TaskMeshError: no slot could be started within `mesh.open_timeout`.
    """
    check_local(bind, "binding", keys=bool(config.mesh.keys))
    check_all_names(config, name)
    settled, loop = affordable(config, record), new_loop()
    with (
        Context(max_sockets=socket_limit(settled.max_pools)) as context,
        Stop(loop, parent).listening() as stop,
        outcome_store(config) as (store, restored),
        hub_side(config, loop, record, deployments) as reception,
    ):
        links = InProcessLinks()
        settings = pool_config(config, slots=max(1, slots), name=name)
        settled = replace(settled, stored=store is not None, local=settings.pool if slots else "")
        sockets = listen(context, loop, links, record, config=config, settled=settled, bind=bind)
        hub = HubShell(HubMachine(settled, time.monotonic()), sockets, store)
        links.hub.extend(restored)
        hub.events = links.hub
        files = FileLimit(raise_file_limit(), sockets.listeners, links.hub, sockets.peer_errors.add)
        memory = MemoryLimit(sockets.cut_off, sockets.peer_errors.add)
        loop.parts = [hub, *sockets.parts, files, memory]
        host = None
        answers = hub_answers(hub.machine, sockets.peer_errors.counts)
        try:
            if slots:
                pool, host = local_pool(loop, links, sockets, settings, config, modules)
                answers["metrics"] = both(answers["metrics"], pool.machine)
            if reception is not None:
                reception.serve(answers)
            ready(sockets.endpoints)
            stop.turn_until_asked()
        finally:
            tell_of_tasks_left(hub.machine, record, parent)
            close_all(host, files, sockets)


def close_all(host: SlotHost | None, files: FileLimit, sockets: HubSockets) -> None:
    """Ends the slots, if there are any, and what a hub has open."""
    if host is not None:
        host.close(timeout=FAREWELL)
    files.close()
    sockets.close()


def tell_of_tasks_left(machine: HubMachine, record: Record, parent: int) -> None:
    """A hub that is nobody's child ends: says how many tasks it had, and how many will not come again."""
    total, orphans = len(machine.state.ledger.tasks), machine.clients.orphans
    if total and not parent:
        record(
            "tasks.left",
            {
                "tasks": total,
                "orphans": orphans,
                "text": f"{orphans} are lost, for their clients have left, but for what pools run of them; "
                f"{total - orphans} come again from their clients when a hub is back",
            },
        )


def local_pool(
    loop: Loop,
    links: InProcessLinks,
    sockets: HubSockets,
    settings: PoolSettings,
    config: Config,
    modules: tuple[str, ...],
) -> tuple[PoolShell, SlotHost]:
    """Puts a pool into a hub's loop, and starts its slots."""
    links.seal, gateway = sockets.seal, sockets.endpoints.gateway
    pool = PoolShell(PoolMachine(settings, time.monotonic()), [links])
    pool.events = links.pool
    name = settings.pool
    patience = config.mesh.open_timeout
    host = host_slots(loop, pool, name, lambda _: [gateway], config, patience=patience, modules=modules)
    loop.parts.append(pool)
    loop.settle()
    return pool, host


def affordable(config: Config, record: Record) -> HubSettings:
    """The hub machine's settings, with no more pools than there are files for; tells its limits.

    Raises:
        ConfigError: there are not even enough for one, or less memory than payloads are to take.
    """
    budget = hub_budget(config.hub.max_pools)
    if budget.pools < config.hub.max_pools:
        record("limits", {"open_files": budget.files, "max_pools": budget.pools})
    settled = replace(hub_config(config, epoch=new_epoch(), wired=True), max_pools=budget.pools)
    record(
        "memory",
        {
            "limit": memory_limit(),
            "max_bytes": payload_bytes(config),
            "calls": settled.max_bytes,
            "results": settled.result_bytes,
            "max_payload": settled.max_payload,
            "each_client": settled.client_max_bytes,
        },
    )
    asked = config.client.max_bytes
    if asked > settled.client_max_bytes and asked != ClientConfig().max_bytes:
        cure = "lower client.max_bytes, raise hub.max_bytes, or give the hub more memory"
        record("limits", {"client_max_bytes": settled.client_max_bytes, "asked": asked, "cure": cure})
    return settled


def new_loop() -> Loop:
    """A loop that ZeroMQ sockets can take part in."""
    return Loop(zmq.Poller(), readable=zmq.POLLIN, writable=zmq.POLLOUT)


def listen(
    context: Context,
    loop: Loop,
    links: InProcessLinks,
    record: Record,
    *,
    config: Config,
    settled: HubSettings,
    bind: str,
) -> HubSockets:
    """Binds a hub's sockets; with port 0 it looks for three free ports in a row.

    Args:
        settled: the hub machine's settings, as `affordable` gives them.

    Raises:
        EndpointError: an address is taken. KeysUnusable: the hub's keys are missing, or open to others.
    """
    keys = KeyFolder(config.mesh.keys) if config.mesh.keys else None
    ports = PortRange(config.hub.lanes)
    free = bind.startswith("tcp://") and bind.endswith(":0")
    tries = FREE_PORT_TRIES if free else 1
    for left in reversed(range(tries)):
        local = links.pool if settled.local else None
        peer_errors = PeerErrors(record)
        zap_handler = ZapHandler(context, loop, keys, record, peer_errors) if keys is not None else None
        sockets = HubSockets(
            context,
            loop,
            links.hub,
            record,
            local_pool=settled.local,
            local=local,
            zap_handler=zap_handler,
            ports=ports,
            assembler=assembler(settled, keyed=keys is not None),
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


def assembler(settled: HubSettings, *, keyed: bool) -> Assembler:
    """Makes the assembler of large messages: one key may take half as many bytes as all together."""
    share = settled.arriving_bytes
    return Assembler(2 * share, share if keyed else 0, 2 * settled.max_payload + wires.BATCHES)


def free_ports(bind: str) -> Endpoints:
    """Endpoints on three ports in a row that nobody uses now.

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


def _nothing(kind: str, fields: dict[str, object]) -> None:
    """Where nobody keeps a log."""


def run_pool(
    config: Config,
    addresses: Sequence[str],
    *,
    slots: int,
    name: str = "",
    modules: tuple[str, ...] = (),
    ready: Callable[[str, str], None],
    news: News,
    record: Record = _nothing,
    patience: float = PATIENCE,
    stay: float = 0.0,
) -> bool:
    """Runs a pool until it has drained or all hubs refuse it; a signal drains, a second one ends it at once.

    Args:
        addresses: gateways of hubs; it serves all of them.
        slots: how many tasks at once. modules: what slots import when they start.
        ready: called with the pool's name and a hub's address when its first session is open.
        news: told other things that people should know: a kind and a sentence.
        record: told of tasks that fail.
        patience: seconds in which the first slot has to come up.
        stay: seconds that it waits for a signal after a drain without one.

    Returns:
        Whether it has drained; False when it was cut short.

    Raises:
        TaskMeshError: the hub refuses it, no slot could be started, or (InsecureBind, ConfigError) address,
            name or keys are unusable.
    """
    check_all_names(config, name)
    loop = new_loop()
    hubs = tuple(dict.fromkeys(addresses))
    settings = replace(pool_config(config, slots=slots, name=name, wired=True), hubs=hubs)
    with (
        Context() as context,
        Stop(loop).listening() as stop,
        side_port(config, loop, lambda at: news("http", f"side port at {at}")) as reception,
        contextlib.ExitStack() as closing,
    ):
        pool, sockets = linked_pool(context, loop, settings, config, closing=closing, record=record)
        ways, told = partial(own_first, hubs), partial(news, "slot.failed")
        host = host_slots(
            loop, pool, settings.pool, ways, config, patience=patience, modules=modules, complain=told
        )
        loop.parts = [pool]
        if reception is not None:
            reception.serve(pool_answers(pool, config.pool.grace))
        watcher = SessionWatcher(pool.machine, sockets, ready, news)
        try:
            _turn_until_left(loop, pool, stop, watcher, config.pool.grace)
        finally:
            host.close(timeout=0.0 if pool.left is None else FAREWELL)
            closing.close()
        stop.wait(stay if pool.left == "" else 0.0)
    if not pool.left:
        return pool.left is not None
    raise TaskMeshError(f"the hub refuses this pool: {pool.left}")


def own_first(addresses: Sequence[str], hub: int) -> list[str]:
    """The addresses of all hubs, first the one whose place is given."""
    return [addresses[hub], *(other for other in addresses if other != addresses[hub])]


def linked_pool(
    context: Context,
    loop: Loop,
    settings: PoolSettings,
    config: Config,
    *,
    closing: contextlib.ExitStack,
    record: Record,
) -> tuple[PoolShell, list[PoolSockets]]:
    """A pool without slots so far, and its sockets to each of its hubs, which `closing` closes.

    Raises:
        InsecureBind, ConfigError: an address cannot be used, or keys are missing.
    """
    credentials = worker_credentials(config, settings.hubs)
    raise_file_limit()
    machine = PoolMachine(settings, time.monotonic())
    links, limit = InProcessLinks(), config.pool.max_payload
    sockets: list[PoolSockets] = []
    for hub, address in enumerate(settings.hubs):
        to_hub = PoolSockets(
            *(context, loop, address, settings.pool, links.pool),
            max_payload=limit,
            hub=hub,
            credentials=credentials,
        )
        sockets.append(to_hub)
        closing.callback(to_hub.close)
    pool = PoolShell(machine, sockets)
    pool.events, pool.record = links.pool, record
    return pool, sockets


def _turn_until_left(loop: Loop, pool: PoolShell, stop: Stop, watcher: SessionWatcher, grace: float) -> None:
    """Runs a pool until it has left its hub, or somebody insists."""
    while pool.left is None and stop.asked < 2:
        loop.turn()
        watcher.look(time.monotonic())
        if stop.asked and pool.machine.state != "draining":
            pool.events.append(DrainRequested(grace))


def worker_credentials(config: Config, addresses: Sequence[str]) -> Credentials | None:
    """What a pool shows the hubs at these addresses; None where no keys are in use.

    Raises:
        InsecureBind, ConfigError: an address cannot be used, or keys are missing.
    """
    credentials = credentials_of(config.mesh.keys, WORKER)
    for address in addresses:
        check_dialled(address, keys=credentials is not None)
    return credentials


def check_all_names(config: Config, name: str) -> None:
    """Refuses names of a pool, its queues and tags that cannot be used.

    Raises:
        ConfigError: one is not usable.
    """
    check_name(name)
    check_names((*config.pool.queues, *config.pool.tags))


def check_names(names: Iterable[str]) -> None:
    """Refuses names of queues and tags that no hub would take.

    Raises:
        ConfigError: one is too long, or would not print.
    """
    for name in names:
        if not 0 < len(name) <= LONGEST_TEXT or not name.isprintable():
            raise ConfigError(
                f"{name!r:.100} is no name of a queue or tag: take up to {LONGEST_TEXT} printable characters"
            )


def check_name(name: str) -> None:
    """Refuses a pool's name that could not be told from other words or would not print.

    Raises:
        ConfigError: the name is not usable.
    """
    usable = name.isprintable() and " " not in name and len(name.encode()) <= LONGEST_NAME
    if name == "all" or not usable:
        raise ConfigError(
            f"{name!r} cannot be a pool's name: take up to {LONGEST_NAME} printable characters without "
            "spaces, and not `all`, which means every pool"
        )
