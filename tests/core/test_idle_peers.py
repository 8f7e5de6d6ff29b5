"""Clients that have nothing say nothing, and of many pools each beats more rarely."""

import pytest

from taskmesh.core import events as ev
from taskmesh.core.events import Requested
from taskmesh.hub.machine.books.lanes import LaneState
from taskmesh.hub.machine.clients import IDLE_TTL
from taskmesh.messages import mesh_messages as m
from tests.core.client_rig import Client
from tests.core.rig import EPOCH, HubRig, PoolRig, spec

MINUTE = 60.0
PATIENCE = 3.0
GRACE = 5.0
LEASE = 10.0
EARLY = spec("once", acks="early")


class TestAClient:
    @pytest.fixture
    def idle(self) -> Client:
        """A client whose only task has ended a minute ago."""
        client = Client()
        client.welcome()
        client.submit(1)
        client.hear(m.Accepted(1))
        client.tell(Requested(m.CancelTasks([1])))
        client.pending.clear()
        client.hear(m.Accepted(2))
        client.after(MINUTE)
        return client

    def test_says_nothing_for_a_minute(self, idle):
        idle.sent.clear()
        idle.after(MINUTE)

        assert idle.sent == []
        assert idle.reconnects == 0
        assert idle.machine.open

    def test_asks_for_a_welcome_before_it_submits_something(self, idle):
        idle.sent.clear()
        idle.submit(2)
        assert [type(message) for message in idle.sent] == [m.ClientHello]

        idle.sent.clear()
        idle.welcome(known=True)
        assert idle.submitted() == [[2]]
        assert not any(run.again for submit in idle.of(m.Submit) for run in submit.runs)

    def test_beats_from_then_on_and_misses_the_hub_as_soon_as_any(self, idle):
        idle.submit(2)
        idle.welcome(known=True)
        idle.hear(m.Accepted(3))
        idle.sent.clear()
        idle.after(1.1)
        assert idle.of(m.ClientBeat)

        idle.after(PATIENCE - 1.0)
        assert idle.reconnects == 1

    def test_asks_again_until_it_is_welcomed(self, idle):
        idle.sent.clear()
        idle.submit(2)
        idle.after(3.5)

        assert [type(message) for message in idle.sent] == 4 * [m.ClientHello]

    @pytest.mark.parametrize("one", [spec(), EARLY], ids=["late", "early"])
    def test_that_finds_another_hub_loses_nothing(self, idle, one):
        idle.sent.clear()
        idle.submit(2, one=one)
        idle.welcome(epoch=2)

        assert idle.failed == []
        assert idle.submitted() == [[2]]

    @pytest.mark.parametrize("one", [spec(), EARLY], ids=["late", "early"])
    def test_that_its_hub_has_forgotten_loses_nothing(self, idle, one):
        idle.sent.clear()
        idle.submit(2, one=one)
        idle.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0))
        _, again = idle.of(m.ClientHello)
        assert idle.submitted() == [[2]]
        assert again.first == idle.of(m.Submit)[0].number

        idle.hear(m.ClientWelcome(1, 10_000, 1 << 30, 1.0, session=2))
        assert idle.failed == []
        assert idle.machine.open

    def test_asks_before_a_question_and_before_it_takes_from_a_sink(self, idle):
        idle.sent.clear()
        idle.tell(Requested(m.Query(1, "status")))
        idle.tell(ev.SinkOpened("s", 100))
        assert {type(message) for message in idle.sent} == {m.ClientHello}

        idle.sent.clear()
        idle.welcome(known=True)
        assert [type(message) for message in idle.sent] == [m.SinkReport, m.Query]

    def test_with_an_unanswered_question_is_not_silent(self, idle):
        idle.tell(Requested(m.Query(1, "status")))
        idle.welcome(known=True)
        idle.sent.clear()
        idle.after(1.1)
        assert idle.of(m.ClientBeat)

        idle.hear(m.Answer(1, {}))
        idle.sent.clear()
        idle.after(MINUTE)
        assert idle.sent == []

    def test_says_goodbye_without_asking(self, idle):
        idle.sent.clear()
        idle.tell(Requested(m.ClientBye(cancel=False)))

        assert idle.sent == [m.ClientBye(cancel=False)]


class TestAHubAndItsClients:
    @pytest.fixture
    def rig(self) -> HubRig:
        rig = HubRig(first=True)
        rig.client()
        return rig

    def present(self, rig: HubRig) -> bool:
        return rig.hub.state.clients[1].present

    def test_one_without_tasks_is_not_missed_nor_asked(self, rig):
        rig.told[1].clear()
        rig.after(IDLE_TTL - 1.0)

        assert self.present(rig)
        assert rig.told[1] == []

    def test_and_is_forgotten_after_a_minute(self, rig):
        rig.after(IDLE_TTL + 0.5)

        assert rig.hub.state.clients == {}
        assert not rig.hub.state.ledger.accounts

    def test_one_that_is_back_after_that_has_its_tasks_run(self, rig):
        rig.join()
        rig.after(IDLE_TTL + 0.5)
        rig.told[1].clear()
        for _ in range(2):
            rig.tell(ev.FromClient(1, m.ClientHello(1, EPOCH, first=1, credit=1 << 20)))
        assert [welcome.session for welcome in rig.told[1]] == [0, 2]

        session = rig.join(number=2)
        (seq,) = rig.submit(one=EARLY)
        rig.report(session, done=((1, seq, 1),))
        assert rig.outcomes() == {seq: "done"}

    def test_one_with_tasks_is_missed(self, rig):
        rig.submit()

        rig.after(GRACE + 0.5)
        assert not self.present(rig)

    def test_nor_is_one_forgotten_that_has_not_acknowledged_an_outcome(self, rig):
        session = rig.join()
        rig.submit()
        rig.report(session, done=((1, 1, 1),))

        rig.after(GRACE + 0.5)
        assert not self.present(rig)
        rig.after(2 * IDLE_TTL)
        assert list(rig.hub.state.clients) == [1]


class TestPools:
    def welcomed(self, rig: HubRig) -> list[m.Welcome]:
        return [message for _, message in rig.published if isinstance(message, m.Welcome)]

    def test_each_of_few_beats_every_second_and_the_thousandth_four_times_a_lease(self):
        rig = HubRig(first=True, lease=LEASE)
        for number in range(1_000):
            rig.hello(f"p-{number}")

        beats = [welcome.beat for welcome in self.welcomed(rig)]
        assert len(beats) == 1_000
        assert beats[:200] == [1.0] * 200
        assert (beats[299], beats[399], beats[499]) == (1.5, 2.0, 2.5)
        assert beats[500:] == [LEASE / 4] * 500
        assert {welcome.lease for welcome in self.welcomed(rig)} == {LEASE}

    def test_a_long_beat_is_not_shortened_by_a_short_lease(self):
        rig = HubRig(first=True, beat=1.0, lease=2.0)
        rig.hello()

        assert self.welcomed(rig)[0].beat == 1.0

    def test_one_of_many_is_silent_after_as_many_beats_as_one_of_few(self):
        rig = HubRig(first=True, lease=LEASE)
        for number in range(500):
            rig.hello(f"p-{number}")
        last = rig.join("last")
        lane = rig.hub.state.lanes[last]

        rig.after(2.5 * 2.5 - 0.1)
        assert lane.state is LaneState.READY
        rig.after(0.5)
        assert lane.state is LaneState.SILENT

    def test_what_one_of_many_has_been_sent_between_two_beats_is_not_taken_for_lost(self):
        rig = HubRig(first=True, lease=LEASE)
        for number in range(500):
            rig.hello(f"p-{number}")
        rig.client()
        last = rig.join("last", queues=["q"])
        rig.submit(one=spec(queue="q"))
        received = rig.hub.state.lanes[last].sequence
        assert received == 1

        rig.after(2.5)
        rig.tell(ev.FromPool(m.Beat(EPOCH, last, "last", 0, 0, 0, [], "ready")))
        rig.after(2.5)
        rig.tell(ev.FromPool(m.Beat(EPOCH, last, "last", 0, 0, 0, [], "ready")))
        replies = [message for pool, message in rig.published if isinstance(message, m.BeatReply)]
        assert [reply.session for reply in replies[-2:]] == [last, last]

        rig.after(2.5)
        rig.tell(ev.FromPool(m.Beat(EPOCH, last, "last", 0, 0, 0, [], "ready")))
        assert rig.published[-1][1].session == 0, "it is to say Hello, with all that it holds"

    def test_one_that_is_gone_gets_no_second_task_and_the_first_comes_back_after_the_lease(self):
        rig = HubRig(first=True, lease=LEASE)
        rig.client()
        session = rig.join(slots=2)
        rig.after(1.0)
        (first,) = rig.submit()

        rig.after(2.0)
        assert rig.hub.state.lanes[session].state is LaneState.SILENT
        (second,) = rig.submit()
        assert [rig.state(1, seq) for seq in (first, second)] == ["SENT", "QUEUED"]
        rig.after(LEASE - 3.0 + 0.5)
        assert not rig.hub.state.lanes
        assert rig.state(1, first) == "QUEUED"


class TestAPool:
    @pytest.fixture
    def rig(self) -> PoolRig:
        """A pool that has been told to beat every two and a half seconds."""
        rig = PoolRig()
        rig.lose_lane()
        hello = rig.of(m.Hello)[-1]
        rig.tell(ev.FromHub(m.Welcome(EPOCH, 2, "p", 1, hello.number, "port", 2.5, LEASE)))
        rig.after(0.0)
        rig.sent.clear()
        return rig

    def beats(self, rig: PoolRig) -> int:
        found = sum(isinstance(message, m.Beat) for message in rig.sent)
        rig.sent.clear()
        return found

    def test_it_beats_as_it_is_told(self, rig):
        for _ in range(4):
            rig.after(2.4)
            assert self.beats(rig) == 0
            rig.after(0.1)
            assert self.beats(rig) == 1
            rig.tell(ev.FromHub(m.BeatReply(EPOCH, 2, 0)))

    def test_the_hub_is_gone_when_three_of_its_beats_are_not_answered(self, rig):
        for _ in range(3):
            rig.after(2.5)
        assert rig.pool.session == 2
        rig.after(2.5)
        assert rig.pool.session == 0
