"""A pool's slots in its loop: they are started, and polled for a moment for the answer to a lone task."""

from __future__ import annotations

from collections import deque
from functools import partial

from taskmesh.core.events import SlotExited, SlotReady
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.memory_limit import PoolMemoryLimit
from taskmesh.pool.slots.fork_server_client import ForkServerSupervisor
from taskmesh.pool.slots.spin_wait import SpinWait
from taskmesh.pool.slots.supervisor import SlotEvent, SlotSupervisor
from taskmesh.pool.startup import SlotStarts
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
