"""Peers that have nothing rest: they beat rarely, and are missed no later when it matters."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.hub.lanes import LaneState
from taskmesh.wire import messages as m
from tests.core.client_rig import Client
from tests.core.rig import EPOCH, HubRig, PoolRig

REST = 10.0
POOL_REST = 5.0
PATIENCE = 3.0
GRACE = 5.0
LEASE = 10.0


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig(first=True)
    rig.client()
    return rig


def answer(rig: HubRig) -> m.Accepted:
    rig.tell(ev.FromClient(1, m.ClientBeat(EPOCH)))
    return next(message for message in reversed(rig.told[1]) if isinstance(message, m.Accepted))


def reply(rig: HubRig) -> m.BeatReply:
    return next(message for _, message in reversed(rig.published) if isinstance(message, m.BeatReply))


class TestAHubAndItsClients:
    def present(self, rig: HubRig) -> bool:
        return rig.hub.state.clients[1].present

    def test_one_without_tasks_rests_and_is_away_after_that(self, rig):
        assert answer(rig).rest == REST

        rig.after(REST + GRACE - 0.5)
        assert self.present(rig)
        rig.after(1.0)
        assert not self.present(rig)

    def test_one_with_tasks_does_not(self, rig):
        rig.submit()

        assert answer(rig).rest == 0
        rig.after(GRACE + 0.5)
        assert not self.present(rig)

    def test_nor_one_that_has_not_acknowledged_an_outcome(self, rig):
        session = rig.join()
        rig.submit()
        rig.report(session, done=((1, 1, 1),))

        assert answer(rig).rest == 0
        rig.tell(ev.FromClient(1, m.ResultAck(EPOCH, 1)))
        assert answer(rig).rest == REST

    def test_what_it_says_ends_its_rest(self, rig):
        answer(rig)
        rig.submit()

        rig.after(GRACE + 0.5)
        assert not self.present(rig)


class TestAHubAndItsPools:
    def test_one_that_has_nothing_rests_and_is_silent_after_that(self, rig):
        session = rig.join()

        assert reply(rig).rest == POOL_REST
        rig.after(POOL_REST + 2.0)
        assert rig.hub.state.lanes[session].state is LaneState.READY
        rig.after(1.0)
        assert rig.hub.state.lanes[session].state is LaneState.SILENT

    def test_one_with_tasks_does_not(self, rig):
        session = rig.join()
        rig.submit()

        rig.beat(session)
        assert reply(rig).rest == 0

    def test_one_that_is_gone_gets_no_second_task_and_the_first_comes_back_after_the_lease(self, rig):
        session = rig.join(slots=2)
        rig.after(4.0)
        (first,) = rig.submit()

        rig.after(3.0)
        assert rig.hub.state.lanes[session].state is LaneState.SILENT
        (second,) = rig.submit()
        assert [rig.state(1, seq) for seq in (first, second)] == ["SENT", "QUEUED"]
        rig.after(LEASE - 7.0 + 0.5)
        assert not rig.hub.state.lanes
        assert rig.state(1, first) == "QUEUED"

    def test_one_whose_name_another_asks_for_rests_and_keeps_it(self, rig):
        session = rig.join()
        for _ in range(5):
            rig.hello(instance=2)
            rig.after(1.0)
        assert not [message for _, message in rig.published if isinstance(message, m.Refused)]
        rig.beat(session)
        assert reply(rig).rest == POOL_REST
        rig.hello(instance=2)

        assert [message.instance for _, message in rig.published if isinstance(message, m.Refused)] == [2]
        assert rig.hub.state.lanes.keys() == {session}

    def test_those_of_a_hub_that_was_there_before_rest_when_all_are_back(self):
        rig = HubRig()
        session = rig.join()

        assert reply(rig).rest == 0
        rig.after(LEASE - 1)
        rig.beat(session)
        rig.after(2.0)
        rig.beat(session)
        assert reply(rig).rest == POOL_REST


class TestAClient:
    @pytest.fixture
    def session(self) -> Client:
        session = Client()
        session.welcome()
        session.after(1.1)
        session.hear(m.Accepted(0, REST))
        session.sent.clear()
        return session

    def test_it_rests(self, session):
        session.after(REST - 0.5)
        assert not session.sent
        session.after(1.0)
        assert session.of(m.ClientBeat)
        assert not session.reconnects

    def test_a_beat_after_a_rest_that_is_not_answered_tells_that_the_hub_is_gone(self, session):
        session.after(REST + PATIENCE + 0.5)
        assert session.reconnects == 1

    def test_with_a_task_it_beats_as_always_and_misses_the_hub_as_soon(self, session):
        session.after(5.0)
        session.submit(1)

        session.after(1.1)
        assert session.of(m.ClientBeat)
        session.after(PATIENCE - 1.0)
        assert session.reconnects == 1

    def test_an_answer_to_a_beat_of_before_is_too_late(self, session):
        session.after(REST + 0.1)
        session.submit(1)
        session.hear(m.Accepted(0, REST))

        session.sent.clear()
        session.after(1.1)
        assert session.of(m.ClientBeat)


class TestAPool:
    @pytest.fixture
    def rig(self) -> PoolRig:
        rig = PoolRig()
        self.rest(rig)
        return rig

    def rest(self, rig: PoolRig) -> None:
        rig.tell(ev.FromHub(m.BeatReply(EPOCH, 1, 0, 1, rest=1.5)))
        rig.sent.clear()

    def test_it_rests(self, rig):
        rig.after(1.4)
        assert not rig.sent
        rig.after(0.2)
        assert [type(message) for message in rig.sent] == [m.Beat]

    def test_it_beats_at_once_when_it_has_a_task(self, rig):
        rig.after(0.1)
        rig.push(1)

        (beat,) = (message for message in rig.sent if isinstance(message, m.Beat))
        assert beat.received == 1
        rig.sent.clear()
        rig.after(1.0)
        assert any(isinstance(message, m.Beat) for message in rig.sent), "and as always then"

    def test_an_answer_to_a_beat_of_before_is_too_late(self, rig):
        rig.push(1)
        self.rest(rig)

        rig.after(1.0)
        assert any(isinstance(message, m.Beat) for message in rig.sent)

    def test_the_hub_is_gone_when_beats_after_that_are_not_answered(self, rig):
        rig.after(1.6)
        for _ in range(28):
            rig.after(0.1)
        assert rig.pool.session == 1
        rig.after(0.3)
        assert rig.pool.session == 0
