"""Pools come, fall silent, come back: each step costs them only what it must."""

import pytest

from taskmesh.core.events import FromClient, FromPool, LaneLost, LaneOpened, LinksLost, Tick
from taskmesh.hub.machine import pools
from taskmesh.hub.machine.books.lanes import LaneState
from taskmesh.hub.machine.figures.lines import LastLines
from taskmesh.hub.machine.views import views
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import DoneRun, Held, LogLine, Progress, Run
from tests.core.rig import EPOCH, ONE, HubRig, spec


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def last(rig: HubRig, kind: type) -> object:
    return next(message for _, message in reversed(rig.published) if isinstance(message, kind))


class TestHello:
    def test_it_opens_a_lane_and_is_answered(self, rig):
        rig.hello()

        welcome = last(rig, m.Welcome)
        assert (welcome.session, welcome.epoch, welcome.lane, welcome.number) == (1, EPOCH, "port-1", 1)

    def test_repeated_it_is_answered_again_and_opens_nothing(self, rig):
        rig.hello()
        rig.hello()

        assert [message.session for _, message in rig.published if isinstance(message, m.Welcome)] == [1, 1]
        assert list(rig.hub.state.lanes) == [1]

    def test_an_older_one_is_passed_over(self, rig):
        rig.hello(number=1)
        rig.hello(number=2)
        rig.hello(number=1)

        assert list(rig.hub.state.lanes) == [2]

    def test_repeated_after_its_session_has_ended_it_opens_another(self, rig):
        """With only the way to the pool cut, it goes on saying the same Hello; it was ignored for ever."""
        rig.hello()
        rig.after(11.0)
        assert not rig.hub.state.lanes
        rig.hello()

        assert list(rig.hub.state.lanes) == [2]
        assert last(rig, m.Welcome).session == 2

    def test_another_version_is_told_so(self, rig):
        rig.hello(protocol=99)

        assert "install the same taskmesh" in last(rig, m.Refused).reason
        assert "p" in rig.hub.snapshot()["refused"]
        assert not rig.hub.state.lanes

    def test_without_a_lane_those_who_ask_are_told_once_until_there_is_one(self, rig):
        rig.has_ports = False
        rig.hello()
        rig.hello(number=2)

        assert "--lanes FIRST-LAST" in rig.hub.snapshot()["refused"]["p"]
        assert [record.kind for record in rig.records].count("pool.refused") == 1
        assert not rig.published
        rig.has_ports = True
        rig.hello(number=3)
        assert last(rig, m.Welcome).lane == "port-3"
        assert rig.hub.snapshot()["refused"] == {}

    def test_a_lane_that_is_bound_too_late_is_closed(self, rig):
        rig.tell(LaneOpened(77, "port"))

        assert rig.closed == [77]


class TestNewSession:
    def test_what_the_pool_still_holds_moves_over_and_is_not_sent_again(self, rig):
        first = rig.join(slots=2)
        rig.submit(1, 2)
        second = rig.join(slots=2, number=2, epoch=EPOCH, inventory=[Held(1, 1, [1])])

        assert rig.closed == [first]
        assert rig.held[second] == [(1, 2, 2)], "the other one never arrived"
        rig.report(second, done=((1, 1, 1),))
        assert rig.outcomes() == {1: "done"}

    def test_an_at_most_once_task_that_never_arrived_is_sent_again(self, rig):
        """The same pool says that it has not got it, so it cannot have started there."""
        rig.join(slots=2)
        rig.submit(1, 1, spec("once", acks="early"))
        second = rig.join(slots=2, number=2, epoch=EPOCH)

        assert rig.held[second] == [(1, 1, 2)]

    def test_but_not_when_the_pool_was_started_anew(self, rig):
        rig.join(slots=2)
        rig.submit(1, 1, spec("once", acks="early"))
        rig.tell(LinksLost(rig.session()))
        rig.join(slots=2, number=1, instance=2)

        assert rig.outcomes() == {1: "lost"}

    def test_another_process_of_the_name_waits_until_the_first_is_gone(self, rig):
        first = rig.join(slots=2)
        rig.hello(slots=2, instance=2)
        assert rig.session() == first
        rig.tell(LinksLost(rig.session()))
        second = rig.join(slots=2, instance=2)

        assert second != first
        assert not self.refused(rig)

    def test_or_until_the_lease_of_the_first_has_run_out(self, rig):
        first = rig.join(slots=2)
        for _ in range(9):
            rig.after(1.0)
            rig.hello(slots=2, instance=2)
            assert rig.session() == first
        rig.after(1.5)
        second = rig.join(slots=2, instance=2)

        assert second != first
        assert not self.refused(rig)

    def test_it_is_refused_when_the_first_is_heard_long_after_it(self, rig):
        first = rig.join(slots=2)
        for _ in range(3):
            for _ in range(5):  # beats that had been under way for long come in a burst
                rig.beat(first)
                rig.hello(slots=2, instance=2)
            assert not self.refused(rig)
            rig.after(1.0)
        rig.beat(first)
        rig.hello(slots=2, instance=2)

        [refused] = self.refused(rig)
        assert refused.instance == 2
        assert "--name" in refused.reason
        assert rig.session() == first

    def test_it_is_refused_again_when_that_was_lost(self, rig):
        first = rig.join(slots=2)
        rig.hello(slots=2, instance=2)
        rig.after(3.0)
        rig.beat(first)
        for _ in range(2):
            rig.hello(slots=2, instance=2)

        assert len(self.refused(rig)) == 2

    def test_each_of_several_is_refused(self, rig):
        self.two_ask_beside_one_that_lives(rig)

        assert {message.instance for message in self.refused(rig)} == {2, 3}

    def test_a_hub_that_stood_still_has_not_heard_the_first(self, rig):
        """The first was killed before, and its links are found closed after."""
        first = rig.join(slots=2)
        rig.hello(slots=2, instance=2)
        rig.now += 60.0
        rig.hello(slots=2, instance=2)
        rig.tell(LinksLost(first))
        second = rig.join(slots=2, instance=2)

        assert second != first
        assert not self.refused(rig)

    @pytest.mark.parametrize("most", [2, 3])
    def test_of_many_that_wait_few_are_remembered(self, rig, monkeypatch, most):
        monkeypatch.setattr(pools, "MOST_WAITING", most)
        self.two_ask_beside_one_that_lives(rig)

        assert bool(self.refused(rig)) == (most == 3)

    def two_ask_beside_one_that_lives(self, rig: HubRig) -> None:
        first = rig.join(slots=2)
        for _ in range(4):
            rig.beat(first)
            for instance in (2, 3):
                rig.hello(slots=2, instance=instance)
            rig.after(1.0)

    def refused(self, rig: HubRig) -> list[m.Refused]:
        return [message for _, message in rig.published if isinstance(message, m.Refused)]

    def test_what_nobody_waits_for_is_named_in_the_welcome(self, rig):
        rig.join(slots=1)
        rig.submit(1, 1)
        rig.cancel(1, 1)
        rig.hello(slots=1, number=2, epoch=EPOCH, inventory=[Held(1, 1, [1])])

        assert last(rig, m.Welcome).stale == [Held(1, 1, [1])]

    def test_a_pool_that_was_away_too_long_keeps_what_nobody_else_has(self, rig):
        rig.join(slots=1)
        rig.submit(1, 1)
        rig.after(10.5)
        assert rig.state(1, 1) == "QUEUED"
        second = rig.join(slots=1, number=2, epoch=EPOCH, inventory=[Held(1, 1, [1])])

        assert rig.held[second] == []
        assert rig.state(1, 1) == "SENT"

    def test_and_drops_what_somebody_else_has(self, rig):
        rig.join("p", slots=1)
        rig.submit(1, 1)
        rig.after(10.5)
        other = rig.join("q", slots=1)
        assert rig.held[other] == [(1, 1, 2)]
        rig.hello("p", slots=1, number=2, epoch=EPOCH, inventory=[Held(1, 1, [1])])

        assert last(rig, m.Welcome).stale == [Held(1, 1, [1])]


class TestSilence:
    def test_no_new_work_after_two_and_a_half_beats(self, rig):
        session = rig.join()
        rig.after(3.0)
        rig.submit(1, 1)
        assert rig.hub.state.lanes[session].state is LaneState.SILENT
        assert rig.held[session] == []

        rig.beat(session)
        assert rig.held[session] == [(1, 1, 1)]

    def test_after_the_lease_its_work_goes_to_others(self, rig):
        rig.join("p", slots=1)
        rig.submit(1, 1)
        rig.after(9.0)
        other = rig.join("q", slots=1)
        assert rig.held[other] == []
        rig.beat(other, "q")
        rig.after(1.5)

        assert rig.held[other] == [(1, 1, 2)]
        assert rig.records[-1].fields["reason"] == "lease expired"

    def test_a_hub_that_stood_still_expires_nobody(self, rig):
        session = rig.join(slots=1)
        rig.submit(1, 1)
        rig.now += 60.0
        rig.beat(session)

        assert session in rig.hub.state.lanes
        assert rig.state(1, 1) == "SENT"

    def test_a_hub_that_stood_still_before_it_acted_expires_nobody(self, rig):
        session = rig.join(slots=1)
        rig.hub.take(Tick(), rig.now)
        rig.now += 60.0

        rig.hub.act(rig.now)
        assert session in rig.hub.state.lanes

    def test_a_beat_of_a_session_that_is_over_is_answered_with_who_are_you(self, rig):
        session = rig.join()
        rig.after(11.0)
        rig.beat(session)

        assert (last(rig, m.BeatReply).session, last(rig, m.BeatReply).about) == (0, session)

    def test_a_message_lost_with_everybody_alive_is_found_by_the_beats(self, rig):
        session = rig.join(slots=1)
        rig.submit(1, 1)
        for _ in range(4):
            rig.now += 0.9
            rig.tell(FromPool(m.Beat(EPOCH, session, "p", 0, 0, 0, [])))

        assert last(rig, m.BeatReply).session == 0, "it is told to say Hello"

    def test_a_large_message_under_way_is_not_a_lost_one(self, rig):
        """On a slow link it was never there in time, and every new session began with it anew."""
        session = rig.join(slots=1)
        run = Run(ONE, 0, [1], [bytes(2 << 20)])
        rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [run])))
        for _ in range(20):
            rig.now += 0.9
            rig.tell(FromPool(m.Beat(EPOCH, session, "p", 0, 0, 0, [])))
            assert last(rig, m.BeatReply).session == session
        for _ in range(8):
            rig.now += 0.9
            rig.tell(FromPool(m.Beat(EPOCH, session, "p", 0, 0, 0, [])))

        assert last(rig, m.BeatReply).session == 0


class TestLinks:
    def test_a_lane_that_is_lost_gets_no_work_and_its_pool_is_asked(self, rig):
        session = rig.join()
        rig.tell(LaneLost(session))
        rig.submit(1, 1)

        assert rig.held[session] == []
        assert last(rig, m.BeatReply).session == 0
        rig.beat(session)
        assert rig.hub.state.lanes[session].state is LaneState.CUT

    def test_with_every_link_lost_it_has_a_second(self, rig):
        rig.join("p", slots=1)
        rig.submit(1, 1)
        rig.tell(LinksLost(rig.session()))
        rig.after(0.8)
        assert rig.state(1, 1) == "SENT"
        rig.after(0.6)

        assert rig.state(1, 1) == "QUEUED"

    def test_what_is_told_of_the_links_of_a_session_before_is_nothing_to_the_next(self, rig):
        """It came back within the turn in which its loss was seen: an at-most-once task would be lost."""
        first = rig.join("p", slots=1)
        rig.submit(1, 1, spec("once", acks="early"))
        (key,) = rig.held[first]
        held = Held(key[0], key[2], [key[1]])
        second = rig.join("p", slots=1, number=2, inventory=[held])
        rig.tell(LinksLost(first))
        rig.after(2.0)

        assert rig.hub.state.lanes[second].state is LaneState.READY
        assert rig.state(1, 1) == "SENT"

    def test_a_pool_that_says_goodbye_is_gone_at_once(self, rig):
        session = rig.join()
        rig.tell(FromPool(m.Bye(EPOCH, session)))

        assert not rig.hub.state.lanes
        assert rig.closed == [session]

    def test_what_was_on_its_way_to_a_pool_that_said_goodbye_is_no_attempt(self, rig):
        """Nobody has begun it: the next one to get it makes its first attempt."""
        session = rig.join()
        rig.submit(1, 1)
        rig.tell(FromPool(m.Bye(EPOCH, session)))
        record = rig.tasks[1 << 64 | 1]

        assert (record.state.name, record.attempt - record.returns) == ("QUEUED", 0)

    def test_nor_is_what_a_pool_that_is_back_has_never_received(self, rig):
        rig.join("p")
        rig.submit(1, 1)
        rig.join("p", number=2)
        record = rig.tasks[1 << 64 | 1]

        assert (record.state.name, record.attempt - record.returns) == ("SENT", 1)


class TestRunning:
    def test_what_a_beat_lists_has_started(self, rig):
        session = rig.join()
        rig.submit(1, 1)
        rig.beat(session, running=((1, 1, 1),))

        assert rig.state(1, 1) == "RUNNING"
        assert [notice.progress[0].seq for notice in rig.told[1] if isinstance(notice, m.Notice)] == [1]

    def test_what_is_cancelled_and_runs_on_is_cancelled_again(self, rig):
        """A Cancel on the control channel may be lost; the beats show it."""
        session = rig.join()
        rig.submit(1, 1)
        rig.cancel(1, 1)
        rig.published.clear()
        rig.beat(session, running=((1, 1, 1),))

        assert last(rig, m.Cancel).tasks == [Held(1, 1, [1])]

    def test_what_an_absent_client_may_come_back_for_is_left_alone(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(77, 1, [5])])
        rig.published.clear()
        rig.beat(session, running=((77, 5, 1),))

        assert not [message for _, message in rig.published if isinstance(message, m.Cancel)]


class TestRestartedHub:
    def test_a_task_that_a_pool_holds_is_adopted_not_sent_again(self, rig):
        session = rig.join(epoch=EPOCH - 1, inventory=[Held(1, 4, [1])])
        self.again(rig, 1)
        rig.after(12.0)
        assert rig.held[session] == []

    def test_a_result_that_came_before_its_client_is_kept(self, rig):
        rig.report(3, done=((1, 1, 1),), epoch=EPOCH - 1)
        self.again(rig, 1)

        assert rig.outcomes() == {1: "done"}

    def test_even_for_a_client_that_comes_late(self, rig):
        """After three leases the hub had forgotten what pools hold, and ran it twice."""
        session = rig.join(slots=1, epoch=EPOCH - 1, inventory=[Held(1, 4, [1])])
        for _ in range(50):
            rig.after(0.8)
            rig.beat(session)
        self.again(rig, 1)

        assert rig.held[session] == []
        assert rig.state(1, 1) == "SENT"

    def test_results_are_kept_within_limits(self):
        rig = HubRig(result_bytes=50)
        rig.client()
        rig.report(3, done=((1, 1, 1), (1, 2, 1)), epoch=EPOCH - 1)
        for number, seq in enumerate((1, 2), start=1):
            run = Run(ONE, 0, [seq], [b"x"], again=True)
            rig.tell(FromClient(1, m.Submit(number, [(ONE, spec())], [run])))

        assert rig.outcomes() == {1: "done"}, "the other is run again"

    def test_what_no_pool_lists_waits_a_lease_and_is_sent(self, rig):
        session = rig.join()
        self.again(rig, 1)
        assert rig.state(1, 1) == "WAITING"
        for _ in range(12):
            rig.after(1.0)
            rig.beat(session)

        assert rig.held[session] == [(1, 1, 1)]

    def again(self, rig: HubRig, seq: int) -> None:
        run = Run(ONE, 0, [seq], [b"x"], again=True)
        rig.tell(FromClient(1, m.Submit(1, [(ONE, spec())], [run])))


def test_a_hub_lets_in_no_more_pools_than_it_may_have_and_one_more_when_one_has_left():
    rig = HubRig(max_pools=2)
    rig.join("a")
    session = rig.join("b", instance=2)
    rig.hello("c", instance=3)
    rig.hello("c", instance=3)

    assert {lane.pool for lane in rig.hub.state.lanes.values()} == {"a", "b"}
    assert "may have no more" in rig.hub.snapshot()["refused"]["c"]
    assert not [message for _, message in rig.published if isinstance(message, m.Refused)]
    rig.hello("b", instance=2, number=2)  # one of the two, anew
    rig.tell(FromPool(m.Bye(rig.config.epoch, rig.session("b"))))
    assert session not in rig.hub.state.lanes
    rig.join("c", instance=3)
    assert rig.hub.snapshot()["refused"] == {}


def test_an_inventory_that_no_pool_could_hold_is_refused_and_not_kept():
    """Abuse list, A12: memory for it must not be had for the asking."""
    rig = HubRig()
    rig.hello(slots=1, epoch=1, inventory=[Held(9, 1, list(range(500_001)))])

    assert "more than 1 slots can hold" in rig.hub.state.diagnostics.refused["p"]
    assert len(rig.hub.state.unclaimed) == 0
    rig.hello(slots=2, number=2, epoch=1, inventory=[Held(9, 1, [1, 2, 3])])
    assert len(rig.hub.state.unclaimed) == 3
    assert next(iter(rig.hub.state.lanes.values())).hello.inventory == []


def test_the_last_progress_of_a_task_is_told_before_its_outcome(rig):
    session = rig.join()
    (seq,) = rig.submit(1, 1)
    told = [Progress(1, seq, 1, 4, 4)]
    done = [DoneRun(rig.tasks[1 << 64 | seq].spec.number, 1, 1, "p/0", [seq], [b"r"], 0.1)]
    rig.tell(FromPool(m.Results(EPOCH, session, 1, done, [], [], told=told)))

    news = [message for message in rig.told[1] if isinstance(message, m.Notice | m.Deliver)]
    assert [type(message) for message in news] == [m.Notice, m.Deliver]
    assert news[0].progress[0].done == 4


class TestLogs:
    """Lines that tasks have logged are for their clients, and for whoever asks later."""

    def log(self, rig: HubRig, seq: int, *texts: str, attempt: int = 1, number: int = 1) -> None:
        lines = [LogLine(5.0, 20, "lib", text) for text in texts]
        told = [Progress(1, seq, attempt, 0, -1, "p/0", lines=lines)]
        rig.tell(FromPool(m.Results(EPOCH, rig.session(), number, [], [], [], told=told)))

    def ask(self, rig: HubRig, seq: int, since: str = "") -> m.Answer:
        return views.answer(rig.hub.state, m.Query(1, "logs", f"{1 << 64 | seq:032x}{since}"), rig.now)

    def test_they_are_told_at_once_and_kept_when_it_has_ended(self, rig):
        rig.join()
        (seq,) = rig.submit(1, 1)
        self.log(rig, seq, "one", "two")
        self.log(rig, seq, "three", number=2)

        news = [message for message in rig.told[1] if isinstance(message, m.Notice)]
        assert [[line.text for line in one.progress[0].lines] for one in news] == [["one", "two"], ["three"]]
        found = self.ask(rig, seq, " 1").value
        assert [(line["number"], line["level"], line["text"]) for line in found["lines"]] == [
            (2, "info", "two"),
            (3, "info", "three"),
        ]
        assert found["on_its_way"]
        rig._reports[rig.session()] = 2
        rig.report(rig.session(), ((1, seq, 1),))
        assert not self.ask(rig, seq).value["on_its_way"]
        assert len(self.ask(rig, seq).value["lines"]) == 3

    def test_those_of_an_attempt_that_is_not_the_tasks_any_more_do_not_count(self, rig):
        rig.join()
        (seq,) = rig.submit(1, 1)
        self.log(rig, seq, "of a twin", attempt=7)

        assert not [message for message in rig.told[1] if isinstance(message, m.Notice)]
        assert self.ask(rig, seq).value["lines"] == []

    def test_a_question_that_makes_no_sense_is_answered_with_the_reason(self, rig):
        assert "no task" in self.ask(rig, 99).error
        rig.join()
        (seq,) = rig.submit(1, 1)
        assert "since a number" in self.ask(rig, seq, " x").error

    def test_a_client_that_is_silent_gets_none_and_hears_later_how_many_those_were(self, rig):
        rig.join()
        (seq,) = rig.submit(1, 1)
        rig.beat(rig.session())
        rig.after(4.5)
        self.log(rig, seq, "one", "two")
        rig.tell(FromClient(1, m.ClientBeat(EPOCH)))
        self.log(rig, seq, "three", number=2)

        told = [message for message in rig.told[1] if isinstance(message, m.Notice)]
        lines = [[line.text for line in one.progress[0].lines] for one in told if one.progress[0].lines]
        assert [len(each) for each in lines] == [2]
        assert lines[0][0].startswith("2 lines before this one were dropped")
        assert lines[0][1] == "three"
        assert len(self.ask(rig, seq).value["lines"]) == 3

    def test_so_does_one_that_gets_too_much_in_a_second(self, rig):
        rig.join()
        (seq,) = rig.submit(1, 1)
        for number in range(1, 30):
            self.log(rig, seq, "x" * (1 << 20), number=number)
        rig.tell(FromClient(1, m.ClientBeat(EPOCH)))
        rig.after(1.0)
        rig.tell(FromClient(1, m.ClientBeat(EPOCH)))
        self.log(rig, seq, "last", number=30)

        told = [message for message in rig.told[1] if isinstance(message, m.Notice)]
        lines = [line for one in told for line in one.progress[0].lines]
        assert sum(len(line.text) for line in lines) < 9 << 20
        assert lines[-2].text.startswith(f"{29 - len(lines[:-2])} lines before this one were dropped")

    def test_memory_for_them_has_a_bound(self):
        kept = LastLines(most_bytes=100_000)
        for task in range(100):
            lines = [LogLine(1.0, 30, "lib", "x" * 1_000) for _ in range(7)]
            kept.add(task, Progress(1, task, 1, 0, -1, lines=lines), "")

        assert [*kept.by_task] == list(range(90, 100))
        kept.add(99, Progress(1, 99, 1, 0, -1, lines=[LogLine(1.0, 30, "lib", "")] * 5_000), "")
        assert len(kept.by_task) == 0  # one that is larger than all may be, too
