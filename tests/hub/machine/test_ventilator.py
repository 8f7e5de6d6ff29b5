"""What goes to which pool, how much of it, and what is called back."""

from itertools import groupby

import pytest

from taskmesh.core.credit import MOST_AHEAD
from taskmesh.core.events import FromClient, Tick
from taskmesh.hub.machine import pools
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run
from tests.core.rig import HubRig, number_of, spec


@pytest.fixture
def rig() -> HubRig:
    rig = HubRig()
    rig.client()
    return rig


def teach(rig: HubRig, session: int, seconds: float, **options: object) -> None:
    """Let the hub learn how long tasks of a spec take."""
    (seq,) = rig.submit(1, 1, spec(**options))
    (key,) = [key for key in rig.held[session] if key[1] == seq]
    rig.report(session, done=(key,), elapsed=seconds)


def test_a_task_of_unknown_length_goes_to_free_slots_only(rig):
    session = rig.join(slots=2)
    rig.submit(1, 10)

    assert len(rig.held[session]) == 2


def test_a_long_task_is_never_sent_ahead(rig):
    session = rig.join(slots=2)
    teach(rig, session, 1.0)
    rig.submit(1, 10)

    assert len(rig.held[session]) == 2


def test_short_tasks_fill_the_horizon(rig):
    session = rig.join(slots=2)
    teach(rig, session, 0.0004)
    rig.submit(1, 100)

    assert 20 <= len(rig.held[session]) <= 24, "4 ms of work for each slot"


def test_instant_tasks_fill_the_window(rig):
    session = rig.join(slots=1)
    teach(rig, session, 0.0)
    rig.submit(1, 6000)

    assert len(rig.held[session]) == MOST_AHEAD


def test_pools_are_served_in_turn(rig):
    sessions = [rig.join(pool, slots=3) for pool in ("p", "q", "r")]
    rig.submit(1, 6)

    assert [len(rig.held[session]) for session in sessions] == [2, 2, 2]


def test_a_full_pool_gives_no_other_a_second_turn(rig):
    sessions = [rig.join(pool, slots=slots) for pool, slots in (("p", 50), ("q", 1), ("r", 50))]
    for _ in range(23):
        rig.submit(1, 1)

    assert [len(rig.held[session]) for session in sessions] == [11, 1, 11]


class TestATaskAlone:
    """It needs no queue when nothing waits and the pool whose turn it is has a slot idle."""

    @pytest.fixture
    def queued(self, rig, monkeypatch):
        """How many tasks each call put into the queue."""
        counts: list[int] = []
        enqueue = rig.hub.state.ledger.enqueue
        monkeypatch.setattr(
            rig.hub.state.ledger, "enqueue", lambda records: counts.append(len(records)) or enqueue(records)
        )
        return counts

    def test_goes_straight_to_an_idle_slot(self, rig, queued):
        session = rig.join(slots=2)
        rig.submit()
        rig.submit()

        assert [key[1:] for key in rig.held[session]] == [(1, 1), (2, 1)]
        assert queued == []

    def test_that_was_submitted_before_goes_straight_and_is_queued_when_it_comes_back(self, rig, queued):
        session = rig.join(slots=2)
        run = Run(number_of(spec()), 0, [9], [b"x"])
        rig.submit()
        rig.tell(FromClient(1, m.Submit(2, [], [run])))
        rig.report(session, done=((1, 9, 1),))
        run = Run(number_of(spec()), 0, [5], [b"x"])
        rig.tell(FromClient(1, m.Submit(3, [], [run])))
        rig.hub.check()
        assert queued == []

        rig.report(session, returned=((1, 5, 1),))
        rig.hub.check()

    def test_waits_for_a_slot_and_others_wait_behind_it(self, rig):
        session = rig.join(slots=1)
        for _ in range(3):
            rig.submit()
        assert rig.hub.state.ledger.backlog.count() == 2

        order = []
        while rig.held[session]:
            order.append(rig.held[session][0][1])
            rig.report(session, done=(rig.held[session][0],), elapsed=1.0)
        assert order == [1, 2, 3]

    def test_takes_the_pools_in_turn(self, rig):
        sessions = [rig.join(pool, slots=2) for pool in ("p", "q", "r")]
        for _ in range(4):
            rig.submit()

        assert [[key[1] for key in rig.held[session]] for session in sessions] == [[1, 4], [2], [3]]

    def test_handed_back_it_has_its_place_in_the_queue(self, rig):
        session = rig.join(slots=1)
        rig.submit()
        rig.beat(session, state="paused")
        rig.report(session, returned=(rig.held[session][0],))
        assert rig.state(1, 1) == "QUEUED"

        rig.beat(session)
        assert [key[1:] for key in rig.held[session]] == [(1, 2)]

    def test_lets_a_retry_go_first_that_is_due(self, rig):
        """Seed 500007871: it went before the urgent task that was due at the same moment."""
        session = rig.join(slots=1)
        rig.submit(1, 1, spec("urgent", priority=5, max_retries=1, backoff=1.0, jitter=False))
        rig.fail(session, rig.held[session][0])
        rig.now += 1.5  # the hub was busy: no Tick has come
        rig.submit()

        assert [key[1:] for key in rig.held[session]] == [(1, 2)]

    def test_that_the_same_message_cancels_goes_nowhere(self, rig):
        session = rig.join()
        (number, one) = (number_of(spec()), spec())
        run = Run(number, 0, [1], [b"x"])
        rig.tell(FromClient(1, m.Submit(1, [(number, one)], [run], [1])))

        assert rig.state(1, 1) == "finished"
        assert not rig.held[session]
        assert not [told for _, told in rig.published if isinstance(told, m.Cancel)]

    @pytest.mark.parametrize("state", ["paused", "draining"])
    def test_waits_while_the_pool_takes_no_work(self, rig, state):
        session = rig.join()
        rig.beat(session, state=state)
        rig.submit()

        assert not rig.held[session]
        assert rig.state(1, 1) == "QUEUED"


def test_a_task_goes_where_its_queue_and_tags_are(rig):
    plain = rig.join("plain")
    special = rig.join("special", queues=["gpu-work"], tags=["gpu", "big"])
    rig.submit(1, 1, spec("a", queue="gpu-work", tags=("gpu",)))
    rig.submit(1, 1, spec("b", tags=("gpu",)))

    assert len(rig.held[special]) == 1
    assert rig.held[plain] == []
    assert rig.state(1, 2) == "QUEUED"


def test_a_busy_queue_starves_no_other_that_the_same_pool_serves(rig):
    session = rig.join(slots=1, queues=["default", "a"])
    teach(rig, session, 1.0, name="busy")
    teach(rig, session, 1.0, name="quiet", queue="a")
    rig.submit(1, 20, spec("busy"))
    (quiet,) = rig.submit(1, 1, spec("quiet", queue="a"))
    for _ in range(4):
        if any(seq == quiet for _, seq, _ in rig.held[session]):
            return
        rig.report(session, done=tuple(rig.held[session]), elapsed=1.0)

    pytest.fail("the other queue's task was not pushed in four turns")


@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_queues_have_equal_turns_whatever_else_the_hub_hears(rig, others):
    """A client acknowledges each outcome: counted by events, the turn was the same queue's each time."""
    session = rig.join(slots=1, queues=["default", "a"])
    teach(rig, session, 1.0, name="busy")
    teach(rig, session, 1.0, name="quiet", queue="a")
    rig.submit(1, 20, spec("busy"))
    quiet = rig.submit(1, 20, spec("quiet", queue="a"))
    run = []
    for _ in range(20):
        (first,) = rig.held[session]
        run.append(first[1] in quiet)
        rig.report(session, done=(first,), elapsed=1.0)
        for _ in range(others):
            rig.tell(Tick())

    assert abs(sum(run) - 10) <= 1


@pytest.mark.parametrize("priority", [0, 9])
def test_a_long_task_finds_a_slot_beside_another_queue_s_short_ones(rig, priority):
    """Short tasks go behind running ones, a long one does not: the pool never had a free slot for it."""
    session = rig.join(slots=2, queues=["default", "a"])
    long = spec("long", queue="a", priority=priority)
    teach(rig, session, 0.002, name="short")
    teach(rig, session, 2.0, name="long", queue="a", priority=priority)
    rig.submit(1, 300, spec("short"))
    (seq,) = rig.submit(1, 1, long)
    for _ in range(2 * len(rig.held[session])):  # what is there, and one more turn of the other queue
        if any(key[1] == seq for key in rig.held[session]):
            return
        rig.now += 0.002
        rig.report(session, done=(rig.held[session][0],), elapsed=0.002)

    pytest.fail("the other queue has had its turn, and the long task has no slot")


def test_a_queue_waits_for_no_other_that_is_served_elsewhere(rig):
    busy = rig.join("busy", slots=1, queues=["default", "a"])
    rig.submit(1, 1)
    free = rig.join("free", slots=1, instance=2, queues=["a"])
    rig.submit(1, 1)
    (seq,) = rig.submit(1, 1, spec(queue="a"))

    assert len(rig.held[busy]) == 1
    assert [key[1] for key in rig.held[free]] == [seq]


def test_higher_priorities_of_two_queues_come_before_lower_ones_of_either(rig):
    session = rig.join(slots=3, queues=["default", "a"])
    holding = rig.submit(1, 3)
    rig.submit(1, 5, spec("low"))
    (first,) = rig.submit(1, 1, spec("first", priority=9))
    (second,) = rig.submit(1, 1, spec("second", queue="a", priority=5))
    rig.report(session, done=tuple((1, seq, 1) for seq in holding), elapsed=3.0)

    assert [key[1] for key in rig.held[session]][:2] == [first, second]


def test_groups_of_large_tasks_take_turns(rig):
    """A turn that does not fit into one message has been had by its end, or would never pass on."""
    session = rig.join(slots=1)
    teach(rig, session, 0.0)
    pools.on_lane_lost(rig.hub.state, session)
    group_of = {seq: group for group in (1, 2) for seq in rig.submit(1, 70, group=group, size=1 << 20)}
    rig.beat(rig.join(number=2))

    groups = [group_of[seq] for _, seq, _ in rig.held[rig.session()]]
    assert len(groups) == 140
    assert max(len(list(turn)) for _, turn in groupby(groups[:100])) <= 5


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("groups", [2, 3])
def test_groups_have_equal_turns_where_tasks_are_long(rig, slots, groups):
    session = rig.join(slots=slots)
    teach(rig, session, 1.0)
    rig.submit(1, slots)  # holds the slots while the others come
    group_of = {seq: group for group in range(1, groups + 1) for seq in rig.submit(1, 30, group=group)}
    run = [0] * (groups + 1)
    for _ in range(12 * groups):
        first = rig.held[session][0]
        run[group_of.get(first[1], 0)] += 1
        rig.report(session, done=(first,), elapsed=1.0)

    assert max(run[1:]) - min(run[1:]) <= 1 + slots


def test_a_lone_task_does_not_wait_for_a_whole_map_of_long_ones(rig):
    session = rig.join(slots=1)
    teach(rig, session, 1.0)
    rig.submit(1, 1000, group=1)
    (alone,) = rig.submit(1, 1)
    for _ in range(3):
        if rig.held[session][0][1] == alone:
            return
        rig.report(session, done=tuple(rig.held[session]), elapsed=1.0)

    pytest.fail("the lone task was not pushed in three turns")


def test_higher_priorities_come_first_whatever_their_queue(rig):
    session = rig.join(slots=1, queues=["default", "a"])
    rig.submit(1, 1)
    rig.submit(1, 3, spec("low"))
    (urgent,) = rig.submit(1, 1, spec("urgent", queue="a", priority=9))
    rig.report(session, done=((1, 1, 1),), elapsed=1.0)

    assert rig.held[session] == [(1, urgent, 1)]


@pytest.mark.parametrize("state", ["paused", "draining"])
def test_a_pool_that_takes_no_work_gets_none(rig, state):
    session = rig.join()
    rig.beat(session, state=state)
    rig.submit(1, 1)

    assert rig.held[session] == []


def test_no_work_before_the_pool_has_dialled_its_lane(rig):
    """A Welcome that never arrives must not swallow work for a lease."""
    rig.hello()
    rig.submit(1, 1)
    assert rig.held[rig.session()] == []

    rig.beat(rig.session())
    assert len(rig.held[rig.session()]) == 1


class TestRecall:
    def stuck(self, rig: HubRig) -> tuple[int, int]:
        """Two pools: the first has more than it runs and reports nothing, the second has nothing."""
        first = rig.join("p", slots=1)
        teach(rig, first, 0.0004)
        rig.submit(1, 8)
        return first, rig.join("q", slots=1)

    def recalls(self, rig: HubRig) -> list[m.Recall]:
        return [message for _, message in rig.published if isinstance(message, m.Recall)]

    def test_what_stands_behind_a_task_that_turns_out_long_is_called_back(self, rig):
        first, second = self.stuck(rig)
        rig.after(0.4)

        recall = self.recalls(rig)[0]
        assert (recall.session, recall.count) == (first, 7), "all but the one that runs"
        rig.report(first, returned=tuple(rig.held[first][1:]))
        assert len(rig.held[second]) >= 1
        assert all(attempt == 2 for _, _, attempt in rig.held[second])

    def test_a_pool_whose_slots_all_run_one_is_not_asked(self, rig):
        busy = rig.join("p", slots=2)
        rig.submit(1, 2)
        assert len(rig.held[busy]) == 2
        rig.join("q", slots=2)
        rig.after(2.0)

        assert self.recalls(rig) == []

    def test_what_a_pool_without_slots_has_is_called_back(self, rig):
        broken, good = rig.join("p", slots=2), rig.join("q", slots=1)
        rig.submit(1, 3)
        assert len(rig.held[broken]) == 2

        rig.beat(broken, slots=0)
        rig.report(good, done=tuple(rig.held[good]))
        rig.submit(1, 1)
        assert len(rig.held[broken]) == 2, "nothing more for it"
        rig.report(good, done=tuple(rig.held[good]))
        rig.after(0.4)

        recall = self.recalls(rig)[0]
        assert (recall.session, recall.count) == (broken, 2)

    def test_it_is_repeated_less_and_less_often_while_it_brings_nothing(self, rig):
        self.stuck(rig)
        rig.after(5.0)

        assert 4 <= len(self.recalls(rig)) <= 12

    def test_not_while_nobody_is_idle(self, rig):
        first, _ = self.stuck(rig)
        rig.submit(1, 2, spec("long"))
        rig.published.clear()
        rig.after(0.4)

        assert self.recalls(rig) == []
        assert len(rig.held[first]) == 8


def test_queues_that_no_pool_serves_are_not_looked_at(monkeypatch):
    rig = HubRig()
    session = rig.join()
    rig.client()
    for number in range(20):
        rig.submit(one=spec(queue=f"nobody's-{number}"))
    looked_at = []
    ventilator = rig.hub.ventilator
    look = ventilator._dispatch_route_queue
    monkeypatch.setattr(
        ventilator,
        "_dispatch_route_queue",
        lambda route_queue, *rest: (looked_at.append(route_queue), look(route_queue, *rest)),
    )

    (seq,) = rig.submit()
    assert [key[1] for key in rig.held[session]] == [seq]
    assert {route_queue.route[0] for route_queue in looked_at} == {"default"}

    late = rig.join("late", instance=2, queues=["nobody's-3", "nobody's-4"])
    assert sorted(key[1] for key in rig.held[late]) == [4, 5]
