"""Ticks: the times at which a schedule fires, computed from its timing alone.

Cron lines go by Debian's rule where clocks change (docs/adr/0025-time.md): a line with fixed times fires
once on such days, a line whose minute or hour is a wildcard fires by elapsed time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from taskmesh.wire.schedules import CATCHUPS, LONGEST_PERIOD, OVERLAPS, SHORTEST_PERIOD, Timing

FIRST_LOOK, LONGEST_LOOK = 3600.0, 1e9
"""Seconds of the past in which a cron line's last tick is looked for, at first and at most."""
FEW = 5
"""Ticks that are looked for forwards, since as a rule one has come since the last look."""
MOST_COUNTED = 10_000
"""Missed ticks that are counted; further ones are told as "at least so many"."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_EPOCH = EPOCH.replace(tzinfo=None)
WEEK = 7 * 86_400.0
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
        BadTiming: it is beyond the years that a datetime can have.
    """
    try:
        return EPOCH + timedelta(seconds=round(wall, 6))
    except OverflowError as error:
        raise BadTiming(f"{wall!r} seconds since 1970 are beyond the year 9999") from error


def text_of_tick(wall: float) -> str:
    """Return a time as names of firings have it, as 2026-11-23T02:30:00Z."""
    return moment(wall).isoformat().replace("+00:00", "Z")


def micros(seconds: float) -> int:
    """Return a time in whole microseconds: multiples of a period are exact in these, not in floats."""
    return round(seconds * MILLION)


class Ticks:
    """The ticks of one timing.

    Args:
        timing: the timing.

    Attributes:
        is_fixed: True for a cron line with fixed times: clocks that go back do not make it fire again.

    Raises:
        BadTiming: the cron line, the time zone or the period cannot be used.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._zone = zone_of(timing.tz)
        self.is_fixed = False
        for bound in (timing.start, timing.end):
            moment(bound)
        if timing.overlap not in OVERLAPS or timing.catchup not in CATCHUPS:
            raise BadTiming(f"no such rule: overlap {timing.overlap!r}, catch-up {timing.catchup!r}")
        if bool(timing.cron) == bool(timing.period):
            raise BadTiming("a schedule has a cron line or a period, one of them")
        if not timing.cron:
            if not SHORTEST_PERIOD <= timing.period <= LONGEST_PERIOD:
                raise BadTiming(
                    f"a schedule's period is at least {SHORTEST_PERIOD:g} s, not {timing.period:g}"
                )
            return
        fields = timing.cron.split()
        self.is_fixed = len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")
        try:
            CronSim(timing.cron, EPOCH)
        except (CronSimError, ValueError, OverflowError, AssertionError) as error:
            raise BadTiming(
                f"{timing.cron!r} is no cron line ({error}): write minute, hour, day of the month, month and "
                "day of the week, as '0 9 * * mon-fri'"
            ) from error

    def after(self, wall: float) -> float | None:
        """Return the first tick after a time, if there is one."""
        timing = self._timing
        if timing.start > wall:
            wall = timing.start - 1e-6
        tick = self._period_after(wall) if timing.period else self._cron_after(wall)
        return tick if tick is not None and (not timing.end or tick <= timing.end) else None

    def newest(self, after: float, until: float, most: int) -> tuple[list[float], int]:
        """Return the newest ticks of a span of time, oldest first, and the number of all ticks in it.

        Args:
            after: the ticks come later than this.
            until: the last one is no later than this.
            most: how many of them are wanted.
        """
        timing = self._timing
        until = min(until, timing.end) if timing.end else until
        after = max(after, timing.start - 1e-6) if timing.start else after
        if timing.period:
            period = micros(timing.period)
            first, last = micros(after) // period + 1, micros(until) // period
            numbers = range(max(first, last - most + 1), last + 1)
            return [n * period / MILLION for n in numbers], max(0, last - first + 1)
        found: list[float] = []
        count = 0
        for tick in itertools.islice(self._cron_from(after), FEW):
            if tick > until:
                return found[-most:], len(found)
            found.append(tick)
        found = []
        for tick in self._cron_back(until):
            if tick <= after or count >= MOST_COUNTED:
                break
            count += 1
            if count <= most:
                found.append(tick)
        return found[::-1], count

    def _period_after(self, wall: float) -> float:
        period = micros(self._timing.period)
        return (micros(wall) // period + 1) * period / MILLION

    def _cron_after(self, wall: float) -> float | None:
        """Return the first tick of the cron line after a time."""
        return next(self._cron_from(wall), None)

    def _cron_from(self, wall: float) -> Iterator[float]:
        """Yield the ticks of the cron line after a time, to the last one or for fifty years without any."""
        try:
            yield from self._at_fixed_times(wall) if self.is_fixed else self._by_elapsed_time(wall)
        except (BadTiming, OverflowError, ValueError):  # past the year 9999
            return

    def _at_fixed_times(self, wall: float) -> Iterator[float]:
        """Yield ticks of a line with fixed times, with cronsim's care for days on which clocks change.

        Within an hour that clocks repeat, the search begins at the hour's first time.
        """
        for found in CronSim(self._timing.cron, moment(wall).astimezone(self._zone)):
            tick = found.timestamp()
            if tick > wall:
                wall = tick
                yield tick

    def _by_elapsed_time(self, wall: float) -> Iterator[float]:
        """Yield ticks of a line with a wildcard: between two changes of clocks, local time is time in UTC.

        cronsim itself goes wrong where clocks change by half an hour (Australia/Lord_Howe).
        """
        offset = self._offset(wall)
        changed: float | None = wall
        while changed is not None:
            wall, changed = changed, None
            for found in CronSim(self._timing.cron, moment(wall + offset).replace(tzinfo=None)):
                tick = (found - NAIVE_EPOCH).total_seconds() - offset
                change = self._change(wall, tick, offset)
                if change is not None:
                    changed, offset = change - 1.0, self._offset(change)
                    break
                wall = tick
                yield tick

    def _offset(self, wall: float) -> float:
        """Return how far local time is ahead of UTC at a time, in seconds."""
        ahead = moment(wall).astimezone(self._zone).utcoffset()
        return ahead.total_seconds() if ahead is not None else 0.0

    def _change(self, since: float, until: float, offset: float) -> float | None:
        """Return the first second of a span of time in which the offset is another; None if there is none."""
        if self._zone is UTC:
            return None
        while since < until:
            later = min(since + WEEK, until)
            if self._offset(later) != offset:
                low, high = math.floor(since), math.ceil(later)
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if self._offset(middle) == offset else (low, middle)
                return float(high)
            since = later
        return None

    def _cron_back(self, wall: float) -> Iterator[float]:
        """Yield the ticks of the cron line up to a time, the newest first.

        They are found forwards, an hour and more at a time: a time that clocks leave out fires later than
        the line says, and would be missed from behind.
        """
        step, upper = FIRST_LOOK, wall
        while upper > 0 and step < LONGEST_LOOK:
            lower = max(0.0, upper - step)
            found: list[float] = []
            for tick in self._cron_from(lower):
                if tick > upper:
                    break
                found.append(tick)
            yield from reversed(found)
            step = step if found else 2 * step
            upper = lower
