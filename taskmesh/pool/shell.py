"""The shell of a pool machine: performs its actions on slots and on the link to its hub."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from taskmesh.core import actions as act
from taskmesh.errors import TaskMeshError
from taskmesh.link.shell import Shell
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.slot_messages import SlotTasks
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.slots.messages import PermitReply


class Gateway(NamedTuple):
    """A hub's gateway, as tasks that submit tasks reach it: its address, a folder of keys, the key's role."""

    address: str
    keys: str
    role: str


class HubLink(Protocol):
    """A pool's link to its hub.

    Attributes:
        events: what comes from the hub, for the pool's machine.
    """

    events: deque[object]

    def send(self, message: m.PoolMessage) -> None: ...

    def beat(self, message: m.Beat) -> None:
        """Send a beat to the collector, over its own connection."""
        ...

    def dial(self, endpoint: str, max_payload: int = 0) -> None:
        """Connect a fresh PULL to the lane of a hub that takes results of so many bytes, 0 for any."""
        ...

    def hang_up(self) -> None:
        """Close the lane's PULL."""
        ...

    def gateway(self) -> Gateway:
        """Return the way for tasks that submit tasks; raises OSError or TaskMeshError if there is none."""
        ...


class Slots(Protocol):
    """A pool's slots: `taskmesh.pool.slots.supervisor.SlotSupervisor` says what each method does."""

    def start(self, slot: int, number: int | None = None) -> None: ...

    def hand_over(self, slot: int, message: SlotTasks) -> None: ...

    def recall(self, slot: int, generation: int) -> None: ...

    def reply(self, slot: int, reply: PermitReply) -> None: ...

    def peek(self, slot: int) -> None: ...

    def ask_stack(self, slot: int, serial: int) -> None: ...

    def cancel(self, slot: int, serial: int) -> None: ...

    def kill(self, slot: int) -> None: ...

    def stop(self, slot: int) -> None: ...

    def close(self, timeout: float) -> None: ...


class PoolShell(Shell[PoolMachine]):
    """One pool in a loop, with its slots.

    Args:
        machine: the pool's machine.
        link: to the hub.
        host: starts and ends the slots.
        record: logs events.

    Attributes:
        host: as given.
        left: None, or the reason with which the machine has left ("" for a clean end).
    """

    def __init__(
        self,
        machine: PoolMachine,
        link: HubLink,
        host: Slots,
        record: Callable[[str, dict[str, object]], None],
    ) -> None:
        perform: dict[type, Callable[[Any], object]] = {
            act.HandOver: lambda action: host.hand_over(action.slot, action.message),
            act.PeekSlot: lambda action: host.peek(action.slot),
            act.AskSlotStack: lambda action: host.ask_stack(action.slot, action.serial),
            act.RecallSlot: lambda action: host.recall(action.slot, action.generation),
            act.AnswerSlot: self._answer,
            act.StartSlot: lambda action: host.start(action.slot, action.process),
            act.CancelSlot: lambda action: host.cancel(action.slot, action.serial),
            act.KillSlot: lambda action: host.kill(action.slot),
            act.StopSlot: lambda action: host.stop(action.slot),
            act.SendHub: lambda action: link.send(action.message),
            act.SendBeat: lambda action: link.beat(action.message),
            act.DialLane: lambda action: link.dial(action.endpoint, action.max_payload),
            act.HangUp: lambda action: link.hang_up(),
            act.Leave: self._leave,
            act.LogEvent: lambda action: record(action.kind, action.fields),
        }
        super().__init__(machine, perform, link.events)
        self.host = host
        self.left: str | None = None
        self._gateway = link.gateway

    def _answer(self, action: act.AnswerSlot) -> None:
        slot = f"{self.machine.config.pool}/{action.place}@{action.client:016x}"
        try:
            way = self._gateway()
            reply = PermitReply(action.granted, way.address, way.keys, slot=slot, role=way.role)
        except (OSError, TaskMeshError) as error:
            reply = PermitReply(action.granted, "", trouble=str(error))
        self.host.reply(action.slot, reply)

    def _leave(self, action: act.Leave) -> None:
        self.left = action.reason
