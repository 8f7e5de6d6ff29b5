"""A pool's slots in its loop: they are started, and polled for a moment for the answer to a lone task."""

from __future__ import annotations

import logging
from collections.abc import Callable

from taskmesh.config import Config
from taskmesh.core.events import SlotExited, SlotReady
from taskmesh.core.pool.machine import PoolMachine
from taskmesh.net.pool.shell import PoolShell
from taskmesh.net.pool.startup import SlotStarts
from taskmesh.pool.fork_server_client import ForkServerSupervisor
from taskmesh.pool.spin_wait import SpinWait
from taskmesh.pool.supervisor import SlotEvent, SlotSupervisor
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.system.process import provided

_log = logging.getLogger("taskmesh")

FAREWELL = 0.2
"""Seconds that idle slots have to end by themselves."""
POLLED = 0.0001
"""Seconds that are polled at most. A lone task's answer comes in 20 to 60 us; to be woken, on a CPU that has
gone idle, takes as long."""
SHORT = 0.0002
"""Seconds up to which an answer that was slept for shows that polling would have paid."""


class SlotWait:
    """Decides whether a pool's loop polls while a lone task is under way, by how soon the last answers came.

    Where several tasks are under way the CPU, and in a user's program the GIL, have better to do.

    Args:
        pool: the machine whose slots are waited for.
        fds: readable when one of them, or another source that must not wait, has something.
    """

    def __init__(self, pool: PoolMachine, *fds: int) -> None:
        self._pool = pool
        self._polling = SpinWait(*fds, longest=POLLED, short=SHORT)
        self._asleep_since = 0.0

    def came(self) -> bool:
        """Poll, if that is likely to pay, before the loop sleeps; return True when there is something now."""
        under_way = 0
        for slot in self._pool.slots.values():
            under_way += slot.count
            if under_way > 1:
                return False
        if not under_way:
            return False
        if self._polling.wait():
            return True
        self._asleep_since = monotonic()
        return False

    def awake(self) -> None:
        """Take note that the loop has slept, or had no reason to."""
        if self._asleep_since:
            self._polling.waited(monotonic() - self._asleep_since)
            self._asleep_since = 0.0


def host_slots(
    loop: Loop,
    pool: PoolShell,
    name: str,
    gateway: Callable[[int], list[str]],
    config: Config | None = None,
    *,
    patience: float,
    modules: tuple[str, ...] = (),
    complain: Callable[[str], None] = _log.warning,
    fork_server: ForkServerSupervisor | None = None,
    urgent: tuple[int, ...] = (),
) -> SlotSupervisor:
    """Give a pool in a loop its slots.

    Args:
        loop: the loop that the pool's shell is a part of.
        pool: the pool's shell.
        name: the pool's name, for `ps`.
        gateway: returns the addresses, a given hub's first, for tasks that submit tasks.
        config: the keys that these tasks show, and the modules whose functions alone may be run.
        patience: seconds in which one slot must come up; a TaskMeshError ends the loop if none does.
        modules: modules that slots import when they start.
        complain: reports a slot that cannot be started, and why.
        fork_server: one that has been started earlier.
        urgent: descriptors that are looked at, too, while a slot's answer is polled for.

    Raises:
        TaskMeshError: there are no descriptors to begin with.
    """
    starts = SlotStarts(pool.machine, patience, complain)
    keys = config.mesh.keys if config is not None else ""
    only = config.pool.only_registered if config is not None else ()

    def take(event: SlotEvent) -> None:
        pool.events.append(event)
        if type(event) is SlotReady:
            starts.ready()
        elif type(event) is SlotExited and not event.ready and not host.is_closing:
            starts.failed(event)

    with provided("slots cannot be started here"):
        host = SlotSupervisor(
            on_event=take,
            watch=loop.watch,
            unwatch=loop.unwatch,
            name=name,
            preload=(*modules, *only),
            only=only,
            fork_server=fork_server,
        )
    pool.attach(host, gateway, keys)
    loop.busy_wait = SlotWait(pool.machine, host.fileno(), *urgent)
    return host
