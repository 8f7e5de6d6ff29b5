"""Tasks that a wrong estimate has sent ahead return to the hub within a second."""

import pytest

from taskmesh.core import events as ev
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Progress, Spec
from taskmesh.pool.machine.machine import RETURNED_AT_ONCE
from tests.core.rig import EPOCH, HubRig, Key, PoolRig, spec


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def teach(rig: HubRig, session: int, seconds: float, one: Spec) -> None:
    """Let the hub learn how long tasks of a spec take."""
    rig.submit(1, 1, one)
    rig.report(session, done=(rig.held[session][-1],), elapsed=seconds)


def alive(rig: HubRig, session: int, seconds: float, running: tuple[Key, ...] = ()) -> None:
    """The pool beats and finishes nothing."""
    for _ in range(round(seconds / 0.25)):
        rig.after(0.25)
        rig.beat(session, running=running)


def recalled(rig: HubRig, session: int) -> int:
    """The number of tasks that the pool was last asked to hand back, 0 for none."""
    counts = [message.count for _, message in rig.published if isinstance(message, m.Recall)]
    return counts[-1] if counts else 0


def hand_back(rig: HubRig, session: int) -> None:
    count = recalled(rig, session)
    rig.published.clear()
    rig.report(session, returned=tuple(reversed(rig.held[session][-count:])))  # from its end, as pools do


class TestAFunctionThatTurnsSlow:
    @pytest.fixture
    def session(self, rig) -> int:
        """Thousands of tasks were sent to two slots, and none ends."""
        session = rig.join(slots=2)
        teach(rig, session, 1e-6, spec("f"))
        rig.submit(1, 2000, spec("f"))
        assert len(rig.held[session]) == 2000
        alive(rig, session, 1.0)
        return session

    def test_has_all_but_the_running_tasks_called_back(self, rig, session):
        assert recalled(rig, session) == 1998

        hand_back(rig, session)
        assert [key[1] for key in rig.held[session]] == [2, 3]
        assert rig.state(1, 4) == "QUEUED"
        assert rig.tasks[1 << 64 | 4].attempt - rig.tasks[1 << 64 | 4].returns == 0

    def test_lets_what_is_urgent_have_the_next_free_slot(self, rig, session):
        hand_back(rig, session)
        (urgent,) = rig.submit(1, 1, spec("urgent", priority=100))
        rig.report(session, done=(rig.held[session][0],), elapsed=3.0)

        assert rig.held[session][1][1] == urgent

    def test_gives_another_group_its_turn(self, rig, session):
        hand_back(rig, session)
        (other,) = rig.submit(1, 1, spec("f"), group=7)
        for _ in range(3):
            rig.report(session, done=(rig.held[session][0],), elapsed=3.0)
            if other in [seq for _, seq, _ in rig.held[session]]:
                return
        pytest.fail("the other group has had no turn")

    def test_goes_on_in_order(self, rig, session):
        hand_back(rig, session)
        order = []
        for _ in range(10):
            key = rig.held[session][0]
            order.append(key[1])
            rig.report(session, done=(key,), elapsed=3.0)

        assert order == list(range(2, 12))

    def test_is_asked_again_for_what_is_not_handed_back_but_less_and_less_often(self, rig, session):
        rig.published.clear()
        alive(rig, session, 10.0)

        asked = [message for _, message in rig.published if isinstance(message, m.Recall)]
        assert 4 <= len(asked) <= 20

    def test_has_nothing_to_give_when_all_its_tasks_run(self, rig, session):
        hand_back(rig, session)
        alive(rig, session, 5.0)

        assert recalled(rig, session) == 0

    def test_is_known_to_be_slow_by_what_runs(self, rig, session):
        """Another pool is given no thousands of them meanwhile."""
        hand_back(rig, session)
        progress = [Progress(1, seq, 1, 0, -1, "p/0", elapsed) for seq, elapsed in ((2, 1.2), (3, 0.1))]
        rig.tell(
            ev.FromPool(m.Beat(EPOCH, session, "p", rig.hub.state.lanes[session].sequence, 0, 0, progress))
        )
        other = rig.join("q", slots=2)

        assert len(rig.held[other]) == 2

    def test_expires_in_time(self, rig):
        session = rig.join(slots=1)
        one = spec("fleeting", expires=5.0)
        teach(rig, session, 1e-6, one)
        rig.submit(1, 100, one)
        alive(rig, session, 1.0)
        hand_back(rig, session)
        alive(rig, session, 4.0)
        rig.tell(ev.FromClient(1, m.ClientBeat(EPOCH)))
        alive(rig, session, 1.0)

        assert list(rig.outcomes().values()).count("expired") == 99


def test_tasks_that_turn_slow_one_after_the_other_are_called_back_as_well(rig):
    """Many slots: something ends all the time, and yet what waits there would take minutes."""
    session = rig.join(slots=16)
    teach(rig, session, 1e-6, spec("f"))
    rig.submit(1, 8000, spec("f"))
    for _ in range(20):
        rig.after(0.2)
        rig.report(session, done=(rig.held[session][0],), elapsed=3.0)

    assert recalled(rig, session) > 7_000


@pytest.mark.parametrize("seconds", [0.0001, 0.001, 0.1, 0.4, 0.9])
def test_work_that_takes_as_long_as_was_thought_stays_where_it_is(rig, seconds):
    session = rig.join(slots=4)
    teach(rig, session, seconds, spec("f"))
    rig.submit(1, 600, spec("f"))
    rig.published.clear()
    while rig.held[session]:
        rig.now += seconds
        rig.tell(ev.Tick())
        rig.report(session, done=tuple(rig.held[session][:4]), elapsed=seconds)

    assert recalled(rig, session) == 0


def test_a_hub_that_stood_still_calls_nothing_back(rig):
    session = rig.join(slots=2)
    teach(rig, session, 0.002, spec("f"))
    rig.submit(1, 100, spec("f"))
    assert len(rig.held[session]) > 2
    rig.now += 5.0
    rig.tell(ev.Tick())

    assert recalled(rig, session) == 0


class TestAPool:
    def test_hands_back_in_portions(self):
        pool = PoolRig(slots=2)
        pool.push(*range(1, 20_001))
        pool.tell(ev.FromHub(m.Recall(EPOCH, 1, 19_998)))
        assert len(pool.returned()) == RETURNED_AT_ONCE

        steps = 0
        while pool.pool.deadline <= pool.now:
            pool.after(0.0)
            steps += 1
        assert steps <= 5
        assert len(pool.returned()) > 19_000
        assert len(set(pool.returned())) == len(pool.returned())
        sizes = [sum(len(held.seqs) for held in results.returned) for results in pool.reports()]
        assert max(sizes) <= RETURNED_AT_ONCE

    def test_tells_how_long_its_tasks_have_been_running(self):
        pool = PoolRig(slots=1)
        pool.push(1)
        pool.after(2.5)

        (progress,) = pool.of(m.Beat)[-1].running
        assert progress.elapsed == pytest.approx(2.5)
