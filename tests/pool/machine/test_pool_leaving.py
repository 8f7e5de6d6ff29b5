"""The pool machine: cancelling, handing back, draining."""

import pytest

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Held
from taskmesh.pool.machine.machine import CANCEL_GRACE
from tests.core.rig import EPOCH, PoolRig


@pytest.fixture
def rig() -> PoolRig:
    return PoolRig()


def control(rig: PoolRig, kind: type, *fields: object) -> None:
    rig.tell(ev.FromHub(kind(rig.pool.member.epoch, rig.pool.session, *fields)))


class TestCancel:
    def test_an_unstarted_task_is_dropped_silently(self, rig):
        rig.push(1, 2, 3)
        control(rig, m.Cancel, [Held(1, 1, [3])])
        rig.finish(0)
        rig.finish(1)

        assert rig.done() == [1, 2]
        assert not rig.pool.scheduler.cancelled

    def test_a_running_one_costs_its_slot(self, rig):
        rig.push(1)
        control(rig, m.Cancel, [Held(1, 1, [1])])
        rig.recalled(0, 0)
        assert rig.of(act.CancelSlot) == [act.CancelSlot(0, 0)]
        rig.push(2, 3)
        assert rig.handed[0] == [(1, 1, 1)], "a slot about to die gets nothing"
        rig.exited(0)

        assert not rig.failed()
        assert not rig.pool.scheduler.cancelled

    def test_one_that_cleans_up_costs_its_slot_when_it_returns(self, rig):
        rig.push(1)
        control(rig, m.Cancel, [Held(1, 1, [1])])
        rig.recalled(0, 0)
        rig.push(2, 3)
        assert not rig.of(act.KillSlot)
        rig.finish(0)

        assert rig.of(act.KillSlot) == [act.KillSlot(0)]
        assert rig.handed[0] == [], "a slot about to die gets nothing"

    def test_one_that_does_not_return_in_time_is_killed(self, rig):
        rig.push(1)
        control(rig, m.Cancel, [Held(1, 1, [1])])
        rig.recalled(0, 0)
        rig.after(CANCEL_GRACE - 0.1)
        assert not rig.of(act.KillSlot)
        rig.after(0.2)

        assert rig.of(act.KillSlot) == [act.KillSlot(0)]

    def test_one_that_is_done_by_then_does_not(self, rig):
        rig.push(1)
        control(rig, m.Cancel, [Held(1, 1, [1])])
        rig.finish(0)
        rig.recalled(0, 0)

        assert not rig.of(act.KillSlot)
        assert not rig.pool.scheduler.cancelled

    def test_what_is_not_here_is_not_remembered(self, rig):
        control(rig, m.Cancel, [Held(1, 1, [77])])

        assert not rig.pool.scheduler.cancelled

    def test_another_attempt_of_the_task_runs_on(self, rig):
        rig.push(1, attempt=3)
        control(rig, m.Cancel, [Held(1, 2, [1])])

        assert not rig.of(act.RecallSlot)

    def test_what_the_welcome_calls_stale_is_dropped(self, rig):
        rig.push(1, 2, 3)
        rig.lose_lane()
        rig.welcome(session=2, stale=((1, 3, 1),))
        rig.finish(0)

        assert rig.handed[0] == []


class TestCancelOfWhatAlreadyStarted:
    """Of those that a slot has taken the last one runs; the others have only not been reported."""

    @pytest.fixture
    def rig(self) -> PoolRig:
        rig = PoolRig(slots=1)
        rig.push(1)
        rig.finish(0)  # so that its tasks are known to be short
        rig.push(2)
        rig.push(3, 4)
        assert rig.handed[0] == [(1, 2, 1), (1, 3, 1), (1, 4, 1)]
        return rig

    @pytest.mark.parametrize(("seq", "killed"), [(2, 0), (3, 1)])
    def test_only_the_last_one_costs_the_slot(self, rig, seq, killed):
        control(rig, m.Cancel, [Held(1, 1, [seq])])
        rig.recalled(0, 1)

        assert len(rig.of(act.CancelSlot)) == killed

    def test_while_a_recall_is_under_way_nobody_knows_which_has_started(self, rig):
        control(rig, m.Cancel, [Held(1, 1, [3])])
        control(rig, m.Cancel, [Held(1, 1, [4])])

        assert len(rig.of(act.RecallSlot)) == 1
        assert not rig.of(act.CancelSlot)

    def test_a_slot_that_is_about_to_die_is_not_killed_again(self, rig):
        control(rig, m.Cancel, [Held(1, 1, [3])])
        rig.recalled(0, 1)
        control(rig, m.Cancel, [Held(1, 1, [2, 3])])

        assert len(rig.of(act.CancelSlot)) == 1


class TestHandingBack:
    def test_the_newest_first_and_no_more_than_asked_for(self, rig):
        rig.push(*range(1, 7))
        control(rig, m.Recall, 2)

        assert rig.returned() == [5, 6]

    def test_from_slots_when_that_is_not_enough(self, rig):
        rig.push(90)
        rig.finish(0)
        rig.push(*range(1, 21))
        held = sum(len(tasks) for tasks in rig.handed.values())
        assert held > 2
        control(rig, m.Recall, 20)
        for slot in (0, 1):
            rig.recalled(slot, len(rig.handed[slot]) - 1)

        assert len(rig.returned()) == 18

    def test_what_is_left_of_a_recall_goes_to_a_slot_at_once(self):
        """It lay in the backlog until the next beat: a second for a task of a millisecond."""
        rig = PoolRig(slots=1)
        rig.push(90)
        rig.finish(0)
        rig.push(1, 2, 3, 4)
        control(rig, m.Recall, 2)
        rig.recalled(0, 4)  # none of them had been started

        assert rig.returned() == [3, 4]
        assert rig.handed[0] == [(1, 1, 1), (1, 2, 1)]

    def test_a_paused_pool_gives_everything_back(self, rig):
        """Seed 1107: it sat on what it had not started while others were idle."""
        rig.push(1, 2, 3)
        rig.tell(ev.FromHub(m.PoolCommand("pause")))
        assert rig.returned() == [3]
        assert rig.of(m.Beat)[-1].state == "paused"
        rig.push(4)
        assert rig.returned() == [3, 4]
        rig.finish(0)
        assert rig.handed[0] == []

        rig.tell(ev.FromHub(m.PoolCommand("resume")))
        rig.push(5)
        assert rig.handed[0] == [(1, 5, 1)]


class TestDrain:
    def acknowledge(self, rig: PoolRig) -> None:
        rig.tell(ev.FromHub(m.BeatReply(EPOCH, rig.pool.session, rig.pool.member.spool.reports.next - 1)))

    def test_unstarted_tasks_go_back_running_ones_finish_then_it_leaves(self, rig):
        rig.push(1, 2, 3)
        rig.tell(ev.DrainRequested(10.0))
        assert rig.returned() == [3]
        rig.finish(0)
        rig.finish(1)
        assert not rig.of(act.Leave)
        self.acknowledge(rig)

        assert rig.of(act.Leave)[0].reason == ""
        assert rig.of(m.Bye)
        assert rig.done() == [1, 2]

    def test_when_the_grace_is_over_slots_are_killed_and_nobody_is_blamed(self, rig):
        rig.push(1)
        rig.tell(ev.DrainRequested(2.0))
        rig.after(2.1)
        assert rig.of(act.KillSlot) == [act.KillSlot(0)]
        rig.exited(0)
        self.acknowledge(rig)

        assert rig.failed() == {1: "lost"}
        assert rig.of(act.Leave)

    def test_it_does_not_wait_for_a_hub_that_is_gone(self, rig):
        rig.push(1)
        rig.tell(ev.DrainRequested(60.0))
        rig.finish(0)
        for _ in range(5):
            rig.after(1.0)

        assert rig.of(act.Leave)

    def test_nor_for_one_that_is_gone_while_tasks_run(self, rig):
        """A pool and its hub that are taken away together must not use up the whole grace."""
        rig.push(1)
        rig.tell(ev.DrainRequested(600.0))
        for _ in range(4):
            rig.after(1.0)  # the lease is 3 s
        assert rig.of(act.KillSlot) == [act.KillSlot(0)]
        rig.exited(0)

        assert rig.of(act.Leave)[0].reason == ""

    def test_an_operator_s_drain_has_the_pool_s_own_grace(self):
        rig = PoolRig(grace=5.0)
        rig.push(1)
        rig.tell(ev.FromHub(m.PoolCommand("drain")))
        for _ in range(4):
            rig.after(1.0)
            self.acknowledge(rig)
        assert not rig.of(act.KillSlot)
        rig.after(1.1)

        assert rig.of(act.KillSlot) == [act.KillSlot(0)]

    def test_but_for_one_that_is_only_asked_anew(self, rig):
        """A link that is reset while it drains must not cost the results that wait for it."""
        rig.push(1)
        rig.tell(ev.DrainRequested(60.0))
        rig.lose_lane()
        rig.finish(0)
        assert not rig.of(act.Leave)
        rig.welcome(session=2)
        self.acknowledge(rig)

        assert rig.of(act.Leave)

    def test_a_slot_that_dies_meanwhile_gives_back_what_it_had_not_started(self, rig):
        """It went back to the pool's own backlog, and the pool left with it."""
        rig.push(90)
        rig.finish(0)
        rig.push(1, 2)
        rig.tell(ev.DrainRequested(10.0))
        slot = next(slot for slot, tasks in rig.handed.items() if tasks)
        gone = [seq for _, seq, _ in rig.handed[slot]]
        rig.exited(slot, unstarted=len(gone))

        assert set(gone) <= set(rig.returned())

    def test_it_does_not_spin_when_a_slot_is_gone(self, rig):
        """The slot was due to start, and a draining pool starts none: its deadline stayed in the past."""
        rig.push(1)
        rig.tell(ev.DrainRequested(10.0))
        rig.exited(1)
        rig.now += 0.01

        assert rig.pool.deadline > rig.now


def test_who_has_left_does_and_says_nothing_more(rig):
    rig.tell(ev.DrainRequested(5.0))
    rig.exited(0, status=0)
    rig.exited(1, status=0)
    rig.after(0.1)
    assert rig.of(act.Leave)
    before = len(rig.actions)

    rig.lose_lane()
    control(rig, m.Cancel, [Held(1, 1, [1])])
    rig.tell(ev.DrainRequested(5.0))
    rig.after(60)

    assert len(rig.actions) == before
