"""The shell of a pool machine: performs its actions on slots and on the links to its hubs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from taskmesh.core import actions as act
from taskmesh.core.events import FromPool, Tick
from taskmesh.core.pool.machine import PoolMachine
from taskmesh.errors import TaskMeshError
from taskmesh.net.pool.memory_limit import PoolMemoryLimit
from taskmesh.pool.messages import PermitReply
from taskmesh.pool.supervisor import SlotSupervisor
from taskmesh.security.payload_signing import PayloadSigner
from taskmesh.shm.files import close_idle
from taskmesh.system.cgroups import LimitedMemory
from taskmesh.wire import messages as m


class HubLink(Protocol):
    """A pool's link to one of its hubs."""

    def send(self, message: m.PoolMessage) -> None:
        """Send a message to the collector."""
        ...

    def beat(self, message: m.Beat) -> None:
        """Send a beat to the collector, over its own connection."""
        ...

    def dial(self, endpoint: str, max_payload: int = 0) -> None:
        """Connect a fresh PULL to the lane of a hub that takes results of so many bytes, 0 for any."""
        ...

    def hang_up(self) -> None:
        """Close the lane's PULL."""
        ...


class LocalHubLink:
    """A pool's link to a hub in the same loop: its messages are the hub's events.

    Args:
        hub: the hub's events.
        signer: signs results, where keys are in use.
    """

    def __init__(self, hub: deque[object], signer: PayloadSigner | None = None) -> None:
        self._hub = hub
        self._signer = signer

    def send(self, message: m.PoolMessage) -> None:
        """Pass a message on, results signed."""
        if self._signer is not None and isinstance(message, m.Results):
            message = self._signer.results(message)
        self._hub.append(FromPool(message))

    def beat(self, message: m.Beat) -> None:
        """Pass a beat on."""
        self._hub.append(FromPool(message))

    def dial(self, endpoint: str, max_payload: int = 0) -> None:
        """Do nothing: the lane is a queue."""

    def hang_up(self) -> None:
        """Do nothing: the lane is a queue."""


class PoolShell:
    """One pool in a loop.

    Args:
        machine: the pool's machine.
        links: one to each hub, in the order of the machine's memberships.
        on_leave: called with the reason when the machine leaves.

    Attributes:
        events: events for the machine, to which slots and links append.
        left: None, or the reason with which the machine has left ("" for a clean end).
        record: logs events.
    """

    def __init__(
        self,
        machine: PoolMachine,
        links: Sequence[HubLink],
        on_leave: Callable[[str], None] | None = None,
    ) -> None:
        self.machine = machine
        self.events: deque[object] = deque()
        self.left: str | None = None
        self.record: Callable[[str, dict[str, object]], None] = lambda kind, fields: None
        self._links = links
        self._on_leave = on_leave
        self._perform: dict[type, Callable[[Any], None]] = {}
        self._memory: PoolMemoryLimit | None = None
        self._memory_look = math.inf

    def attach(self, host: SlotSupervisor, gateway: Callable[[int], list[str]], keys: str = "") -> None:
        """Give the pool its slots; their events come through `events`.

        Args:
            host: starts and ends the slots.
            gateway: returns the addresses, a given hub's first, for tasks that submit tasks; raises OSError
                or TaskMeshError.
            keys: the directory of keys, for these tasks.
        """
        links = self._links
        limited = LimitedMemory()
        if limited:
            self._memory = PoolMemoryLimit(limited, self._running, host.kill_for_memory)
            self._memory_look = 0.0

        def answer(action: act.AnswerSlot) -> None:
            try:
                machine = self.machine
                slot = f"{machine.config.pool}/{machine.slots[action.slot].pid}"
                host.reply(action.slot, PermitReply(action.granted, gateway(action.hub), keys, slot=slot))
            except (OSError, TaskMeshError) as error:
                host.reply(action.slot, PermitReply(action.granted, [], trouble=str(error)))

        self._perform = {
            act.HandOver: lambda action: host.hand_over(action.slot, action.message),
            act.PeekSlot: lambda action: host.peek(action.slot),
            act.RecallSlot: lambda action: host.recall(action.slot, action.generation),
            act.AnswerSlot: answer,
            act.StartSlot: lambda action: host.start(action.slot),
            act.CancelSlot: lambda action: host.cancel(action.slot, action.serial),
            act.KillSlot: lambda action: host.kill(action.slot),
            act.StopSlot: lambda action: host.stop(action.slot),
            act.SendHub: lambda action: links[action.hub].send(action.message),
            act.SendBeat: lambda action: links[action.hub].beat(action.message),
            act.DialLane: lambda action: links[action.hub].dial(action.endpoint, action.max_payload),
            act.HangUp: lambda action: links[action.hub].hang_up(),
            act.Leave: self._leave,
            act.LogEvent: lambda action: self.record(action.kind, action.fields),
        }

    @property
    def deadline(self) -> float:
        """The machine's deadline, or the next look at the memory."""
        return min(self.machine.deadline, self._memory_look)

    @property
    def pending(self) -> bool:
        """True if events wait."""
        return bool(self.events)

    def turn(self, now: float) -> None:
        """Pass events to the machine and perform its actions."""
        if self._memory is not None and now >= self._memory_look:
            self._memory_look = now + self._memory.check(now)
        events, handle, perform = self.events, self.machine.handle, self.perform
        if not events:
            perform(handle(Tick(), now))
            close_idle(now)
        for _ in range(len(events)):
            perform(handle(events.popleft(), now))

    def perform(self, actions: Sequence[act.PoolAction]) -> None:
        """Perform actions in order."""
        table = self._perform
        for action in actions:
            table[type(action)](action)

    def _running(self) -> dict[int, int]:
        """Return the slots that run tasks and are not being killed, by process id."""
        slots = self.machine.slots.values()
        return {slot.pid: slot.number for slot in slots if slot.count and slot.pid and not slot.reason}

    def _leave(self, action: act.Leave) -> None:
        self.left = action.reason
        if self._on_leave is not None:
            self._on_leave(action.reason)
