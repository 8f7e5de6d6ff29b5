"""Schedules with a journal: each tick fires once, whenever the hub dies."""

import copy

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.books.ticks import BadTiming
from tests.core.clockwork import WALL, Clockwork


def clockwork(before: Clockwork | None = None, away: float = 0.0) -> Clockwork:
    """A hub with a journal: that of another one, which has been dead for some seconds."""
    world = Clockwork.__new__(Clockwork)
    world.begin(journaled=True, lease=2.0, stall=1.0)
    entries = {} if before is None else before.rig.journal
    wall = WALL + 30.0 if before is None else before.wall + away
    world.rig.journal = copy.deepcopy(entries)
    world.rig.tell(ev.JournalRead(copy.deepcopy(entries), wall))
    world.join(wall)
    return world


def pass_time(world: Clockwork, seconds: float) -> None:
    """The pool lives, and the journal is written."""
    for _ in range(round(2 * seconds)):
        world.rig.after(0.5)
        world.rig.beat(world.session)
        world.settle()


def unknown(_timing: object) -> None:
    raise BadTiming("no such time zone")


@pytest.mark.parametrize("written", [True, False])
def test_a_firing_starts_when_it_is_written_and_survives_the_hub(written):
    world = clockwork()
    world.put(period=60.0)
    pass_time(world, 29.5)
    world.rig.after(0.5)
    assert world.rig.held[world.session] == [], "not before it is written"
    if written:
        world.rig.write()
        assert world.ticks == [60.0]

    after = clockwork(world)
    pass_time(after, 5.0)
    assert after.ticks == [60.0]
    assert after.finish() == 1
    pass_time(after, 40.0)
    assert after.ticks == [60.0], "it has ended, and the next one is yet to come"


def test_a_firing_that_has_ended_does_not_come_again():
    world = clockwork()
    world.put(period=60.0)
    pass_time(world, 30.0)
    assert world.finish() == 1
    world.rig.after(1.0)
    world.rig.write()

    after = clockwork(world)
    pass_time(after, 20.0)
    assert after.ticks == []
    pass_time(after, 40.0)
    assert after.ticks == [120.0]


def test_the_newest_of_those_that_were_missed_without_a_hub_fires():
    world = clockwork()
    world.put(period=60.0)

    after = clockwork(world, away=3 * 60.0)
    pass_time(after, 1.0)
    assert after.ticks == [180.0]
    assert after.view()["missed"] == 2


def test_a_clock_that_was_wrong_does_not_stop_a_schedule_at_the_next_hub():
    world = clockwork()
    world.set(WALL + 1e6)
    world.put(period=60.0)

    after = clockwork(world, away=-1e6)
    pass_time(after, 61.0)
    assert after.ticks == [60.0]


def test_a_firing_on_its_way_counts_for_overlaps_at_the_next_hub():
    world = clockwork()
    world.put(period=60.0, overlap="skip")
    pass_time(world, 30.0)

    after = clockwork(world, away=60.0)
    pass_time(after, 5.0)
    assert after.ticks == [60.0]
    assert after.view()["skipped"] == 1


def test_paused_and_removed_schedules_stay_so():
    world = clockwork()
    world.put(period=60.0)
    world.put("other", period=60.0)
    world.ask("schedule-pause", "n")
    world.ask("schedule-remove", "other")

    after = clockwork(world)
    pass_time(after, 90.0)
    assert after.ticks == []
    assert after.view()["state"] == "paused"
    assert list(after.rig.hub.state.schedules.records) == ["n"]


def test_a_journal_that_was_lost_gets_the_schedules_again():
    world = clockwork()
    world.put(period=60.0)
    world.rig.journal.clear()
    world.rig.tell(ev.JournalTold({}, is_full=False, is_lost=True, news=[]))
    world.rig.write()

    after = clockwork(world)
    pass_time(after, 30.0)
    assert after.ticks == [60.0]


def test_one_that_is_not_durable_any_more_goes_from_the_journal():
    world = clockwork()
    world.put(period=60.0)
    pass_time(world, 1.0)
    assert {key[0] for key in world.rig.journal} >= {"d", "p"}

    world.put(period=60.0, durable=False)
    pass_time(world, 1.0)
    assert {key[0] for key in world.rig.journal}.isdisjoint("dp")
    pass_time(world, 40.0)
    assert world.ticks == [60.0]
    assert {key[0] for key in world.rig.journal}.isdisjoint("dp")


def test_one_that_this_hub_cannot_keep_stays_in_the_journal(monkeypatch):
    """The next hub may know its time zone."""
    world = clockwork()
    world.put(period=60.0)
    pass_time(world, 1.0)
    with monkeypatch.context() as patch:
        patch.setattr("taskmesh.hub.machine.books.schedule.Ticks", unknown)
        after = clockwork(world)
    assert "schedule.refused" in [record.kind for record in after.rig.records]
    after.rig.journal.clear()
    after.rig.tell(ev.JournalTold({}, is_full=False, is_lost=True, news=[]))
    after.rig.write()

    last = clockwork(after)
    pass_time(last, 30.0)
    assert last.ticks == [60.0]
