"""The pool machine: work, sessions, blame, limits."""

import pytest

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import FIRING, Held, LaneRun, LogLine
from taskmesh.messages.slot_messages import SlotLogs, SlotProgress, SlotResults, SlotSegment
from taskmesh.pool.machine import scheduler
from taskmesh.pool.machine.spool import DROPPED
from tests.core.rig import EPOCH, PoolRig, spec


@pytest.fixture
def rig() -> PoolRig:
    return PoolRig()


def control(rig: PoolRig, kind: type, *fields: object) -> None:
    rig.tell(ev.FromHub(kind(rig.pool.member.epoch, rig.pool.session, *fields)))


class TestWork:
    def test_tasks_go_to_free_slots_and_results_back(self, rig):
        rig.push(1, 2)
        assert rig.handed == {0: [(1, 1, 1)], 1: [(1, 2, 1)]}
        rig.finish(0)

        assert rig.done() == [1]
        assert rig.handed[1] == [(1, 2, 1)]

    def test_a_report_states_the_round_trip_and_the_lag(self, rig):
        rig.push(1)
        rig.now += 0.25
        rig.finish(0)

        (report,) = rig.reports()
        assert (report.echo, report.held, report.session) == (1.0, 0.25, 1)

    def test_tasks_of_another_session_are_not_run(self, rig):
        rig.tell(ev.FromHub(m.Tasks(EPOCH, 5, 1, 0, 0.0, [(1, spec())], [LaneRun(1, 1, 1, 0, [1], [b""])])))

        assert rig.of(m.Misrouted)[0].session == 5
        assert not rig.of(act.HandOver)

    def test_what_control_says_of_another_session_is_not_heeded(self, rig):
        rig.push(1, 2, 3)
        rig.tell(ev.FromHub(m.Recall(EPOCH, 99, 5)))
        rig.tell(ev.FromHub(m.Cancel(EPOCH, 99, [Held(1, 1, [3])])))
        rig.tell(ev.FromHub(m.Recall(EPOCH + 1, rig.pool.session, 5)))
        for slot in (0, 1, 0):
            rig.finish(slot)

        assert rig.returned() == []
        assert sorted(rig.done()) == [1, 2, 3]

    def test_who_asks_for_a_session_already_does_not_ask_anew(self, rig):
        rig.lose_lane()
        number = rig.of(m.Hello)[-1].number
        for _ in range(5):
            rig.now += 0.6
            rig.tell(ev.FromHub(m.BeatReply(EPOCH, 0, 0, 0)))

        assert {hello.number for hello in rig.of(m.Hello)[1:]} == {number}

    def test_a_lane_message_that_comes_twice_is_run_once(self, rig):
        rig.push(1)
        rig.now += 0.6
        rig.lane_seq -= 1
        rig.push(1)

        assert [len(tasks) for tasks in rig.handed.values()] == [1]
        assert not rig.of(act.HangUp), "it is no gap"

    def test_a_gap_costs_the_session(self, rig):
        rig.push(1)
        rig.now += 0.6
        rig.lane_seq += 1
        rig.push(3)

        assert rig.pool.session == 0
        assert rig.of(act.HangUp)
        assert rig.of(m.Hello)[-1].inventory == [Held(1, 1, [1])]

    def test_a_spec_that_it_does_not_have_is_asked_for(self, rig):
        rig.push(1, known=False)

        assert rig.of(m.PoolNeedSpec)
        assert rig.returned() == [1]

    def test_a_spec_in_use_is_not_forgotten(self, rig, monkeypatch):
        monkeypatch.setattr(scheduler, "MOST_SPECS", 0)
        rig.push(1, 2, 3)
        rig.pool.scheduler.evict(rig.now)
        rig.finish(0)
        rig.finish(1)
        rig.finish(0)
        assert sorted(rig.done()) == [1, 2, 3]

        rig.pool.scheduler.evict(rig.now)
        rig.push(4, known=False)
        assert rig.of(m.PoolNeedSpec)


class TestSession:
    def test_hello_is_repeated_with_the_same_number_soon_at_first(self):
        """Its subscription may not have arrived when the first answer was published."""
        rig = PoolRig(welcome=False)
        began, times = rig.now, [0.0]
        for _ in range(7):
            rig.now = rig.pool.deadline
            rig.tell(ev.Tick())
            times.append(round(rig.now - began, 2))

        assert [hello.number for hello in rig.of(m.Hello)] == [1] * 8
        assert times == [0.0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55]

    def test_a_lane_that_is_refused_makes_no_storm(self, rig):
        rig.tell(ev.HubLaneLost())
        assert len(rig.of(m.Hello)) == 1
        rig.after(0.5)

        assert len(rig.of(m.Hello)) == 2

    def test_a_beat_of_the_session_before_may_be_answered_late(self, rig):
        """Beats have a connection of their own: the new session was given up for an answer to the old one."""
        rig.lose_lane()
        rig.welcome(session=2)
        rig.tell(ev.FromHub(m.BeatReply(EPOCH, 0, 0, 1)))
        assert rig.pool.session == 2
        rig.tell(ev.FromHub(m.BeatReply(EPOCH, 0, 0, 2)))

        assert rig.pool.session == 0

    def test_a_welcome_for_an_older_hello_is_passed_over(self, rig):
        rig.lose_lane()
        rig.tell(ev.FromHub(m.Welcome(EPOCH, 7, "p", 1, 1, "port", 1.0, 3.0)))

        assert rig.pool.session == 0
        rig.welcome(session=8)
        assert rig.pool.session == 8

    def test_it_beats_at_once_and_then_every_beat(self, rig):
        assert len(rig.of(m.Beat)) == 1
        rig.push(1)
        rig.after(1.0)

        beat = rig.of(m.Beat)[-1]
        assert (beat.received, [running.seq for running in beat.running]) == (1, [1])

    def test_a_hub_that_does_not_answer_is_asked_anew(self, rig):
        for _ in range(5):
            rig.after(1.0)

        assert rig.pool.session == 0
        assert rig.of(m.Hello)[-1].number == 2

    def test_a_hub_that_does_not_know_it_is_asked_anew(self, rig):
        rig.tell(ev.FromHub(m.BeatReply(EPOCH, 0, 0)))

        assert rig.pool.session == 0

    def test_everything_held_is_listed_and_reported_again(self, rig):
        rig.push(1, 2, 3)
        rig.finish(0)
        rig.lose_lane()

        hello = rig.of(m.Hello)[-1]
        assert sorted(seq for held in hello.inventory for seq in held.seqs) == [1, 2, 3]
        rig.welcome(session=2)
        assert (rig.reports()[-1].session, rig.reports()[-1].number, rig.done()) == (2, 1, [1, 1])

    def test_what_is_bound_to_its_client_is_listed_as_such(self, rig):
        rig.push(1, one=spec("bound", on_client_loss="cancel"))
        rig.push(2)
        rig.lose_lane()

        held = rig.of(m.Hello)[-1].inventory
        assert {(one.seqs[0], one.bound) for one in held} == {(1, True), (2, False)}

    def test_slots_are_fed_while_it_has_none(self, rig):
        rig.push(1, 2, 3)
        rig.lose_lane()
        rig.finish(0)

        assert rig.handed[0] == [(1, 3, 1)]

    def test_unacknowledged_reports_are_sent_again_without_their_stamps(self, rig):
        rig.push(1)
        rig.finish(0)
        for _ in range(4):
            rig.after(1.0)
            rig.tell(ev.FromHub(m.BeatReply(EPOCH, 1, 0)))

        first, again = rig.reports()
        assert (again.number, again.done) == (first.number, first.done)
        assert again.echo == 0.0, "an old stamp would be taken for a slow link"

    def test_a_link_that_takes_none_of_them_costs_the_session(self, rig):
        """Beats go through and reports do not: libzmq has given the collector's connection up."""
        rig.push(1)
        rig.finish(0)
        for _ in range(22):
            rig.after(1.0)
            rig.tell(ev.FromHub(m.BeatReply(EPOCH, 1, 0)))

        assert [one.number for one in rig.reports()] == [1, 1, 1, 1], "after 2.5, 7.5 and 17.5 beats"
        assert rig.pool.session == 0

    def test_acknowledged_ones_are_not(self, rig):
        rig.push(1)
        rig.finish(0)
        rig.tell(ev.FromHub(m.BeatReply(EPOCH, 1, 1)))
        for _ in range(4):
            rig.after(1.0)
            rig.tell(ev.FromHub(m.BeatReply(EPOCH, 1, 1)))

        assert len(rig.reports()) == 1

    def test_after_a_long_sleep_nothing_starts_before_the_hub_has_spoken(self, rig):
        rig.push(1, 2, 3)
        rig.now += 10.0
        rig.finish(0)
        assert rig.handed[0] == []

        rig.welcome(session=2, stale=((1, 3, 1),))
        assert rig.handed[0] == []
        assert rig.of(m.Hello)[-1].number == 2

    def test_so_it_is_when_it_slept_before_it_acted(self, rig):
        rig.push(1, 2, 3)
        rig.pool.take(ev.SlotFinished(0, SlotResults([SlotSegment(0, [b"r"], 0.001)], [], rig.now)), rig.now)
        actions = rig.pool.act(rig.now + 10.0)

        assert not [action for action in actions if isinstance(action, act.HandOver)]

    def test_a_cancelled_task_that_waits_is_remembered_while_the_hub_has_to_say_what_is_wanted(self):
        """Seed 140490402741: the pool stood still for longer than a lease after the cancellation."""
        rig = PoolRig(slots=1)
        rig.push(1, 2, 3, 4)
        control(rig, m.Cancel, [Held(1, 1, [4])])
        rig.after(10.0)

        assert rig.pool.scheduler.cancelled == {(1, 4, 1)}

    def test_refused_it_leaves(self):
        rig = PoolRig(welcome=False)
        rig.tell(ev.FromHub(m.Refused("p", 1, "too old")))

        assert rig.of(act.Leave)[0].reason == "too old"
        assert rig.pool.deadline > rig.now


class TestBlame:
    def teach(self, rig: PoolRig) -> None:
        """Let the pool learn that tasks are short, so that slots get several."""
        rig.push(90)
        rig.finish(0)

    def test_only_the_running_task_is_to_blame(self, rig):
        self.teach(rig)
        rig.push(*range(1, 7))
        slot = 0
        mine = [seq for _, seq, _ in rig.handed[slot]]
        assert len(mine) >= 3
        rig.exited(slot, unstarted=len(mine) - 2, status=-11)

        assert rig.failed() == {mine[0]: "lost", mine[1]: "crash"}
        assert rig.done() == [90]
        control(rig, m.Recall, 100)
        assert not set(mine[:2]) & set(rig.returned())

    def test_what_it_had_not_started_goes_to_the_other_slot(self, rig):
        self.teach(rig)
        rig.push(*range(1, 5))
        mine = [seq for _, seq, _ in rig.handed[0]]
        rig.exited(0, unstarted=len(mine))
        while rig.handed[1]:
            rig.finish(1)

        assert sorted(rig.done()) == [1, 2, 3, 4, 90]
        assert len(mine) == 2
        assert not rig.failed()

    def test_out_of_memory_is_said_so_with_the_last_words(self, rig):
        rig.push(1)
        rig.exited(0, oom=True, log="malloc failed")

        (failure,) = rig.reports()[-1].failed
        assert failure.kind == "oom"
        assert "malloc failed" in failure.text

    def test_the_slot_starts_again_at_once(self, rig):
        rig.exited(0)
        assert len(rig.of(act.StartSlot)) == 3

    def test_but_not_at_once_when_it_cannot_start(self, rig):
        rig.exited(0)
        starts = []
        for _ in range(4):
            rig.actions = [None]
            rig.tell(ev.SlotExited(0, 0, 1, ready=False))
            before = rig.now
            while act.StartSlot(0) not in rig.actions:
                rig.now = rig.pool.deadline
                rig.tell(ev.Tick())
            starts.append(round(rig.now - before, 3))

        assert starts == [0.1, 0.2, 0.4, 0.8]

    def test_the_hub_hears_of_those_that_cannot_be_started(self, rig):
        slots, told = len(rig.pool.slots), []
        rig.exited(0)
        for _ in range(3):
            rig.tell(ev.SlotExited(0, 0, 1, ready=False))
            rig.after(1.1)  # starts it again, and beats
            rig.tell(ev.FromHub(m.BeatReply(EPOCH, 1, 0, 1)))
            told.append(rig.of(m.Beat)[-1].slots)
        rig.tell(ev.SlotReady(0, 4711))
        rig.after(1.1)

        assert told == [slots, slots, slots - 1]
        assert rig.of(m.Beat)[-1].slots == slots, "it is up now"


class TestLimits:
    def test_a_task_over_its_hard_limit_is_killed_and_says_so(self, rig):
        rig.push(1, one=spec("limited", hard_timeout=2.0))
        rig.after(1.9)
        assert not rig.of(act.KillSlot)
        rig.after(0.2)
        assert rig.of(act.KillSlot) == [act.KillSlot(0)]
        rig.exited(0)

        assert rig.failed() == {1: "hard_timeout"}

    def test_nothing_is_handed_over_behind_it(self, rig):
        """It could be running when the kill came, and was told that it was over a limit it did not have."""
        rig.push(1, one=spec("limited", hard_timeout=2.0))
        rig.finish(0)
        rig.push(2, one=spec("limited", hard_timeout=2.0))
        rig.push(*range(3, 9))

        assert [len(tasks) for tasks in rig.handed.values()] == [1, 1]

    def test_one_that_finishes_in_time_leaves_no_trap(self, rig):
        rig.push(1, one=spec("limited", hard_timeout=2.0))
        rig.finish(0)
        rig.push(2)
        rig.after(3.0)

        assert not rig.of(act.KillSlot)

    def test_one_that_is_taken_back_leaves_no_trap_and_no_slot_unused(self, rig):
        rig.push(1, one=spec("limited", hard_timeout=2.0))
        control(rig, m.Cancel, [Held(1, 1, [1])])
        assert rig.of(act.RecallSlot)
        rig.recalled(0, 1)
        rig.push(2, 3)
        rig.after(3.0)

        assert [len(tasks) for tasks in rig.handed.values()] == [1, 1]
        assert not rig.of(act.KillSlot)


class TestStack:
    def test_is_asked_of_the_slot_that_has_the_attempt(self):
        rig = PoolRig(slots=2)
        rig.push(1, 2, 3)
        for held in (Held(1, 1, [1]), Held(1, 1, [2]), Held(1, 1, [3]), Held(1, 2, [2]), Held(2, 1, [2])):
            control(rig, m.AskStack, held)

        (one,), (two,) = rig.handed[0], rig.handed[1]
        assert (one, two) == ((1, 1, 1), (1, 2, 1)), "the third is in no slot"
        assert rig.of(act.AskSlotStack) == [act.AskSlotStack(0, 0), act.AskSlotStack(1, 0)]

    def test_of_a_former_session_is_not(self):
        rig = PoolRig()
        rig.push(1)
        rig.tell(ev.FromHub(m.AskStack(EPOCH, 99, Held(1, 1, [1]))))

        assert not rig.of(act.AskSlotStack)


class TestLastProgress:
    def test_goes_with_the_outcome(self):
        rig = PoolRig()
        rig.push(1, 2)
        rig.tell(ev.SlotReported(0, SlotProgress(0, 3, 4)))
        rig.finish(0)

        (results,) = [results for results in rig.reports() if results.done]
        assert [(told.seq, told.done, told.total) for told in results.told] == [(1, 3, 4)]

    def test_of_the_next_task_is_kept_when_the_one_before_it_ends(self):
        rig = PoolRig(slots=1)
        rig.push(1, 2)
        rig.tell(ev.SlotReported(0, SlotProgress(1, 3, 4)))
        rig.finish(0)
        rig.finish(0)

        told = [(told.seq, told.done) for results in rig.reports() for told in results.told]
        assert told == [(2, 3)]


def line(text: str, level: int = 30) -> LogLine:
    return LogLine(1.0, level, "lib", text)


class TestLogs:
    def test_lines_go_at_once_and_before_the_outcome(self):
        rig = PoolRig()
        rig.push(1, 2)
        rig.tell(ev.SlotReported(0, SlotLogs(0, [line("first")])))
        told = [told for results in rig.reports() for told in results.told]
        rig.tell(ev.SlotReported(0, SlotLogs(0, [line("last")])))
        rig.finish(0)

        assert [(one.seq, [each.text for each in one.lines]) for one in told] == [(1, ["first"])]
        reports = rig.reports()
        assert [each.text for one in reports[-2].told for each in one.lines] == ["last"]
        assert reports[-1].done

    def test_lines_of_a_task_that_has_ended_are_dropped(self):
        rig = PoolRig()
        rig.push(1, 2)
        rig.finish(0)
        before = len(rig.reports())
        rig.tell(ev.SlotReported(0, SlotLogs(0, [line("late")])))

        assert len(rig.reports()) == before

    def test_a_hub_that_is_away_gets_a_part_and_hears_that_the_rest_was_dropped(self):
        rig = PoolRig()
        rig.push(1, 2)
        rig.pool.member.ask(rig.now)  # no session
        for _ in range(300):
            rig.tell(ev.SlotReported(0, SlotLogs(0, [line("x" * 10_000)])))
        spool = rig.pool._spool
        lines = [each for one in spool.told for each in one.lines]

        assert 90 <= len(lines) <= 110
        assert lines[-1].text == DROPPED
        assert spool.close(1, 1, rig.now).told
        assert not spool.has_news

    def test_those_of_a_firing_have_no_client_and_go_to_the_log_too(self):
        rig = PoolRig()
        rig.push(1, one=spec("nightly", kind=FIRING))
        rig.tell(ev.SlotReported(0, SlotLogs(0, [line("done", 20)])))

        (event,) = rig.of(act.LogEvent)
        assert event.kind == "task.log"
        told = {name: event.fields[name] for name in ("name", "attempt", "level", "logger", "text")}
        assert told == {"name": "nightly", "attempt": 1, "level": "info", "logger": "lib", "text": "done"}
        told = [one for report in rig.reports() for one in report.told]
        assert [each.text for one in told for each in one.lines] == ["done"]


def test_the_end_of_a_slot_whose_tasks_have_submitted_tasks_is_told_the_hub():
    """B1: their tasks end with it, not when the hub has not heard of them for long."""
    rig = PoolRig()
    rig.push(1, 2)
    rig.tell(ev.SlotAsked(0, 0))
    pid = rig.pool.slots[0].pid
    for slot in (0, 1):
        rig.tell(ev.SlotExited(slot, 0, -9, oom=False))

    assert [(gone.session, gone.pid) for gone in rig.of(m.SlotGone)] == [(rig.pool.session, pid)]
