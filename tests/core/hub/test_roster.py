"""A hub that comes after another goes on when every pool of that one is back, not a lease later."""

import time

import pytest

from taskmesh.core.events import FromClient, FromHub, FromPool, LaneOpened
from taskmesh.core.hub import roster
from taskmesh.wire import messages as m
from taskmesh.wire.runs import Held, Run
from tests.core.rig import EPOCH, HubRig, PoolRig, spec

FORMER = EPOCH - 1


def told_by_former(*pools: str, version: int = 0, epoch: int = FORMER, settled: bool = True) -> m.Roster:
    """What the hub before had told its pools, each the first process of its name."""
    former = roster.PoolRoster(epoch, "")
    if settled:
        former.settle()
    for pool in pools:
        former.add(pool, 1)
    message = former.message()
    message.version += version
    return message


def again(rig: HubRig, count: int = 1) -> None:
    seqs = list(range(1, count + 1))
    run = Run(1, 0, seqs, [b"x"] * count, again=True)
    rig.tell(FromClient(1, m.Submit(1, [(1, spec())], [run])))


def rosters(rig: HubRig) -> list[m.Roster]:
    return [message for pool, message in rig.published if isinstance(message, m.Roster) and pool == ""]


@pytest.fixture
def rig() -> HubRig:
    """A hub that has just come after another, and a client that has come back to it."""
    rig = HubRig()
    rig.client()
    return rig


class TestWaiting:
    def test_what_is_submitted_again_waits_until_all_are_back(self, rig):
        told = told_by_former("p", "q")
        session = rig.join("p", epoch=FORMER, rosters=[told])
        again(rig)
        assert rig.state(1, 1) == "WAITING"
        rig.join("q", epoch=FORMER, rosters=[told])

        assert rig.state(1, 1) == "SENT"
        assert rig.now == 100.0
        assert rig.held[session] == [(1, 1, 1)]

    def test_all_were_back_before_the_client(self, rig):
        rig.join("p", epoch=FORMER, rosters=[told_by_former("p")])
        again(rig)

        assert rig.state(1, 1) == "SENT"

    def test_a_hello_that_comes_late_is_no_pool_that_is_back(self, rig):
        """It lists what its pool held once; the pool beats when it takes up a session, and only then."""
        again(rig)
        late = m.Hello("p", 1, 1, 2, ["default"], [], FORMER, 0, [], rosters=[told_by_former("p")])
        rig.tell(FromPool(late))
        rig.tell(LaneOpened(1, "tcp://127.0.0.1:1"))
        assert rig.state(1, 1) == "WAITING"

        held = [Held(1, 1, [1])]
        rig.join("p", number=2, epoch=FORMER, inventory=held, rosters=[told_by_former("p")])
        assert rig.state(1, 1) == "SENT"
        assert not any(rig.held.values()), "the pool has it"

    def test_a_pool_whose_first_session_ended_at_once_still_counts(self, rig):
        """It brings a roster of this hub as well by then."""
        again(rig)
        rig.join("q", epoch=FORMER, rosters=[told_by_former("p", "q")])
        here = m.Roster(EPOCH, 2, 2, roster.digest("p", 1) + roster.digest("q", 1), settled=False)
        rig.join("p", number=2, epoch=EPOCH, rosters=[told_by_former("p", "q"), here])

        assert rig.state(1, 1) == "SENT"

    def test_the_newest_roster_counts(self, rig):
        rig.join("p", epoch=FORMER, rosters=[told_by_former("p")])
        rig = HubRig()
        rig.client()
        rig.join("q", epoch=FORMER, rosters=[told_by_former("p", "q", "r", version=1)])
        rig.join("p", epoch=FORMER, rosters=[told_by_former("p", "q")])
        again(rig)

        assert rig.state(1, 1) == "WAITING"

    def test_a_pool_that_has_died_with_the_hub_costs_the_lease(self, rig):
        session = rig.join("p", epoch=FORMER, rosters=[told_by_former("p", "q")])
        again(rig)
        for _ in range(9):
            rig.after(1.0)
            rig.beat(session, "p")
        assert rig.state(1, 1) == "WAITING"
        rig.after(1.1)

        assert rig.state(1, 1) == "SENT"

    def test_so_does_one_that_came_back_as_another_process(self, rig):
        rig.join("p", epoch=FORMER, rosters=[told_by_former("p", "q")])
        rig.join("q", instance=2)
        again(rig)

        assert rig.state(1, 1) == "WAITING"

    def test_pools_that_are_new_are_not_counted(self, rig):
        rig.join("new")
        rig.join("p", epoch=FORMER, rosters=[told_by_former("p")])
        rig.join("newer")
        again(rig)

        assert rig.state(1, 1) == "SENT"

    def test_a_hub_that_nobody_told_a_roster_waits_for_the_lease(self, rig):
        rig.join("p", epoch=FORMER)
        again(rig)
        rig.after(9.0)

        assert rig.state(1, 1) == "WAITING"

    def test_who_has_missed_a_short_lived_hub_in_between_is_waited_for(self):
        """That hub had not heard all of the one before it: both rosters count."""
        rig = HubRig()
        rig.client()
        told = told_by_former("p", "q")
        between = FORMER - 2
        told.epoch = between - 1
        short = told_by_former("p", "new", epoch=between, settled=False)
        rig.join("p", epoch=between, rosters=[told, short])
        rig.join("new", epoch=between, rosters=[short])
        again(rig)
        assert rig.state(1, 1) == "WAITING"
        rig.join("q", epoch=told.epoch, rosters=[told])

        assert rig.state(1, 1) == "SENT"

    def test_a_hub_that_was_the_first_and_died_young_tells_of_all_its_pools(self, rig):
        rig.join("p", epoch=FORMER, rosters=[told_by_former("p", settled=False)])
        again(rig)

        assert rig.state(1, 1) == "SENT"

    def test_what_a_pool_lists_is_adopted_and_not_sent(self, rig):
        again(rig, 2)
        held = [Held(1, 1, [1])]
        session = rig.join("p", slots=4, epoch=FORMER, inventory=held, rosters=[told_by_former("p")])

        assert rig.state(1, 1) == "SENT"
        assert rig.held[session] == [(1, 2, 1)]

    def test_what_was_cancelled_meanwhile_is_not_sent(self, rig):
        again(rig, 2)
        rig._submits[1] = 1
        rig.cancel_unstarted(1, 1)
        rig.cancel(1, 2)
        rig.join("p", epoch=FORMER, rosters=[told_by_former("p")])

        assert rig.outcomes() == {1: "cancelled"}
        assert rig.state(1, 2) == "finished"


def test_a_million_that_wait_are_queued_in_portions():
    """No event takes longer than others may wait."""
    rig = HubRig(client_max_tasks=300_000)
    count = 100_000
    rig.client()
    hub = rig.hub
    run = Run(1, 0, list(range(1, count + 1)), [b"x"] * count, again=True)
    hub.handle(FromClient(1, m.Submit(1, [(1, spec())], [run])), rig.now)
    hello = m.Hello("p", 1, 1, 2, ["default"], [], FORMER, 0, [], rosters=[told_by_former("p")])
    hub.handle(FromPool(hello), rig.now)
    rig.beat(next(iter(hub.state.lanes)), "p")
    longest, steps = 0.0, 0
    while hub.state.recovery.waiting:
        assert hub.deadline <= rig.now
        before = time.process_time()
        hub.handle(FromPool(m.Beat(0, 0, "x", 0, 0, 0, [])), rig.now)
        longest = max(longest, time.process_time() - before)
        steps += 1

    assert steps >= count // roster.PORTION - 1
    assert longest < 0.05
    hub.check()
    assert hub.state.ledger.backlog.count() == count
    entries = [record.id & 0xFFFF_FFFF for record in hub.state.ledger.backlog.entries()]
    assert entries == sorted(entries), "first in, first out"


class TestTelling:
    """What pools are told, and when."""

    def test_who_has_beaten_is_told_of_once_the_hub_knows_all(self, rig):
        rig.after(11.0)
        rig.published.clear()
        rig.join("p")
        rig.after(0.5)
        (told,) = rosters(rig)
        assert (told.epoch, told.count) == (EPOCH, 1)
        rig.join("q")
        rig.after(0.5)
        assert rosters(rig)[-1].count == 2
        assert rosters(rig)[-1].version > told.version

    def test_a_hub_that_still_waits_for_pools_says_so(self, rig):
        session = rig.join("p", epoch=FORMER, rosters=[told_by_former("p", "q")])
        rig.after(5.0)
        rig.beat(session)
        (first,) = rosters(rig)
        assert not first.settled
        rig.after(6.0)

        assert rosters(rig)[-1].settled
        assert rosters(rig)[-1].version > first.version

    def test_who_has_left_is_on_it_no_more(self, rig):
        rig.after(11.0)
        rig.join("p")
        session = rig.join("q")
        rig.after(0.5)
        rig.tell(FromPool(m.Bye(EPOCH, session)))
        rig.after(0.5)

        assert rosters(rig)[-1].count == 1

    def test_a_new_session_of_the_same_process_changes_nothing_and_it_is_told_again(self, rig):
        rig.after(11.0)
        rig.join("p")
        rig.after(0.5)
        told = rosters(rig)[-1]
        rig.published.clear()
        rig.join("p", number=2, epoch=EPOCH, session=1)
        rig.after(0.5)

        assert rosters(rig) == [told]

    def test_the_pool_in_the_hub_s_own_process_is_not_on_it(self):
        rig = HubRig(local="p")
        rig.after(11.0)
        rig.join("p")
        rig.after(0.5)

        assert rosters(rig)[-1].count == 0

    def test_it_has_the_same_size_for_two_pools_and_for_hundreds(self):
        many = told_by_former(*(f"pool-{number}" for number in range(1000)))

        assert many.count == 1000
        assert 0 <= many.digest < 1 << 64


class TestPools:
    """What a pool brings to the next hub."""

    def test_the_newest_that_it_was_told(self):
        rig = PoolRig()
        newest = m.Roster(EPOCH, 2, 5, 77)
        for message in (m.Roster(EPOCH, 1, 4, 66), newest, m.Roster(EPOCH, 1, 4, 66), m.Roster(3, 9, 1, 1)):
            rig.tell(FromHub(message))
        rig.lose_lane()

        assert rig.of(m.Hello)[-1].rosters == [newest]

    def test_beside_that_of_a_hub_which_had_not_heard_all(self):
        rig = PoolRig()
        told, short = m.Roster(EPOCH, 2, 5, 77), m.Roster(EPOCH + 1, 1, 1, 5, settled=False)
        rig.tell(FromHub(told))
        rig.lose_lane()
        rig.welcome(epoch=EPOCH + 1)
        rig.tell(FromHub(short))
        rig.lose_lane()
        assert rig.of(m.Hello)[-1].rosters == [told, short]
        rig.welcome(epoch=EPOCH + 1)
        settled = m.Roster(EPOCH + 1, 2, 2, 6)
        rig.tell(FromHub(settled))
        rig.lose_lane()

        assert rig.of(m.Hello)[-1].rosters == [settled]
