"""A pool's slots in its loop, and what stands beside them there."""

from __future__ import annotations

from collections import deque
from functools import partial

from taskmesh.core.events import SlotExited, SlotReady
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.memory_limit import PoolMemoryLimit
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor
from taskmesh.pool.slots.spin_wait import SlotWait
from taskmesh.pool.slots.supervisor import SlotEvent, SlotSupervisor
from taskmesh.pool.startup import SlotStarts
from taskmesh.system.cgroups import LimitedMemory
from taskmesh.system.loop import Loop
from taskmesh.system.process import provided

FAREWELL = 0.2
"""Seconds that idle slots have to end by themselves."""


def slots_in(
    loop: Loop,
    machine: PoolMachine,
    fork_server: ForkServerSupervisor,
    starts: SlotStarts,
    events: deque[object],
) -> SlotSupervisor:
    """Return a pool's slots, which have become a part of the loop.

    Args:
        loop: the loop.
        machine: the pool's machine.
        fork_server: forks them.
        starts: watches their starts.
        events: the machine's.

    Raises:
        TaskMeshError: there are no descriptors to begin with.
    """

    def take(event: SlotEvent) -> None:
        events.append(event)
        if type(event) is SlotReady:
            starts.ready()
        elif type(event) is SlotExited and not event.ready and not host.is_closing:
            starts.failed(event)

    with provided("slots cannot be started here"):
        host = SlotSupervisor(fork_server, loop, take)
    loop.busy_wait = SlotWait(machine, host.fileno())
    loop.timers.append(host)
    if limited := LimitedMemory():
        loop.timers.append(PoolMemoryLimit(limited, partial(running_slots, machine), host.kill_for_memory))
    return host


def running_slots(machine: PoolMachine) -> dict[int, int]:
    """Return the slots that run tasks and are not being killed, by process id."""
    slots = machine.slots.values()
    return {slot.pid: slot.number for slot in slots if slot.count and slot.pid and not slot.reason}
