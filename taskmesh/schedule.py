"""Schedules as a program writes them, and those that its modules declare.

It imports errors, settings and messages only, so that a module of tasks that a slot imports costs no more.
The first cron line or time zone of a program loads the calendar: 4 ms, then 0.1 ms each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast
from weakref import WeakSet, WeakValueDictionary

from taskmesh.errors import ConfigError
from taskmesh.messages.runs import LONGEST_NAME
from taskmesh.messages.schedules import (
    CATCHUPS,
    LONGEST_PERIOD,
    OVERLAPS,
    SHORTEST_PERIOD,
    Declaration,
    Timing,
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times at which a task runs by itself, and the rules for times that overlap or were missed.

    Args:
        when: a number of seconds: every multiple of it since 1970. Or a cron line: minute, hour, day of the
            month, month, day of the week.
        tz: the time zone of the cron line. Where clocks change, fixed times run once that day, and a line
            whose minute or hour is a wildcard runs by elapsed time, as with Debian's cron.
        overlap: what to do if the last run has not ended: "skip" leaves this one out, "allow" runs both.
        catchup: what to do about times that were missed since the hub stood still or its clock was set:
            "latest" makes up for the newest, "none" for none.

    Raises:
        ConfigError: a value cannot be used.
    """

    when: float | str
    tz: str = "UTC"
    overlap: Literal["skip", "allow"] = "skip"
    catchup: Literal["latest", "none"] = "latest"

    def __post_init__(self) -> None:
        """Check the values."""
        if isinstance(self.when, str):
            if len(self.when.split()) not in (5, 6):
                raise ConfigError(
                    "a schedule is a number of seconds or a cron line such as '0 9 * * mon-fri', "
                    f"not {self.when!r}"
                )
        elif not _is_number(self.when) or not SHORTEST_PERIOD <= self.when <= LONGEST_PERIOD:
            raise ConfigError(
                f"a schedule's period is a number of seconds from {SHORTEST_PERIOD:g} on, not {self.when!r}"
            )
        for name, known in (("overlap", OVERLAPS), ("catchup", CATCHUPS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is one of {', '.join(known)}, not {getattr(self, name)!r}")
        if not isinstance(self.tz, str) or not self.tz or len(self.tz) > LONGEST_NAME:
            raise ConfigError(f"tz is the name of a time zone such as 'Europe/Berlin', not {self.tz!r:.200}")
        if "TASKMESH_SLOT" not in os.environ and (isinstance(self.when, str) or self.tz.upper() != "UTC"):
            self._check_calendar()

    def _check_calendar(self) -> None:
        """Check cron line and time zone. A slot does without: who declares the schedule has checked it."""
        from taskmesh.hub.machine.books.ticks import BadTiming, Ticks

        try:
            Ticks(self.timing)
        except BadTiming as error:
            raise ConfigError(str(error)) from None

    @property
    def timing(self) -> Timing:
        """The schedule as it travels."""
        line, period = (self.when, 0.0) if isinstance(self.when, str) else ("", float(self.when))
        return Timing(line, period, self.tz, self.overlap, self.catchup)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def schedule_of(when: object) -> Schedule:
    """Return a schedule for what a user writes: a period, a cron line, or the schedule itself.

    Raises:
        ConfigError: it is nothing of these.
    """
    return when if isinstance(when, Schedule) else Schedule(cast(Any, when))


# --- what modules declare ----------------------------------------------------------------------------


class Scheduled(Protocol):
    """A task function with a schedule."""

    def declaration(self) -> Declaration:
        """Return the schedule and the call as they travel."""
        ...


class Declarer(Protocol):
    """An open mesh, which tells its hub what modules declare."""

    def declare(self, declaration: Declaration) -> None:
        """Tell the hub."""
        ...


_declared: WeakValueDictionary[str, Scheduled] = WeakValueDictionary()
declarers: WeakSet[Declarer] = WeakSet()
"""Open meshes."""


def register(name: str, task: Scheduled) -> None:
    """Take note of a task function that has a schedule; meshes that are open tell their hubs at once.

    Raises:
        ConfigError: a hub cannot keep it.
    """
    _declared[name] = task
    for declarer in list(declarers):
        declarer.declare(task.declaration())


def declarations() -> list[Declaration]:
    """Return what the modules of this process declare.

    Raises:
        SerializationError: a function cannot travel.
    """
    return [task.declaration() for _, task in sorted(_declared.items())]
