"""The order in which queued tasks leave the hub."""

from taskmesh.core.backlog import QUANTUM, Backlog
from taskmesh.core.states import State, TaskRecord

DEFAULT = ("default", frozenset())


def tasks(first: int, count: int) -> list[TaskRecord]:
    return [TaskRecord(number, None, 0, b"") for number in range(first, first + count)]


def taken(backlog: Backlog, count: int) -> list[int]:
    return [record.id for record in backlog.take(DEFAULT, count)]


def test_first_in_first_out_within_a_group():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(1, 5))

    assert taken(backlog, 3) == [1, 2, 3]
    assert taken(backlog, 3) == [4, 5]
    assert taken(backlog, 3) == []
    assert backlog.routes() == []


def test_groups_in_turn():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(100, 10))
    backlog.append(DEFAULT, 0, (2, 0), tasks(200, 10))

    assert taken(backlog, 4) == [100, 101, 200, 201]
    assert taken(backlog, 4) == [102, 103, 202, 203]


def test_a_large_group_gives_no_more_than_a_quantum_at_a_time():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(0, 10_000))
    backlog.append(DEFAULT, 0, (2, 0), tasks(20_000, 1))

    assert 20_000 in taken(backlog, 1000)[: QUANTUM + 1]


def test_the_highest_priority_first():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(1, 2))
    backlog.append(DEFAULT, 5, (1, 0), tasks(11, 2))

    assert backlog.priority(DEFAULT) == 5
    head = backlog.head(DEFAULT)
    assert head is not None
    assert head.id == 11
    assert taken(backlog, 9) == [11, 12]
    assert taken(backlog, 9) == [1, 2]


def test_a_task_that_had_been_on_its_way_comes_before_the_others():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(1, 2))
    (record,) = tasks(9, 1)
    record.lined_up = False
    backlog.push_front(DEFAULT, 0, (1, 0), record)

    assert taken(backlog, 9) == [9, 1, 2]


def test_what_is_not_queued_any_more_is_passed_over():
    backlog = Backlog()
    records = tasks(1, 4)
    backlog.append(DEFAULT, 0, (1, 0), records)
    records[0].state = State.CANCELLED
    records[2].state = State.SENT

    assert backlog.count() == 2
    head = backlog.head(DEFAULT)
    assert head is records[1]
    assert taken(backlog, 9) == [2, 4]


def test_a_task_that_left_and_came_back_is_there_once():
    """Seed 296: a session adopted a queued task and lost it; both entries were valid, it was pushed twice."""
    backlog = Backlog()
    (record,) = tasks(1, 1)
    backlog.append(DEFAULT, 0, (1, 0), [record])
    record.state = State.SENT  # adopted: its entry is stale
    record.state = State.QUEUED
    backlog.push_front(DEFAULT, 0, (1, 0), record)

    assert taken(backlog, 9) == [1]
    backlog.push_front(DEFAULT, 0, (1, 0), record)
    assert taken(backlog, 9) == [1]


def test_waiting_counts_no_further_than_enough():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(0, 50))
    backlog.append(DEFAULT, 1, (2, 0), tasks(100, 50))

    assert backlog.waiting(DEFAULT, 1000) == 100
    assert backlog.waiting(DEFAULT, 10) >= 10
    assert backlog.waiting(("other", frozenset()), 10) == 0


def test_what_has_left_goes_where_no_turn_comes():
    backlog = Backlog()
    first, *others = tasks(1, 100)
    backlog.append(DEFAULT, 0, (1, 0), [first, *others[:49]])
    backlog.append(DEFAULT, 3, (1, 0), others[49:])
    for record in others:
        record.state = State.EXPIRED
    backlog.left = len(others)

    backlog.tidy(live=1)

    assert list(backlog.entries()) == [first]
    assert not any(record.lined_up for record in others)
    assert backlog.priority(DEFAULT) == 0
    assert taken(backlog, 9) == [1]
    assert not backlog.waits


def test_tidying_leaves_order_and_turns():
    backlog = Backlog()
    records = tasks(100, 6) + tasks(200, 6) + tasks(300, 2)
    for group, own in enumerate((records[:6], records[6:12], records[12:])):
        backlog.append(DEFAULT, 0, (group, 0), own)
    assert taken(backlog, 3) == [100, 200, 300]
    for record in (records[1], records[13]):
        record.state = State.CANCELLED
    backlog.left = 2

    backlog.tidy(live=2)

    assert taken(backlog, 9) == [102, 103, 104, 105, 201, 202, 203, 204, 205]


def test_tidying_waits_until_it_is_worth_it():
    backlog = Backlog()
    records = tasks(1, 10)
    backlog.append(DEFAULT, 0, (1, 0), records)
    records[4].state = State.CANCELLED
    backlog.left = 1

    backlog.tidy(live=9)

    assert len(list(backlog.entries())) == 10


def test_routes_of_some_queues():
    backlog = Backlog()
    routes = [("a", frozenset()), ("b", frozenset()), ("a", frozenset({"gpu"}))]
    for number, route in enumerate(routes):
        backlog.append(route, 0, (1, 0), tasks(number, 1))

    assert backlog.waits == 3
    assert backlog.routes(["a", "c"]) == [routes[0], routes[2]]
    assert len(backlog.take(routes[0], 9)) == 1
    assert backlog.routes(["a", "b"]) == [routes[2], routes[1]]
    assert [len(backlog.take(route, 9)) for route in routes] == [0, 1, 1]
    assert not backlog.routes(["a", "b"])
    assert not backlog._of_queue
