"""Pools that leave, told to or not: what they hold, and who takes their place."""

import pytest

from taskmesh.core.events import FromClient, FromHub, FromPool, LinksLost
from taskmesh.messages import mesh_messages as m
from taskmesh.pool.machine.machine import PoolMachine
from taskmesh.pool.machine.settings import PoolSettings
from tests.core.rig import EPOCH, HubRig, handle, spec


@pytest.fixture
def rig() -> HubRig:
    return HubRig()


class TestCommandToLeave:
    """`drain` is for good, and for the process that was there."""

    def command(self, rig: HubRig, verb: str) -> None:
        rig.tell(FromClient(1, m.Command(1, verb, "p")))

    def drained(self, rig: HubRig) -> int:
        return sum(isinstance(one, m.PoolCommand) and one.verb == "drain" for _, one in rig.published)

    def test_a_beat_that_comes_late_does_not_bring_it_back(self, rig):
        session = rig.join()
        rig.beat(session, state="draining")
        rig.beat(session, state="ready")
        rig.client()
        rig.submit(1, 1)

        assert rig.held[session] == []

    def test_a_resume_for_all_does_not_take_it_back_while_it_is_under_way(self, rig):
        rig.client()
        session = rig.join()
        self.command(rig, "drain")
        self.command(rig, "resume")
        rig.beat(session)

        assert self.drained(rig) == 2, "said again: the first word of it was lost"

    @pytest.mark.parametrize(("instance", "times"), [(1, 2), (2, 1)])
    def test_who_takes_the_place_of_a_process_that_was_told_to_leave_stays(self, rig, instance, times):
        rig.client()
        rig.join()
        self.command(rig, "drain")
        rig.tell(LinksLost(rig.session()))
        rig.join(instance=instance, number=2)

        assert self.drained(rig) == times

    def test_one_that_leaves_is_given_nothing_when_it_is_to_resume(self, rig):
        """The beat of before, which comes late, has not obeyed: what is wanted of it is no answer either."""
        rig.client()
        session = rig.join()
        rig.beat(session, state="draining")
        self.command(rig, "resume")
        rig.beat(session, state="paused")
        rig.submit(1, 1)

        assert rig.held[session] == []

    @pytest.mark.parametrize(("verb", "state"), [("drain", "draining"), ("pause", "paused")])
    def test_who_waits_for_the_same_name_obeys_no_command_to_who_has_it(self, rig, verb, state):
        rig.client()
        session = rig.join(instance=3)
        first, second = (PoolMachine(PoolSettings("p", instance, 1), 50.0) for instance in (3, 4))
        self.command(rig, verb)
        rig.beat(session)
        told = [one for _, one in rig.published if isinstance(one, m.PoolCommand)]
        for one in told:
            handle(first, FromHub(one), 50.0)
            handle(second, FromHub(one), 50.0)

        assert len(told) == 2, "at once and after a beat that does not state it"
        assert (first.state, second.state) == (state, "ready")

    @pytest.mark.parametrize("verb", ["drain", "pause"])
    @pytest.mark.parametrize(("instance", "times"), [(1, 2), (2, 1)])
    def test_who_was_cut_off_when_it_was_told_hears_it_when_it_is_back(self, rig, verb, instance, times):
        """For longer than its lease: its session has ended, and the wish was forgotten with it."""
        rig.client()
        rig.join()
        self.command(rig, verb)
        rig.after(rig.config.lease + 1.0)
        assert not rig.hub.state.lanes
        session = rig.join(instance=instance, number=2)
        rig.submit(1, 1)

        told = [one for _, one in rig.published if isinstance(one, m.PoolCommand) and one.verb == verb]
        assert len(told) == times
        assert (rig.held[session] == []) == (times == 2)

    def test_one_that_takes_its_place_for_a_while_does_not_take_the_wish_away(self, rig):
        """Seed 741315001338: who had been cut off came back after its twin, and was never told to leave."""
        rig.client()
        rig.join()
        self.command(rig, "drain")
        for instance in (2, 1):
            rig.after(rig.config.lease + 1.0)
            rig.join(instance=instance, number=2)
        assert self.drained(rig) == 2

        rig.beat(rig.session(), state="draining")
        rig.after(rig.config.lease + 1.0)
        rig.join(number=3)
        rig.beat(rig.session())
        assert self.drained(rig) == 2, "it is over for who has obeyed"

    def test_as_many_are_waited_for_as_a_hub_has_names_for(self, rig, monkeypatch):
        monkeypatch.setattr("taskmesh.hub.machine.state.MOST_DESIRED", 2)
        rig.client()
        for pool in "pqr":
            rig.join(pool)
            rig.tell(FromClient(1, m.Command(1, "drain", pool)))
        rig.after(rig.config.lease + 1.0)
        rig.published.clear()
        for pool in "pqr":
            rig.join(pool, number=2)

        told = [pool for pool, one in rig.published if isinstance(one, m.PoolCommand)]
        assert told == ["q", "r"], "the oldest is forgotten"


class TestLeavingInGoodOrder:
    """What was on its way to a pool that left was never started: an at-most-once task was lost of it."""

    def push(self, rig: HubRig) -> int:
        session = rig.join(slots=2)
        rig.client()
        rig.submit(1, 2, spec("once", acks="early"))
        assert len(rig.held[session]) == 2
        return session

    def test_what_it_has_not_reported_goes_to_others(self, rig):
        session = self.push(rig)
        rig.report(session, done=((1, 1, 1),))
        rig.tell(FromPool(m.Bye(EPOCH, session, 1)))
        other = rig.join("other", instance=2)

        assert rig.held[other] == [(1, 2, 2)]
        assert rig.outcomes() == {1: "done"}

    def test_unless_a_report_is_missing(self, rig):
        session = self.push(rig)
        rig.report(session, done=((1, 1, 1),))
        rig.tell(FromPool(m.Bye(EPOCH, session, 2)))

        assert rig.outcomes() == {1: "done", 2: "lost"}
