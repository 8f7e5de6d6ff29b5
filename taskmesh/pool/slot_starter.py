"""A pool's slots in its loop, and what stands beside them there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from taskmesh.core.events import SlotExited, SlotReady
from taskmesh.pool.gpus import GpuExits
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.sharing import REPLACED
from taskmesh.pool.memory_limit import PoolMemoryLimit
from taskmesh.pool.process_limits import ProcessLimits
from taskmesh.pool.reload import CodeWatch
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor
from taskmesh.pool.slots.spin_wait import SlotWait
from taskmesh.pool.slots.supervisor import SlotEvent, SlotSupervisor
from taskmesh.pool.startup import SlotStarts
from taskmesh.system.cgroups import LimitedMemory
from taskmesh.system.clock import monotonic
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
    record: Callable[[str, dict[str, object]], None],
) -> SlotSupervisor:
    """Return a pool's slots, which have become a part of the loop.

    Args:
        loop: the loop.
        machine: the pool's machine.
        fork_server: forks them.
        starts: watches their starts.
        events: the machine's.
        record: logs events.

    Raises:
        TaskMeshError: there are no descriptors to begin with.
    """

    def take(event: SlotEvent) -> None:
        if gpus is not None and type(event) is SlotExited and not host.is_closing:
            gpus.exited(event, machine.slots[event.slot].pid, monotonic())
        else:
            events.append(event)
        if type(event) is SlotReady:
            starts.ready()
            if limits is not None:
                limits.ready(event)
        elif type(event) is SlotExited and not event.ready and not host.is_closing:
            starts.failed(event)

    limits: ProcessLimits | None = None
    options = fork_server.slots.options
    if options.max_memory or options.max_age:
        limits = ProcessLimits(options, machine, events.append, starts.complain)
        loop.timers.append(limits)
    if options.watch:
        loop.timers.append(CodeWatch(machine, events.append, record, list(options.watch)))
    gpus: GpuExits | None = None
    if options.gpus:
        gpus = GpuExits(options.gpus, events.append)
        loop.timers.append(gpus)
    with provided("slots cannot be started here"):
        host = SlotSupervisor(fork_server, loop, take)
    loop.busy_wait = SlotWait(machine, host.fileno())
    loop.timers.append(host)
    if limited := LimitedMemory():
        loop.timers.append(PoolMemoryLimit(limited, partial(running_slots, machine), host.kill_for_memory))
    return host


def running_slots(machine: PoolMachine) -> dict[int, int]:
    """Return the slots that run tasks and are not being killed, by process id."""
    slots = [slot for slot in machine.slots.values() if slot.count and slot.pid]
    return {slot.pid: slot.number for slot in slots if slot.reason in {"", REPLACED}}
