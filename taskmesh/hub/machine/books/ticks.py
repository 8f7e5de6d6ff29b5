"""Ticks: the times at which a schedule fires, computed from its timing alone.

Cron lines are cronsim's, which keeps Debian's rule where clocks change (docs/adr/0025-time.md): a line with
fixed times fires once on such days, a line whose minute or hour is a wildcard fires by elapsed time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from taskmesh.messages.schedules import CATCHUPS, LONGEST_PERIOD, OVERLAPS, SHORTEST_PERIOD, Timing

MOST_COUNTED = 1_000
"""Ticks of a cron line that are counted at most: to count those of a year would take seconds."""
FIRST_LOOK = 3600.0
"""Seconds of the past in which a cron line's last tick is looked for at first, then twice as many."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLION = 1_000_000


class BadTiming(ValueError):
    """A timing that no hub can keep; the text says why."""


def zone_of(name: str) -> tzinfo:
    """Return the time zone of this name.

    Raises:
        BadTiming: there is none.
    """
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadTiming(f"there is no time zone {name!r}: write one such as 'Europe/Berlin'") from error


def moment(wall: float) -> datetime:
    """Return the time of so many seconds since the epoch, in UTC.

    Raises:
        OverflowError: it is beyond the years that a datetime can have.
    """
    return EPOCH + timedelta(seconds=round(wall, 6))


def text_of_tick(wall: float) -> str:
    """Return a time as names of firings have it, as 2026-11-23T02:30:00Z; far ones in words."""
    try:
        return moment(wall).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return "the year 10000"


def micros(seconds: float) -> int:
    """Return a time in whole microseconds: multiples of a period are exact in these, not in floats."""
    return round(seconds * MILLION)


class Ticks:
    """The ticks of one timing.

    Args:
        timing: the timing.

    Raises:
        BadTiming: the cron line, the time zone, the period or a rule cannot be used.
    """

    def __init__(self, timing: Timing) -> None:
        self._line = timing.cron
        self._zone = zone_of(timing.tz)
        if timing.overlap not in OVERLAPS or timing.catchup not in CATCHUPS:
            raise BadTiming(f"no such rule: overlap {timing.overlap!r}, catch-up {timing.catchup!r}")
        if bool(timing.cron) == bool(timing.period):
            raise BadTiming("a schedule has a cron line or a period, one of them")
        if timing.period and not SHORTEST_PERIOD <= timing.period <= LONGEST_PERIOD:
            raise BadTiming(f"a schedule's period is at least {SHORTEST_PERIOD:g} s, not {timing.period:g}")
        self._period = micros(timing.period)
        try:
            CronSim(timing.cron or "* * * * *", EPOCH)
        except (CronSimError, ValueError, OverflowError, AssertionError) as error:
            raise BadTiming(
                f"{timing.cron!r} is no cron line ({error}): write minute, hour, day of the month, month and "
                "day of the week, as '0 9 * * mon-fri'"
            ) from error

    def after(self, wall: float) -> float:
        """Return the first tick after a time; infinite if there is none."""
        if self._period:
            return (micros(wall) // self._period + 1) * self._period / MILLION
        return next(self._cron_from(wall), math.inf)

    def newest(self, after: float, until: float) -> tuple[float | None, int]:
        """Return the last tick of a span of time, and the number of ticks in it.

        Args:
            after: the ticks come later than this.
            until: the last one is no later than this.

        Returns:
            The tick, None if there is none, and the number, which is MOST_COUNTED at most of a cron line.
        """
        if self._period:
            last = micros(until) // self._period
            count = max(0, last - micros(after) // self._period)
            return (last * self._period / MILLION if count else None), count
        found, count = self._last(after, until, MOST_COUNTED)
        look = FIRST_LOOK
        while count == MOST_COUNTED:
            newest, near = self._last(max(after, until - look), until, math.inf)
            if near:
                return newest, count
            look *= 2
        return found, count

    def _last(self, after: float, until: float, most: float) -> tuple[float | None, int]:
        """Return the last of the first `most` ticks of a cron line in a span of time, and their number."""
        found, count = None, 0
        for tick in self._cron_from(after):
            if tick > until or count == most:
                break
            found, count = tick, count + 1
        return found, count

    def _cron_from(self, wall: float) -> Iterator[float]:
        """Yield the ticks of the cron line after a time, to the last one or for fifty years without any.

        In an hour that clocks repeat, cronsim begins a line with fixed times at the hour's first time.
        """
        try:
            for found in CronSim(self._line, moment(wall).astimezone(self._zone)):
                tick = found.timestamp()
                if tick > wall:
                    wall = tick
                    yield tick
        except (OverflowError, ValueError):  # past the year 9999
            return
