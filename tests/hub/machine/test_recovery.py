"""A hub that comes after another sends what is left two beats after the last pool has come back."""

import time

import pytest

from taskmesh.core.events import FromClient, FromPool
from taskmesh.hub.machine import recovery
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held, Run
from tests.core.rig import EPOCH, ONE, HubRig, handle, spec

FORMER = EPOCH - 1
QUIET = 2.0
LEASE = 10.0


def again(rig: HubRig, count: int = 1) -> None:
    seqs = list(range(1, count + 1))
    run = Run(ONE, 0, seqs, [b"x"] * count, again=True)
    rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [run])))


@pytest.fixture
def rig() -> HubRig:
    """A hub that has just come after another, and a client that has come back to it."""
    rig = HubRig()
    rig.client()
    return rig


class TestItsEnd:
    """The hub stops waiting for further pools."""

    def test_two_beats_after_the_last_pool(self, rig):
        again(rig)
        session = rig.join("p", epoch=FORMER)
        rig.after(QUIET - 0.1)
        assert rig.state(1, 1) == "WAITING"
        rig.after(0.1)

        assert rig.state(1, 1) == "SENT"
        assert rig.held[session] == [(1, 1, 1)]

    def test_the_hub_wakes_up_for_it(self, rig):
        again(rig)
        session = rig.join("p", epoch=FORMER)
        while rig.hub.deadline < rig.now + QUIET and rig.state(1, 1) == "WAITING":
            rig.now = max(rig.now, rig.hub.deadline)
            rig.beat(session)

        assert rig.state(1, 1) == "SENT"
        assert rig.now == 100.0 + QUIET

    def test_each_further_pool_makes_it_two_beats_more(self, rig):
        again(rig)
        for pool in ("p", "q", "r"):
            rig.join(pool, slots=4, epoch=FORMER)
            rig.after(QUIET - 0.1)
            assert rig.state(1, 1) == "WAITING"
        rig.after(0.1)

        assert rig.state(1, 1) == "SENT"

    def test_a_lease_at_the_latest_though_pools_still_come(self, rig):
        again(rig)
        for number in range(7):
            rig.join(f"p{number}", epoch=FORMER)
            rig.after(1.4)
        assert rig.state(1, 1) == "WAITING"
        rig.after(0.2)

        assert rig.state(1, 1) == "SENT"
        assert rig.now == pytest.approx(100.0 + LEASE)

    def test_a_lease_if_no_pool_comes_back(self, rig):
        """Those that are new have nothing of the former hub, and say nothing of those that have."""
        again(rig)
        session = rig.join("new")
        for _ in range(9):
            rig.after(1.0)
            rig.beat(session, "new")
        assert rig.state(1, 1) == "WAITING"
        rig.after(1.0)

        assert rig.state(1, 1) == "SENT"

    def test_a_pool_that_comes_back_twice_counts_once(self, rig):
        again(rig)
        rig.join("p", epoch=FORMER)
        rig.after(1.0)
        rig.join("p", number=2, epoch=EPOCH, session=1)
        rig.after(1.0)

        assert rig.state(1, 1) == "SENT"

    def test_a_pool_that_comes_when_it_is_over_does_not_begin_it_again(self, rig):
        rig.join("p", epoch=FORMER)
        rig.after(QUIET)
        rig.join("q", epoch=FORMER)
        again(rig)

        assert rig.state(1, 1) == "SENT"

    def test_time_in_which_the_hub_stands_still_does_not_count(self, rig):
        again(rig)
        rig.join("p", epoch=FORMER)
        rig.now += 60.0
        rig.join("q", epoch=FORMER)
        assert rig.state(1, 1) == "WAITING"
        rig.after(QUIET)

        assert rig.state(1, 1) == "SENT"


class TestWhatPoolsHold:
    """Tasks that a pool may list are not sent while the hub waits for it."""

    def test_what_a_pool_lists_is_adopted_and_not_sent(self, rig):
        again(rig, 2)
        session = rig.join("p", slots=4, epoch=FORMER, inventory=[Held(1, 1, [1])])
        assert rig.state(1, 1) == "SENT"
        rig.after(QUIET)

        assert rig.held[session] == [(1, 2, 1)]

    def test_a_pool_that_comes_later_drops_what_another_one_has_by_now(self, rig):
        """Its task may run twice, and has one outcome."""
        again(rig)
        session = rig.join("p", epoch=FORMER)
        rig.after(QUIET)
        assert rig.held[session] == [(1, 1, 1)]
        rig.hello("late", epoch=FORMER, inventory=[Held(1, 1, [1])])
        welcome = next(message for pool, message in reversed(rig.published) if pool == "late")
        assert isinstance(welcome, m.Welcome)
        assert welcome.stale == [Held(1, 1, [1])]
        rig.report(session, done=((1, 1, 1),))

        assert rig.outcomes() == {1: "done"}

    def test_a_pool_that_comes_later_keeps_what_no_other_one_has_yet(self, rig):
        again(rig, 3)
        first = rig.join("p", slots=1, epoch=FORMER)
        rig.after(QUIET)
        assert rig.held[first] == [(1, 1, 1)]
        second = rig.join("late", slots=1, epoch=FORMER, inventory=[Held(1, 1, [2])])

        assert rig.state(1, 2) == "SENT"
        assert rig.held[second] == []
        assert rig.state(1, 3) == "QUEUED"

    def test_what_was_cancelled_meanwhile_is_not_sent(self, rig):
        again(rig, 2)
        rig._submits[1] = 1
        rig.cancel_unstarted(1, 1)
        rig.cancel(1, 2)
        rig.join("p", epoch=FORMER)
        rig.after(QUIET)

        assert rig.outcomes() == {1: "cancelled"}
        assert rig.state(1, 2) == "finished"


def test_a_million_that_wait_are_queued_in_portions():
    """No event takes longer than others may wait."""
    rig = HubRig(client_max_tasks=300_000, stall=60.0)
    count = 100_000
    rig.client()
    hub = rig.hub
    run = Run(ONE, 0, list(range(1, count + 1)), [b"x"] * count, again=True)
    handle(hub, FromClient(1, m.Submit(1, [(ONE, spec())], [run])), rig.now)
    hello = m.Hello("p", 1, 1, 2, ["default"], [], FORMER, 0, [])
    handle(hub, FromPool(hello), rig.now)
    rig.beat(next(iter(hub.state.lanes)), "p")
    rig.now += QUIET
    longest, steps = 0.0, 0
    while hub.state.recovery.waiting:
        assert hub.deadline <= rig.now
        before = time.process_time()
        handle(hub, FromPool(m.Beat(0, 0, "x", 0, 0, 0, [])), rig.now)
        longest = max(longest, time.process_time() - before)
        steps += 1

    assert steps >= count // recovery.PORTION - 1
    assert longest < 0.05
    hub.check()
    assert hub.state.ledger.backlog.count() == count
    entries = [record.id & 0xFFFF_FFFF for record in hub.state.ledger.backlog.entries()]
    assert entries == sorted(entries), "first in, first out"
