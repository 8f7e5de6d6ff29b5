"""Credit: what a task counts for, and how far ahead of need work goes."""

import pytest

from taskmesh.core.credit import (
    LEAST_COST,
    LONG,
    MAX_HORIZON,
    ONE_AHEAD,
    RESULTS_AHEAD,
    SLOT_HORIZON,
    Credit,
    ServiceTime,
)


@pytest.fixture
def credit() -> Credit:
    return Credit(SLOT_HORIZON, fall=0.1)


@pytest.mark.parametrize("service", [None, LONG, 60.0])
def test_tasks_that_are_long_or_unknown_fill_the_horizon(credit, service):
    assert credit.cost(service) == credit.horizon


def test_a_shorter_one_leaves_room_for_one_ahead(credit):
    assert credit.cost(0.9 * LONG) == ONE_AHEAD * credit.horizon
    assert credit.cost(0.001) == 0.001
    assert credit.cost(0.0) == LEAST_COST


def test_a_large_result_counts_by_its_share(credit):
    assert credit.cost(0.0, RESULTS_AHEAD / 4) == pytest.approx(credit.horizon / 4)
    assert credit.cost(0.0, 4 * RESULTS_AHEAD) == credit.horizon
    assert credit.cost(0.9 * LONG, 1) == ONE_AHEAD * credit.horizon


def test_the_horizon_is_twice_the_latency_which_rises_fast_and_falls_slowly(credit):
    credit.measured(0.1)
    assert credit.latency == pytest.approx(0.05)
    credit.measured(0.0)
    assert credit.latency == pytest.approx(0.045)
    assert credit.horizon == pytest.approx(0.09)


def test_the_horizon_has_bounds(credit):
    credit.measured(-1.0)
    assert credit.horizon == SLOT_HORIZON
    credit.measured(60.0)
    assert credit.horizon == MAX_HORIZON


def test_what_the_far_end_needs_besides_is_added(credit):
    credit.measured(0.02)
    credit.measured(None, 0.03)

    assert credit.latency == pytest.approx(0.01)
    assert credit.horizon == pytest.approx(0.08)


def test_a_service_time_follows_what_is_measured():
    time = ServiceTime()
    assert time.service is None
    time.at_least(5.0)
    assert time.service is None, "one that runs is no measurement"
    time.measured(1, 1.0)
    time.measured(1, 2.0)
    assert time.service == pytest.approx(2.7 / 1.7)
    time.at_least(1.0)
    time.at_least(9.0)
    assert time.service == 9.0
    time.measured(1000, 1.0)
    assert time.service < 0.01, "one that ran for long is one of many"


def test_few_tasks_that_took_long_do_not_make_many_long():
    time = ServiceTime()
    for _ in range(3):
        time.measured(1000, 0.003)
    time.measured(5, 0.020)  # the slot had no processor

    assert time.service < 0.00002
