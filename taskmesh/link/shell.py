"""The shell of a machine in a loop: it passes events to the machine, and performs the actions that follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from taskmesh.core.events import Tick
from taskmesh.system.clock import monotonic

SPELL = 0.00025
"""Seconds for which a machine takes in events before it acts: pools and slots work while it goes on."""


class Machine(Protocol):
    """A machine of `taskmesh.core`."""

    @property
    def deadline(self) -> float:
        """The time when a Tick is due at the latest."""
        ...

    def take(self, event: object, now: float) -> None:
        """Take in one event; what must follow from it waits for `act`."""
        ...

    def act(self, now: float) -> Sequence[object]:
        """Return the actions to be performed, in order, after all events that were taken in.

        The more has come, the more goes into one message: a hub that is busy forms longer ones by itself.
        """
        ...


MachineT = TypeVar("MachineT", bound=Machine)


class Shell(Generic[MachineT]):
    """One machine in a loop.

    Args:
        machine: the machine.
        perform: performs each kind of action that the machine may return.
        events: events for the machine, to which links append.

    Attributes:
        clock: tells the time.
    """

    def __init__(
        self,
        machine: MachineT,
        perform: Mapping[type, Callable[[Any], object]],
        events: deque[Any],
    ) -> None:
        self.machine = machine
        self.events = events
        self._perform = perform
        self.clock: Callable[[], float] = monotonic

    @property
    def deadline(self) -> float:
        return self.machine.deadline

    @property
    def pending(self) -> bool:
        return bool(self.events)

    def turn(self, now: float) -> None:
        """Pass the events that have come to the machine, or a Tick, and perform its actions."""
        events, machine, perform, clock = self.events, self.machine, self._perform, self.clock
        if not events:
            events.append(Tick())
        left = len(events)
        while left:
            until = now + SPELL
            while left and now < until:
                machine.take(events.popleft(), now)
                left -= 1
                now = clock()
            for action in machine.act(now):
                perform[type(action)](action)
