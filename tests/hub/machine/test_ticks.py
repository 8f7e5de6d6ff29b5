"""Ticks of a timing: cron lines across changes of clocks, periods, and what cannot be kept."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from taskmesh.hub.machine.books.ticks import MOST_COUNTED, BadTiming, Ticks, text_of_tick
from taskmesh.messages.schedules import Timing

ZONES = (
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/St_Johns",  # half an hour off the others
    "Australia/Sydney",  # the other half of the year
    "America/Santiago",  # changes at midnight
    "Africa/Cairo",  # at midnight, from Thursday to Friday
)
HALF_AN_HOUR = "Australia/Lord_Howe"
"""A zone whose clocks change by half an hour."""
LINES = (
    "30 2 * * *",
    "0 2 * * *",
    "0 3 * * *",
    "15 1,2 * * *",
    "30 0 * * *",
    "0 0-5 * * *",
    "*/30 2 * * *",
    "*/15 * * * *",
    "0 * * * *",
    "30 * * * *",
    "5 */2 * * *",
    "0 9 * * mon-fri",
)
MINUTE = timedelta(minutes=1)


@cache
def changes(zone: ZoneInfo) -> tuple[datetime, ...]:
    """The minutes of 2026 in which a zone's clocks change; to look for them takes 25 ms."""
    found = []
    at = datetime(2026, 1, 1, tzinfo=UTC)
    while at.year == 2026:
        if at.astimezone(zone).utcoffset() != (at + timedelta(hours=1)).astimezone(zone).utcoffset():
            within = [at + n * MINUTE for n in range(60)]
            found += [
                m
                for m in within
                if m.astimezone(zone).utcoffset() != (m + MINUTE).astimezone(zone).utcoffset()
            ]
        at += timedelta(hours=1)
    return tuple(found)


def numbers(field: str, low: int, high: int) -> set[int]:
    """The numbers that a field of a cron line stands for."""
    found: set[int] = set()
    for term in field.replace("mon-fri", "1-5").split(","):
        span, _, step = term.partition("/")
        first, _, last = ("0", "-", str(high)) if span == "*" else span.partition("-")
        found.update(range(max(low, int(first)), int(last or first) + 1, int(step or 1)))
    return found


def by_debians_rule(line: str, zone: ZoneInfo, since: datetime, until: datetime) -> Iterator[datetime]:
    """The firings of a cron line, minute for minute, as cron(8) says it.

    Fixed times that a change leaves out run right after it, those that come twice run the first time; a line
    whose minute or hour is a wildcard runs whenever the clock shows a minute that it names.
    """
    minutes, hours = numbers(line.split(maxsplit=1)[0], 0, 59), numbers(line.split()[1], 0, 23)
    days = numbers(line.split()[4], 0, 6)
    is_wildcard = line.split(maxsplit=1)[0].startswith("*") or line.split()[1].startswith("*")

    def names(local: datetime) -> bool:
        return local.minute in minutes and local.hour in hours and local.isoweekday() % 7 in days

    at = since
    while at < until:
        local, before = at.astimezone(zone), (at - MINUTE).astimezone(zone)
        fires = names(local) and (is_wildcard or not local.fold)
        left_out = local.replace(tzinfo=None) - before.replace(tzinfo=None) - MINUTE
        if left_out > timedelta() and not is_wildcard:
            wall = before.replace(tzinfo=None)
            fires = fires or any(names(wall + n * MINUTE) for n in range(1, left_out // MINUTE + 1))
        if fires:
            yield at
        at += MINUTE


def span(since: datetime, until: datetime, line: str, zone: str) -> list[datetime]:
    ticks, found = Ticks(Timing(line, tz=zone)), []
    tick = ticks.after(since.timestamp() - 1)
    while tick < until.timestamp():
        found.append(datetime.fromtimestamp(tick, UTC))
        tick = ticks.after(tick)
    return found


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("zone", ZONES)
def test_both_changes_of_2026(zone, line):
    both = changes(ZoneInfo(zone))
    assert len(both) == 2

    for change in both:
        since, until = change - timedelta(hours=30), change + timedelta(hours=30)
        wanted = list(by_debians_rule(line, ZoneInfo(zone), since, until))

        assert span(since, until, line, zone) == wanted


@pytest.mark.parametrize("line", LINES)
def test_of_a_change_by_half_an_hour_cronsim_leaves_times_out_at_most(line):
    for change in changes(ZoneInfo(HALF_AN_HOUR)):
        since, until = change - timedelta(hours=30), change + timedelta(hours=30)
        wanted = set(by_debians_rule(line, ZoneInfo(HALF_AN_HOUR), since, until))
        found = set(span(since, until, line, HALF_AN_HOUR))

        assert found <= wanted
        assert all(abs(left_out - change) <= timedelta(hours=1) for left_out in wanted - found)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("zone", [*ZONES, HALF_AN_HOUR])
def test_the_newest_across_a_change(zone, line):
    for change in changes(ZoneInfo(zone)):
        since, until = change - timedelta(hours=5), change + timedelta(hours=5)
        wanted = [tick.timestamp() for tick in span(since, until, line, zone)]
        found, count = Ticks(Timing(line, tz=zone)).newest(since.timestamp() - 1, until.timestamp() - 1)

        assert (found, count) == (wanted[-1] if wanted else None, len(wanted))


@pytest.mark.parametrize(
    ("line", "newest"),
    [
        ("* * * * *", "2027-12-01T00:00Z"),
        ("*/2 2-4 * * *", "2027-11-30T04:58Z"),
        ("* * 1 1 *", "2027-01-01T23:59Z"),
    ],
)
def test_the_newest_of_more_than_are_counted(line, newest):
    since, until = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 12, 1, tzinfo=UTC)
    found = Ticks(Timing(line)).newest(since.timestamp(), until.timestamp())

    assert found == (datetime.fromisoformat(newest).timestamp(), MOST_COUNTED)


@pytest.mark.parametrize(
    ("line", "day", "wanted"),
    [
        ("30 2 * * *", "2026-03-29", ["01:00"]),
        ("30 2 * * *", "2026-10-25", ["00:30"]),
        ("*/30 2 * * *", "2026-03-29", []),
        ("*/30 2 * * *", "2026-10-25", ["00:00", "00:30", "01:00", "01:30"]),
        ("0 9 * * *", "2026-03-29", ["07:00"]),
        ("0 9 * * *", "2026-10-25", ["08:00"]),
        ("0 2,3 * * *", "2026-03-29", ["01:00"]),
        ("0 2,3 * * *", "2026-10-25", ["00:00", "02:00"]),
    ],
)
def test_in_berlin(line, day, wanted):
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    since, until = midnight.astimezone(UTC), (midnight + timedelta(days=1)).astimezone(UTC)

    assert [tick.strftime("%H:%M") for tick in span(since, until, line, "Europe/Berlin")] == wanted


def test_no_tick_comes_twice_when_the_search_begins_in_the_hour_that_is_repeated():
    second = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)  # 02:15 in Berlin, for the second time

    [tick] = span(second, second + timedelta(hours=25), "30 2 * * *", "Europe/Berlin")

    assert tick == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_a_period_is_the_epoch_plus_a_multiple():
    ticks = Ticks(Timing(period=0.5))

    assert ticks.after(1000.2) == 1000.5
    assert ticks.after(1000.5) == 1001.0
    assert ticks.newest(1000.5, 1003.2) == (1003.0, 5)
    assert ticks.newest(1003.0, 1003.2) == (None, 0)


@pytest.mark.parametrize("period", [0.1, 0.3, 1.1, 0.01, 7.0, 1 / 3])
def test_ticks_of_a_period_rise_and_none_is_found_twice(period):
    ticks, tick = Ticks(Timing(period=period)), 1_795_524_394.0
    for _ in range(1_000):
        following = ticks.after(tick)
        assert tick < following <= tick + period + 1e-6
        assert ticks.newest(tick, following) == (following, 1)
        assert ticks.newest(following, following) == (None, 0)
        tick = following


def test_a_million_periods_cost_no_search():
    assert Ticks(Timing(period=0.01)).newest(0.0, 1.7e9)[1] == 170_000_000_000


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (Timing("61 * * * *"), "no cron line"),
        (Timing("* * * *"), "no cron line"),
        (Timing("L/2 * * * *"), "no cron line"),
        (Timing("0 0 31 2 *"), "no cron line"),
        (Timing(), "one of them"),
        (Timing("* * * * *", period=1.0), "one of them"),
        (Timing("* * * * *", tz="Europe/Nowhere"), "no time zone"),
        (Timing("* * * * *", tz="../../etc/passwd"), "no time zone"),
        (Timing(period=0.001), "at least 0.01 s"),
        (Timing(period=1e300), "at least 0.01 s"),
        (Timing("* * * * *", overlap="queue"), "no such rule"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_words(timing, said):
    with pytest.raises(BadTiming, match=said):
        Ticks(timing)


def test_names_of_ticks_have_no_more_digits_than_they_need():
    assert text_of_tick(1_795_401_000.0) == "2026-11-23T02:30:00Z"
    assert text_of_tick(1.5) == "1970-01-01T00:00:01.500000Z"
