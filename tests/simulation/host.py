"""A simulated process: a machine with a clock of its own, that can be stopped, killed and started again."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, Protocol, TypeVar

from taskmesh.core.events import Tick
from tests.simulation.audit import Violation
from tests.simulation.setting import Setting

MAX_TICKS = 20
"""Ticks at one instant after which a machine is taken to spin."""
NEVER = float("inf")


class Machine(Protocol):
    """What every machine is."""

    @property
    def deadline(self) -> float:
        """When a Tick is due at the latest."""
        ...

    def take(self, event: Any, now: float) -> None:
        """Takes in one event."""
        ...

    def act(self, now: float) -> list[Any]:
        """Returns what is to be done."""
        ...


M = TypeVar("M", bound=Machine)


class Host(Generic[M]):
    """Drives one machine. Subclasses perform its actions.

    Attributes:
        up: the process is there. paused: it is stopped; what comes waits in its sockets.
        gathers: its loop may be late, and takes in what has come meanwhile before it acts.
    """

    gathers = False

    def __init__(self, name: str, setting: Setting) -> None:
        self.name = name
        self.up = False
        self.paused = False
        self.inbox: deque[object] = deque()
        self.setting = setting
        self.offset = 0.0
        self._machine: M | None = None
        self._tick_at = NEVER
        self._ticks = 0
        self._last_tick = -1.0
        self._busy = False
        self._pauses = 0
        self._has_taken = False
        self._life = 0

    def clock(self) -> float:
        """This process's monotonic clock: no other has the same zero."""
        return self.setting.timetable.now + self.offset

    @property
    def life(self) -> int:
        """Counts the starts and ends."""
        return self._life

    @property
    def machine(self) -> M:
        """The machine of the present life."""
        if self._machine is None:
            raise Violation(f"{self.name} is not there")
        return self._machine

    def boot(self, machine: M) -> None:
        """The process starts with this machine."""
        self._machine = machine
        self._life += 1
        self._tick_at = NEVER
        self.up, self.paused = True, False
        self.inbox.clear()
        self.tell(Tick())
        self.turn()

    def kill(self) -> None:
        """The process is gone, with all that it knew."""
        self.up = self.paused = self._has_taken = False
        self._life += 1
        self._machine = None
        self.inbox.clear()

    def pause(self) -> None:
        """SIGSTOP; every second one comes between what the loop takes in and what it does about it."""
        self._pauses += 1
        self._has_taken = self._pauses % 2 == 0 and not self._busy
        if self._has_taken:
            self._take(Tick())
        self.paused = True

    def resume(self) -> None:
        """SIGCONT: what came meanwhile is handled at once."""
        if self.paused:
            self.paused = False
            self.tell(Tick())
            self.turn()

    def tell(self, event: object) -> None:
        """Something has happened that the machine is to know."""
        if not self.up:
            return
        self.inbox.append(event)
        if self._busy or self.paused or len(self.inbox) > 1:
            return
        if self.gathers and (late := self.setting.late()):
            self.setting.timetable.after(late, self.turn)
        else:
            self.turn()

    def turn(self) -> None:
        """A turn of its loop: takes in what has come, and acts; a client acts after each event."""
        if self._busy:
            return
        self._busy = True
        try:
            if self._has_taken:
                self._has_taken = False
                self._act()
            while self.inbox and self.up and not self.paused:
                for _ in range(len(self.inbox) if self.gathers else 1):
                    self._take(self.inbox.popleft())
                self._act()
        finally:
            self._busy = False

    def _take(self, event: object) -> None:
        if self.setting.trace is not None:
            self.setting.note(self.name, event)
        self.machine.take(event, self.clock())

    def _act(self) -> None:
        machine = self.machine
        actions = machine.act(self.clock())
        if self.setting.trace is not None:
            for action in actions:
                self.setting.note(f"{self.name} ->", action)
        if actions:
            self.perform(actions)
        if self._machine is machine:
            self._arm(machine)

    def perform(self, actions: list[object]) -> None:
        """Does what the machine wants done, in order."""
        raise NotImplementedError

    def _arm(self, machine: M) -> None:
        when = machine.deadline - self.offset + 1e-9
        if when < self._tick_at:
            self._tick_at = when
            self.setting.timetable.at(when, self._tick, self._life, when)

    def _tick(self, life: int, when: float) -> None:
        machine = self._machine
        if life != self._life or when != self._tick_at or machine is None:
            return
        self._tick_at = NEVER
        if self.paused:
            return
        clock = self.clock()
        if machine.deadline > clock:
            self._arm(machine)
            return
        self._ticks = self._ticks + 1 if clock - self._last_tick < 1e-6 else 0
        self._last_tick = clock
        if self._ticks > MAX_TICKS:
            raise Violation(
                f"{self.name} spins: its deadline {machine.deadline} stays in the past at {clock}"
            )
        self.tell(Tick())
