"""The hub program: a loop in the main thread, signals, a clean end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from taskmesh.config import Config
from taskmesh.http.metrics import Family
from taskmesh.http.side_port import side_port
from taskmesh.hub.embedded_hub import EmbeddedHub, Record
from taskmesh.hub.journal.journal import hub_journal
from taskmesh.hub.listening_hub import ListeningHub
from taskmesh.hub.machine import clients
from taskmesh.hub.machine.machine import HubMachine
from taskmesh.hub.metrics import hub_answers
from taskmesh.link.endpoints import Endpoints, check_local
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.system.signals import StopRequest

FAREWELL = 0.3
"""Seconds that a hub which is asked to end goes on while its parent's last message may be on its way."""


class PoolInHub(Protocol):
    """A pool in the hub's own loop: `taskmesh.hosting.local_pool.LocalPool`."""

    @property
    def has_left(self) -> bool:
        """True once it has drained."""
        ...

    def families(self) -> list[Family]: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


def run_hub(
    config: Config,
    bind: str,
    *,
    ready: Callable[[Endpoints], None],
    record: Record,
    start_pool: Callable[[Loop, EmbeddedHub], PoolInHub] | None = None,
    parent: int = 0,
    private: str = "",
) -> None:
    """Run a hub until it is asked to stop.

    Args:
        config: the user's settings.
        bind: the gateway's address; with port 0 three free ports are used.
        ready: called with the addresses once all of them listen.
        record: logs events.
        start_pool: starts a pool in the hub's loop.
        parent: a process id whose end ends the hub too, 0 for none.
        private: the address of a gateway without keys for that process.

    Raises:
        InsecureBind: the address is beyond loopback and ipc, and no keys are in use.
        KeysUnusable: the hub's keys are missing, or open to others.
        ConfigError: the address or a setting cannot be used.
        EndpointError: the address is taken.
        TaskMeshError: no slot could be started within `mesh.open_timeout`.
    """
    check_local(bind, "binding", keys=bool(config.mesh.keys))
    loop = Loop()
    with (
        StopRequest(loop, parent).listening() as stop,
        hub_journal(config.hub) as journal,
        side_port(config, loop, lambda at: record("http", {"address": at})) as reception,
    ):
        hub = ListeningHub(loop, config, journal, record, bind=bind, private=private)
        sockets, pool = hub.sockets, None
        try:
            if start_pool is not None:
                pool = start_pool(loop, hub)
            if reception is not None:
                families = pool.families if pool is not None else list
                reception.serve(hub_answers(hub.machine, sockets.peer_errors.counts, families))
            ready(sockets.endpoints)
            stop.turn_until_asked()
            if pool is not None and not parent:
                pool.drain()
                stop.turn_until(lambda: pool.has_left)
            if parent:
                drain_parent_messages(loop, hub.machine)
        finally:
            report_tasks_left(hub.machine, record, parent)
            if pool is not None:
                pool.close()
            hub.close()


def drain_parent_messages(loop: Loop, machine: HubMachine) -> None:
    """Take in what the parent has said before it asked the hub to end: pools are to hear of its end."""
    until = monotonic() + FAREWELL
    while monotonic() < until and any(not each.slot for each in machine.state.clients.values()):
        loop.turn()


def report_tasks_left(machine: HubMachine, record: Record, parent: int) -> None:
    """Log how many tasks a hub leaves behind, unless it is a child of its only client."""
    total, orphans = machine.state.ledger.count, clients.orphans(machine.state)
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
