"""V2: a pool with a membership at each of two hubs, which share its slots, and a client that moves."""

import pytest

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.core.pool.machine import PoolMachine
from taskmesh.core.pool.settings import PoolSettings
from taskmesh.wire import messages as m
from taskmesh.wire.runs import Held, LaneRun, Spec
from tests.core.client_rig import Client, delivery
from tests.core.rig import PoolRig, number_of, spec

A, B = 0, 1
LEASE = 3.0
EPOCHS = (7, 70)


class TwoHubsRig(PoolRig):
    """A pool that both hubs have welcomed."""

    def __init__(self, slots: int = 1) -> None:
        super().__init__(slots, welcome=False)
        self.pool = PoolMachine(
            PoolSettings("p", 1, slots, lease=LEASE, hubs=("tcp://a", "tcp://b")), self.now
        )
        self.sequence = [0, 0]
        self.tell(ev.Tick())
        for slot in range(slots):
            self.tell(ev.SlotReady(slot, 100 + slot))
        for hub in (A, B):
            self.welcome_by(hub)

    def welcome_by(self, hub: int, session: int = 1, epoch: int = 0) -> None:
        hello = self.to(hub, m.Hello)[-1]
        self.sequence[hub] = 0
        welcome = m.Welcome(
            *(epoch or EPOCHS[hub], session, "p", hello.instance, hello.number), "port", 1.0, LEASE
        )
        self.tell(ev.FromHub(welcome, hub))

    def push_from(self, hub: int, *seqs: int, client: int = 1, one: Spec | None = None) -> None:
        one = one or spec()
        member = self.pool.members[hub]
        self.sequence[hub] += 1
        run = LaneRun(number_of(one), client, 1, 0, list(seqs), [b"x"] * len(seqs))
        tasks = m.Tasks(
            member.epoch, member.session, self.sequence[hub], 0, 1.0, [(number_of(one), one)], [run]
        )
        self.tell(ev.FromHub(tasks, hub))

    def to(self, hub: int, kind: type) -> list:
        found = [one for one in self.actions if isinstance(one, act.SendHub | act.SendBeat)]
        return [one.message for one in found if one.hub == hub and isinstance(one.message, kind)]

    def reported(self, hub: int) -> list[tuple[int, int]]:
        reports = self.to(hub, m.Results)
        return [(run.client, seq) for results in reports for run in results.done for seq in run.seqs]

    def handed_back(self, hub: int) -> list[tuple[int, int]]:
        reports = self.to(hub, m.Results)
        return [(held.client, seq) for one in reports for held in one.returned for seq in held.seqs]

    def acknowledge(self, hub: int) -> None:
        member = self.pool.members[hub]
        reply = m.BeatReply(member.epoch, member.session, member.spool.reports.next - 1, member.session)
        self.tell(ev.FromHub(reply, hub))


@pytest.fixture
def rig() -> TwoHubsRig:
    return TwoHubsRig()


def test_each_hub_hears_of_its_own_tasks_though_they_have_the_same_ids(rig):
    """A client that has moved has submitted them to both."""
    rig.push_from(A, 1)
    rig.push_from(B, 1)
    rig.finish(0)
    rig.finish(0)

    assert rig.reported(A) == [(1, 1)]
    assert rig.reported(B) == [(1, 1)]


def test_slots_see_the_client_as_the_hub_named_it(rig):
    rig.push_from(B, 1, client=5)

    (handed,) = rig.of(act.HandOver)
    assert [run.client for run in handed.message.runs] == [5]


def test_a_cancellation_ends_the_task_of_its_own_hub_alone(rig):
    rig.push_from(A, 1)
    rig.push_from(B, 1)
    rig.tell(ev.FromHub(m.Cancel(EPOCHS[B], 1, [Held(1, 1, [1])]), B))
    rig.finish(0)

    assert rig.of(act.KillSlot) == []
    assert rig.reported(A) == [(1, 1)]
    assert rig.handed[0] == []


def test_a_recall_takes_what_came_from_that_hub(rig):
    rig.push_from(A, 1)
    rig.push_from(A, 2, 3)
    rig.push_from(B, 4, 5)
    rig.tell(ev.FromHub(m.Recall(EPOCHS[A], 1, 10), A))

    assert rig.handed_back(A) == [(1, 2), (1, 3)]
    assert rig.handed_back(B) == []
    rig.finish(0)
    assert rig.handed[0] == [(1, 4, 1), (1, 5, 1)]


def test_each_is_told_what_runs_of_its_own_and_which_slots_it_may_count_on():
    rig = TwoHubsRig(slots=3)
    rig.push_from(A, 1)
    rig.push_from(A, 2)
    rig.push_from(B, 1, client=9)
    rig.after(1.0)
    first, second = rig.to(A, m.Beat)[-1], rig.to(B, m.Beat)[-1]

    assert sorted(progress.seq for progress in first.running) == [1, 2]
    assert [(progress.client, progress.seq) for progress in second.running] == [(9, 1)]
    assert (first.slots, second.slots) == (2, 1)
    assert (first.served, first.away) == (["tcp://b"], [])


def test_an_inventory_lists_what_its_own_hub_gave(rig):
    rig.push_from(A, 1)
    rig.push_from(B, 2, client=9)
    rig.now += 0.6
    rig.tell(ev.HubLaneLost(B))

    assert rig.to(B, m.Hello)[-1].inventory == [Held(9, 1, [2])]
    assert rig.pool.members[A].session == 1
    rig.after(1.0)
    assert rig.to(A, m.Beat)[-1].away == ["tcp://b"]


def test_a_hub_that_is_away_costs_the_other_nothing(rig):
    """Its tasks run to their end, and are reported when it is back."""
    rig.push_from(B, 1)
    rig.now += 0.6
    rig.tell(ev.HubLaneLost(B))
    rig.finish(0)
    rig.push_from(A, 2)
    rig.finish(0)
    assert rig.reported(A) == [(1, 2)]
    assert rig.reported(B) == []
    rig.welcome_by(B, epoch=99)

    assert rig.reported(B) == [(1, 1)]


def test_after_a_long_stop_only_the_tasks_of_hubs_that_have_said_what_is_wanted_start(rig):
    rig.push_from(A, 1)
    rig.push_from(A, 2)
    rig.push_from(B, 3)
    rig.after(2 * LEASE)
    rig.finish(0)
    assert rig.handed[0] == []
    rig.welcome_by(B, session=2)

    assert rig.handed[0] == [(1, 3, 1)]


def test_a_drain_leaves_all_and_waits_for_each_that_is_there(rig):
    rig.push_from(A, 1)
    rig.push_from(B, 2)
    rig.tell(ev.DrainRequested(30.0))
    rig.finish(0)
    assert rig.handed_back(B) == [(1, 2)]
    rig.acknowledge(A)
    assert rig.of(act.Leave) == []
    rig.acknowledge(B)

    assert rig.of(act.Leave) == [act.Leave("")]
    assert len(rig.to(A, m.Bye)) == len(rig.to(B, m.Bye)) == 1


def test_a_drain_does_not_wait_for_a_hub_that_is_not_there(rig):
    rig.push_from(B, 1)
    rig.tell(ev.DrainRequested(30.0))
    rig.finish(0)
    for _ in range(4):
        rig.after(1.0)
        if not rig.of(act.Leave):
            rig.acknowledge(A)

    assert rig.of(act.Leave) == [act.Leave("")]


def test_one_hub_refuses_the_pool_and_it_serves_the_other():
    rig = PoolRig(1, welcome=False)
    rig.pool = PoolMachine(PoolSettings("p", 1, 1, lease=LEASE, hubs=("tcp://a", "tcp://b")), rig.now)
    rig.tell(ev.Tick())
    rig.tell(ev.FromHub(m.Refused("p", 1, "not wanted"), A))
    assert rig.of(act.Leave) == []
    before = len(rig.of(m.Hello))
    rig.after(LEASE / 2)
    rig.after(LEASE)
    assert [one.hub for one in rig.of(act.SendHub)[before:]].count(A) == 1, "it asks again after a lease"
    rig.tell(ev.FromHub(m.Refused("p", 2, "neither"), B))

    assert rig.of(act.Leave) == [act.Leave("not wanted; neither")]


def test_a_hub_with_two_addresses_knows_the_memberships_apart(rig):
    first, second = rig.to(A, m.Hello)[0], rig.to(B, m.Hello)[0]

    assert (first.pool, second.pool) == ("p", "p")
    assert first.instance != second.instance


def test_the_gateway_of_a_task_s_own_hub_is_named(rig):
    rig.push_from(B, 1)
    rig.tell(ev.SlotAsked(0, 0))

    assert rig.of(act.AnswerSlot) == [act.AnswerSlot(0, True, B)]


@pytest.mark.parametrize(("known", "number"), [(True, 3), (False, 1)])
def test_a_client_that_is_back_with_a_hub_goes_on_with_its_count_of_deliveries(known, number):
    """Unless that hub has forgotten it: it would acknowledge nothing, or take new outcomes for old ones."""
    client = Client()
    client.welcome(1)
    client.submit(1, 2, 3)
    client.hear(delivery(1, 1))
    client.hear(delivery(2, 2))
    client.tell(ev.LinkLost())
    client.welcome(2)
    client.tell(ev.LinkLost())
    client.welcome(1, known=known)
    client.hear(delivery(number, 3))
    client.after(0.1)

    assert client.resolved == [1, 2, 3]
    assert client.of(m.ResultAck)[-1] == m.ResultAck(1, number)


def test_a_cancelled_task_that_waits_is_remembered_while_its_hub_has_to_say_what_is_wanted():
    """Seed 140490402741: the pool stood still for longer than a lease after the cancellation."""
    rig = PoolRig(slots=1)
    rig.push(1, 2, 3, 4)
    rig.tell(ev.FromHub(m.Cancel(rig.pool.epoch, rig.pool.session, [Held(1, 1, [4])])))
    rig.now += 10.0
    rig.tell(ev.Tick())
    rig.pool.check()

    assert rig.pool.scheduler.cancelled == {(1, 4, 1)}
