"""Hundreds of pools: what ends at one of them costs no look at all the others."""

from collections import Counter

import pytest

from taskmesh.core import events as ev
from taskmesh.hub.machine.books.lanes import Lane
from taskmesh.messages import mesh_messages as m
from tests.core.rig import EPOCH, HubRig

POOLS = 100


@pytest.fixture
def calls(monkeypatch) -> Counter[str]:
    """How often lanes were weighed, and asked what they serve."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(Lane, name)

        def call(self: Lane, argument: object) -> object:
            counted[name] += 1
            return real(self, argument)

        monkeypatch.setattr(Lane, name, call)

    for name in ("load", "serves", "is_silent", "may_take"):
        count(name)
    return counted


def busy_pools(elapsed: float, tasks: int) -> HubRig:
    """Pools that have been given tasks of which the hub knows how many seconds they take."""
    rig = HubRig()
    rig.client()
    sessions = [rig.join(f"p{number}", slots=1) for number in range(POOLS)]
    rig.submit(1, 1)
    (first,) = (session for session in sessions if rig.held[session])
    rig.report(first, done=(rig.held[first][0],), elapsed=elapsed)
    rig.submit(1, tasks)
    return rig


@pytest.fixture
def rig() -> HubRig:
    """Every pool has all that it has room for of tasks of 10 ms, and more of them wait."""
    return busy_pools(0.01, 5 * POOLS)


def test_a_task_that_ends_has_no_full_lane_weighed(rig, calls):
    held = {session: len(keys) for session, keys in rig.held.items()}
    for session in list(rig.held)[:10]:
        rig.report(session, done=(rig.held[session][0],), elapsed=0.01)

    assert calls["load"] < 50, "some for each; all others' for each were 1,000"
    assert calls["serves"] < 50
    assert {session: len(keys) for session, keys in rig.held.items()} == held, "each has another"


def test_a_task_has_no_pool_of_another_queue_looked_at(calls):
    rig = HubRig()
    rig.client()
    for number in range(POOLS):
        rig.join(f"p{number}", slots=1, queues=["other"])
    session = rig.join("own", slots=1)
    rig.submit(1, 1)
    rig.report(session, done=(rig.held[session][0],), elapsed=0.005)
    rig.submit(1, 20)
    calls.clear()
    rig.report(session, done=(rig.held[session][0],), elapsed=0.005)

    assert 0 < len(rig.held[session]) < 20
    assert 0 < sum(calls.values()) < 20, "some for each step; all others' were 100 for each"


def test_a_lane_that_was_full_gets_more_when_its_pool_has_more_slots(rig):
    session = next(iter(rig.held))
    before = len(rig.held[session])
    rig.beat(session, "p0", slots=3)

    assert len(rig.held[session]) > before


def test_a_lane_that_was_full_gets_more_when_its_link_turns_out_slow(rig):
    session = next(iter(rig.held))
    before = len(rig.held[session])
    results = m.Results(EPOCH, session, 9, [], [], [], echo=rig.now - 0.1, lag=0.1)
    rig.tell(ev.FromPool(results))

    assert len(rig.held[session]) > before


def test_who_could_help_is_asked_once_for_all_that_are_stuck_with_the_same(calls):
    rig = busy_pools(0.001, 2 * POOLS)
    assert [len(held) for held in rig.held.values()] == [2] * POOLS
    for number in range(POOLS):
        rig.join(f"idle-{number}", slots=1)
    calls.clear()
    rig.published.clear()
    rig.now += 0.006
    rig.tell(ev.Tick())

    told = [pool for pool, message in rig.published if isinstance(message, m.Recall)]
    assert len(told) == POOLS
    assert calls["serves"] < 3 * POOLS, "each of each was 10,000, for every event"
