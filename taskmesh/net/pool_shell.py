"""The shell of a pool machine: performs its actions on slots and on the link to the hub."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from taskmesh.core import actions as act
from taskmesh.core.events import Tick
from taskmesh.core.pool import PoolMachine
from taskmesh.pool.host import SlotHost
from taskmesh.wire import messages as m


class HubLink(Protocol):
    """A pool's way to its hub."""

    def send(self, message: m.PoolMessage) -> None:
        """To the collector."""
        ...

    def beat(self, message: m.Beat) -> None:
        """To the collector, by the beat's own connection."""
        ...

    def dial(self, endpoint: str) -> None:
        """Connects a fresh PULL to the lane."""
        ...

    def hang_up(self) -> None:
        """Closes the lane's PULL."""
        ...


class PoolShell:
    """One pool in a loop.

    Attributes:
        events: what the machine is to be told; whoever learns something appends here.
        left: None, or the reason with which the machine has left ("" for a clean end).
    """

    def __init__(
        self, machine: PoolMachine, link: HubLink, on_leave: Callable[[str], None] | None = None
    ) -> None:
        self.machine = machine
        self.events: deque[object] = deque()
        self.left: str | None = None
        self._link = link
        self._on_leave = on_leave
        self._host: SlotHost | None = None

    def attach(self, host: SlotHost) -> None:
        """Gives it its slots; their events come through `events`."""
        self._host = host

    @property
    def deadline(self) -> float:
        """The machine's."""
        return self.machine.deadline

    @property
    def pending(self) -> bool:
        """Whether events wait."""
        return bool(self.events)

    def turn(self, now: float) -> None:
        """Tells the machine what has happened and does what it wants."""
        events, handle, perform = self.events, self.machine.handle, self.perform
        if not events:
            perform(handle(Tick(), now))
        for _ in range(len(events)):
            perform(handle(events.popleft(), now))

    def perform(self, actions: list[object]) -> None:
        """Performs actions in order."""
        host, link = self._host, self._link
        assert host is not None
        for action in actions:
            match action:
                case act.HandOver(slot=slot, message=message):
                    host.hand_over(slot, message)
                case act.SendHub(message=message):
                    link.send(message)
                case act.SendBeat(message=message):
                    link.beat(message)
                case act.PeekSlot(slot=slot):
                    host.peek(slot)
                case act.RecallSlot(slot=slot, generation=generation):
                    host.recall(slot, generation)
                case act.StartSlot(slot=slot):
                    host.start(slot)
                case act.KillSlot(slot=slot):
                    host.kill(slot)
                case act.StopSlot(slot=slot):
                    host.stop(slot)
                case act.DialLane(endpoint=endpoint):
                    link.dial(endpoint)
                case act.HangUp():
                    link.hang_up()
                case act.Leave(reason=reason):
                    self.left = reason
                    if self._on_leave is not None:
                        self._on_leave(reason)
                case _:
                    raise TypeError(f"not an action of a pool: {action!r}")
