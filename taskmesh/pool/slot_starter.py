"""A pool's slots in its loop: they are started, and polled for a moment for the answer to a lone task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from taskmesh.config import Config
from taskmesh.core.events import SlotExited, SlotReady
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.memory_limit import PoolMemoryLimit
from taskmesh.pool.shell import HubLink, PoolShell
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor
from taskmesh.pool.slots.spin_wait import SpinWait
from taskmesh.pool.slots.supervisor import SlotEvent, SlotSupervisor
from taskmesh.pool.startup import SlotStarts
from taskmesh.security.keys import WORKER
from taskmesh.system.cgroups import LimitedMemory
from taskmesh.system.clock import monotonic
from taskmesh.system.loop import Loop
from taskmesh.system.process import provided

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


def pool_with_slots(
    loop: Loop,
    machine: PoolMachine,
    link: HubLink,
    gateway: Callable[[], str],
    starts: SlotStarts,
    config: Config | None = None,
    *,
    events: deque[object],
    modules: tuple[str, ...] = (),
    record: Callable[[str, dict[str, object]], None] = lambda kind, fields: None,
    fork_server: ForkServerSupervisor | None = None,
    urgent: tuple[int, ...] = (),
    role: str = WORKER,
) -> PoolShell:
    """Make a pool's shell and its slots; return the shell, which is to become a part of the loop.

    Args:
        loop: the loop.
        machine: the pool's machine.
        link: to its hub.
        gateway: returns the hub's address, for tasks that submit tasks.
        starts: watches the slots' starts.
        config: the keys that these tasks show, and the modules whose functions alone may be run.
        events: the shell's, to which the link appends.
        modules: modules that slots import when they start.
        record: logs events.
        fork_server: one that has been started earlier.
        urgent: descriptors that are looked at, too, while a slot's answer is polled for.
        role: the role whose key these tasks show.

    Raises:
        TaskMeshError: there are no descriptors to begin with.
    """
    settings = config or Config()

    def take(event: SlotEvent) -> None:
        events.append(event)
        if type(event) is SlotReady:
            starts.ready()
        elif type(event) is SlotExited and not event.ready and not host.is_closing:
            starts.failed(event)

    with provided("slots cannot be started here"):
        host = SlotSupervisor(
            on_event=take,
            watch=loop.watch,
            unwatch=loop.unwatch,
            name=machine.config.pool,
            preload=(*modules, *settings.pool.only_registered),
            only=settings.pool.only_registered,
            user=settings.pool.slot_user,
            fork_server=fork_server,
        )
    loop.busy_wait = SlotWait(machine, host.fileno(), *urgent)
    loop.timers.append(host)
    if limited := LimitedMemory():
        loop.timers.append(PoolMemoryLimit(limited, partial(running_slots, machine), host.kill_for_memory))
    keys = settings.mesh.keys
    return PoolShell(machine, link, host, gateway, keys=keys, role=role, events=events, record=record)


def running_slots(machine: PoolMachine) -> dict[int, int]:
    """Return the slots that run tasks and are not being killed, by process id."""
    slots = machine.slots.values()
    return {slot.pid: slot.number for slot in slots if slot.count and slot.pid and not slot.reason}
