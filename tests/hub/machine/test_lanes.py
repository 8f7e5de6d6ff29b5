"""A lane's credit and its books."""

import pytest

from taskmesh.core.credit import LANE_HORIZON, MAX_HORIZON
from taskmesh.hub.machine.books.lanes import LARGE, MOST_EARLY, Lane
from taskmesh.hub.machine.books.states import State, TaskRecord
from taskmesh.messages.mesh_messages import Hello
from tests.core.rig import spec, spec_entry


@pytest.fixture
def lane() -> Lane:
    return Lane(4, Hello("p", 1, 1, 2, ["default", "a"], ["gpu"], 0, 0, []), 0.0)


def record(task: int, session: int = 4, state: State = State.SENT) -> TaskRecord:
    return TaskRecord(0, task, spec_entry(5, spec()), 0, b"", 0.0, state, session=session)


def test_reports_count_once_in_any_order(lane):
    assert [lane.reports.take(number) for number in (1, 3, 3, 2, 1, 4)] == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]
    assert lane.reports.to == 4
    assert lane.reports.early == set()


def test_reports_ahead_of_a_missing_one_are_taken_in_up_to_a_bound(lane):
    taken = [lane.reports.take(number) for number in range(2, 2 * MOST_EARLY)]

    assert len(lane.reports.early) == sum(taken) == MOST_EARLY
    assert lane.reports.take(1)
    assert lane.reports.to == MOST_EARLY + 1
    assert lane.reports.take(MOST_EARLY + 2), "said again"


def test_the_horizon_follows_the_refill_latency_up_fast_and_down_slowly(lane):
    assert lane.credit.horizon == LANE_HORIZON
    for _ in range(8):
        lane.latency(0.1, 0.0)
    assert lane.credit.horizon == pytest.approx(0.2, rel=0.02)
    lane.latency(0.0, 0.0)
    assert lane.credit.horizon > 0.18
    lane.latency(60.0, 0.0)
    assert lane.credit.horizon == MAX_HORIZON


def test_it_serves_its_queues_with_its_tags(lane):
    assert lane.serves(("a", frozenset(), ()))
    assert lane.serves(("default", frozenset({"gpu"}), ()))
    assert not lane.serves(("default", frozenset({"gpu", "big"}), ()))
    assert not lane.serves(("b", frozenset(), ()))


def test_it_knows_what_it_holds_once_each(lane):
    records = [record(1), record(2), record(3)]
    lane.hold(records)
    records[1].session = 9
    records[2].state = State.SUCCEEDED
    lane.remember([records[0]])

    assert lane.held() == [records[0]]
    assert (lane.outstanding, lane.counts) == (3, {5: 3})
    lane.release(5, 3)
    assert (lane.outstanding, lane.counts) == (0, {})


def test_it_forgets_what_it_does_not_hold_any_more(lane):
    for start in range(0, 40_000, 100):
        records = [record(start + index) for index in range(100)]
        lane.hold(records)
        for one in records:
            one.state = State.SUCCEEDED
        lane.release(5, 100)

    assert len(lane._pushed) < 10_000


def test_only_large_messages_are_remembered_until_they_arrive(lane):
    lane.pushed(100)
    lane.pushed(LARGE)
    lane.pushed(2 * LARGE)

    assert lane.sequence == 3
    assert lane.bytes_in_flight(1) == 3 * LARGE
    assert lane.bytes_in_flight(2) == 2 * LARGE
    assert lane.bytes_in_flight(3) == 0


def test_results_that_are_large_count_like_long_tasks(lane):
    entry = spec_entry(5, spec())
    cost, horizon = lane.credit.cost, lane.credit.horizon
    assert cost(entry.service, entry.result_size) == horizon
    entry.service = 1e-6
    small = cost(entry.service, entry.result_size)
    entry.result_size = 4 << 20

    assert small < 1e-4
    assert cost(entry.service, entry.result_size) == pytest.approx(horizon / 2)
