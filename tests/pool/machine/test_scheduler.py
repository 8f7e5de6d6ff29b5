"""Which slot gets how much, and when it is taken back."""

import pytest

from taskmesh.core import actions as act
from taskmesh.core import events as ev
from tests.core.rig import PoolRig, spec


@pytest.fixture
def rig() -> PoolRig:
    rig = PoolRig()
    rig.push(1000)  # so that the pool knows how long a task takes: a millisecond
    rig.finish(0)
    rig.actions.clear()
    return rig


@pytest.fixture
def longer() -> PoolRig:
    """One whose tasks take ten milliseconds, so that a slot gets one ahead."""
    rig = PoolRig()
    rig.push(1000)
    rig.finish(0, elapsed=0.010)
    return rig


def handed(rig: PoolRig) -> list[int]:
    return [len(rig.handed[slot]) for slot in (0, 1)]


def recalls(rig: PoolRig) -> list[int]:
    return [recall.slot for recall in rig.of(act.RecallSlot)]


def test_tasks_of_unknown_length_one_by_one():
    rig = PoolRig()
    rig.push(*range(1, 11))

    assert handed(rig) == [1, 1]


def test_short_tasks_as_far_as_the_horizon(rig):
    rig.push(*range(1, 101))

    assert all(4 <= count <= 5 for count in handed(rig)), handed(rig)


def test_few_are_shared(rig):
    rig.push(*range(1, 9))

    assert handed(rig) == [4, 4]


def test_nothing_to_a_slot_that_is_not_up(rig):
    rig.exited(1)
    rig.push(*range(1, 9))

    assert handed(rig)[1] == 0


def test_each_of_several_with_a_limit_has_its_own(rig):
    rig.push(1, 2, one=spec("limited", hard_timeout=2.0))
    rig.after(1.9)
    assert not rig.of(act.KillSlot)

    rig.after(0.2)
    assert [kill.slot for kill in rig.of(act.KillSlot)] == [0, 1]


class TestATaskAlone:
    def test_goes_to_an_idle_slot(self, rig):
        rig.push(1)
        rig.push(2)

        assert handed(rig) == [1, 1]

    def test_goes_behind_another_when_no_slot_is_idle(self, rig):
        for number in range(1, 5):
            rig.push(number)

        assert handed(rig) == [2, 2]

    def test_has_its_limit(self, rig):
        rig.push(1, one=spec("limited", hard_timeout=2.0))
        rig.after(1.9)
        assert not rig.of(act.KillSlot)

        rig.after(0.2)
        assert [kill.slot for kill in rig.of(act.KillSlot)] == [0]

    def test_waits_for_a_slot_that_is_up(self):
        rig = PoolRig()
        rig.exited(0)
        rig.exited(1)
        rig.push(1)
        assert handed(rig) == [0, 0]

        rig.tell(ev.SlotReady(1, 300))
        assert handed(rig) == [0, 1]


def test_a_slot_with_much_to_do_shares_it_with_an_idle_one_at_once(rig):
    rig.push(*range(1, 9))
    rig.finish(1, 4)

    assert recalls(rig) == [0]
    rig.recalled(0, 3)
    assert handed(rig) == [2, 2]


def test_a_slot_that_falls_silent_gives_back_what_it_has_not_started():
    rig = PoolRig()
    rig.push(1000)
    rig.finish(0, elapsed=0.0003)
    rig.push(*range(1, 9))
    rig.finish(1, 4, elapsed=0.0003)
    assert recalls(rig) == [], "not worth it yet"
    rig.after(0.004)
    assert recalls(rig) == [0]
    assert isinstance(rig.actions[rig.actions.index(act.RecallSlot(0, 1)) - 1], act.PeekSlot)
    rig.recalled(0, 3)

    assert [seq for _, seq, _ in rig.handed[1]] == [2, 3, 4]
    assert rig.handed[0] == [(1, 1, 1)], "it is running, and gets no more before it reports"


def test_with_nobody_idle_it_is_given_longer(rig):
    rig.push(*range(1, 101))
    rig.after(0.010)
    assert recalls(rig) == []
    rig.after(0.020)
    assert sorted(recalls(rig)) == [0, 1]


def test_a_single_task_stays_longer_with_nobody_idle(longer):
    """Whoever is through with a longer task finds the next one at hand."""
    longer.push(*range(1, 11))
    assert handed(longer) == [2, 2]
    longer.after(0.030)
    assert sorted(peek.slot for peek in longer.of(act.PeekSlot)) == [0, 1], "one of the two may be done"
    assert recalls(longer) == []
    longer.after(0.200)
    assert len(longer.of(act.PeekSlot)) == 2, "not again"
    longer.after(0.030)
    assert sorted(recalls(longer)) == [0, 1]


def test_a_single_task_is_shared_with_an_idle_slot(longer):
    longer.push(1, 2, 3)
    longer.finish(1 if len(longer.handed[0]) == 2 else 0)
    longer.after(0.004)

    assert len(recalls(longer)) == 1


def test_a_slot_that_reports_is_peeked_at_anew(longer):
    longer.push(*range(1, 11))
    longer.after(0.030)
    longer.finish(0, elapsed=0.010)
    longer.actions.clear()
    longer.after(0.030)

    assert longer.of(act.PeekSlot) == [act.PeekSlot(0)]


def test_results_that_stand_behind_a_long_task_are_fetched(rig):
    """All but the last of what is left after a recall are done: the slot may sit on their results."""
    rig.push(*range(1, 9))
    rig.finish(1, 4)
    rig.after(0.004)
    rig.actions.clear()
    rig.recalled(0, 2)

    assert rig.of(act.PeekSlot) == [act.PeekSlot(0)]


def test_a_recall_that_brings_nothing_is_not_repeated(rig):
    """The recall that shares work with an idle slot asked again and again at the same instant."""
    rig.push(*range(1, 9))
    rig.finish(1, 4)
    for _ in range(10):
        rig.tell(ev.SlotRecalled(0, 0)) if recalls(rig) else rig.after(0.004)

    assert recalls(rig) == [0]
    assert rig.pool.deadline > rig.now


def test_later_hand_overs_are_of_the_next_generation(rig):
    rig.push(*range(1, 9))
    rig.finish(1, 4)
    rig.after(0.004)
    rig.recalled(0, 3)
    rig.finish(0)
    rig.push(*range(11, 19))
    generations = {hand.slot: hand.message.generation for hand in rig.of(act.HandOver)}

    assert generations == {0: 1, 1: 0}


def test_a_slow_loop_makes_the_horizon_longer(rig):
    scheduler = rig.pool.scheduler
    assert scheduler.credit.horizon == pytest.approx(0.005)
    for _ in range(10):
        scheduler.credit.measured(0.050)

    assert scheduler.credit.horizon == pytest.approx(0.100, rel=0.01)
    scheduler.credit.measured(5.0)
    assert scheduler.credit.horizon == 0.5


def test_specs_travel_to_a_slot_once(rig):
    rig.push(1, 2)
    rig.finish(0)
    rig.finish(1)
    rig.push(3, 4)

    specs = {slot: [] for slot in (0, 1)}
    for hand in rig.of(act.HandOver):
        specs[hand.slot] += hand.message.specs
    assert (len(specs[0]), len(specs[1])) == (0, 1)


def test_a_task_with_a_hard_limit_is_handed_over_alone():
    """When it is killed, nothing else is to be run again."""
    rig = PoolRig(1)
    limited = spec("limited", hard_timeout=5.0)
    for short in (spec(), limited):
        rig.push(1000, one=short)
        rig.finish(0)
    rig.push(1, one=spec("of unknown length"))
    rig.push(2, one=limited)
    rig.push(3)
    assert rig.handed[0] == [(1, 1, 1)]

    rig.finish(0)
    assert rig.handed[0] == [(1, 2, 1)]
    rig.finish(0)
    assert rig.handed[0] == [(1, 3, 1)]


def test_a_task_whose_prints_are_its_log_is_alone_in_its_slot():
    """So what its slot prints is its own."""
    rig = PoolRig(1)
    printing = spec("printing", stream_logs=True)
    for short in (spec(), printing):
        rig.push(1000, one=short)
        rig.finish(0)
    rig.push(1, 2, one=printing)
    rig.push(3)
    assert rig.handed[0] == [(1, 1, 1)]
    assert rig.of(act.HandOver)[-1].message.prints

    rig.after(2.0)
    assert not rig.of(act.KillSlot)
    rig.finish(0)
    assert rig.handed[0] == [(1, 2, 1)]
    rig.finish(0)
    assert rig.handed[0] == [(1, 3, 1)]
    assert not rig.of(act.HandOver)[-1].message.prints
