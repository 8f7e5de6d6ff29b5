"""The order in which queued tasks leave the hub."""

from taskmesh.core.credit import ServiceTime
from taskmesh.core.ids import SEQ_BITS
from taskmesh.hub.machine.books.backlog import BANDWIDTH, QUANTUM, Backlog, Route, RouteQueue
from taskmesh.hub.machine.books.states import State, TaskRecord

DEFAULT = ("default", frozenset(), ())


def lasting(seconds: float) -> ServiceTime:
    """A spec whose tasks take so long."""
    spec = ServiceTime()
    spec.measured(1, seconds)
    return spec


TURN = lasting(QUANTUM)
"""Of a task that is a turn."""


def tasks(first: int, count: int, spec: ServiceTime = TURN) -> list[TaskRecord]:
    return [TaskRecord(0, number, spec, 0, b"") for number in range(first, first + count)]


def take(route_queue: RouteQueue, count: int) -> list[int]:
    """So many tasks, by turns."""
    found: list[int] = []
    while len(found) < count and (part := route_queue.take(count - len(found))):
        found += [record.id for record in part]
    return found


def of(backlog: Backlog, route: Route) -> list[RouteQueue]:
    return [route_queue for route_queue in backlog.route_queues() if route_queue.route == route]


def taken(backlog: Backlog, count: int, route: Route = DEFAULT) -> list[int]:
    """Take tasks from the route's first route queue."""
    for route_queue in of(backlog, route)[:1]:
        found = take(route_queue, count)
        backlog.served(route_queue)
        return found
    return []


def queued(*groups: list[TaskRecord]) -> tuple[Backlog, RouteQueue]:
    """A route queue of some groups of one client."""
    backlog = Backlog()
    for number, records in enumerate(groups):
        for record in records:
            record.group = number
        backlog.append(DEFAULT, 0, (0, number), records)
    return backlog, backlog.route_queues()[0]


def test_first_in_first_out_within_a_group():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(1, 5))

    assert taken(backlog, 3) == [1, 2, 3]
    assert taken(backlog, 3) == [4, 5]
    assert taken(backlog, 3) == []
    assert backlog.route_queues() == []


def test_groups_in_turn():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(100, 10))
    backlog.append(DEFAULT, 0, (2, 0), tasks(200, 10))

    assert taken(backlog, 4) == [100, 200, 101, 201]
    assert taken(backlog, 4) == [102, 202, 103, 203]


def test_a_turn_of_cheap_tasks_fills_a_message():
    _, route_queue = queued(tasks(0, 10_000, lasting(1e-7)), tasks(20_000, 10_000, lasting(1e-7)))

    parts = [route_queue.take(4096) for _ in range(4)]
    assert [part[0].group for part in parts] == [0, 1, 0, 1]
    assert all(1000 <= len(part) <= 1001 for part in parts)


def test_a_turn_goes_on_in_the_next_message():
    _, route_queue = queued(tasks(0, 100, lasting(QUANTUM / 10)), tasks(200, 100, lasting(QUANTUM / 10)))

    assert take(route_queue, 7) == [*range(7)]
    assert take(route_queue, 7) == [7, 8, 9, 200, 201, 202, 203]


def test_turns_are_equal_in_work_not_in_tasks():
    _, route_queue = queued(tasks(0, 100, lasting(0.010)), tasks(200, 1000, lasting(0.001)))

    first = take(route_queue, 330)
    assert 29 <= sum(task < 200 for task in first) <= 31, "of ten times the length a tenth as many"


def test_a_group_that_comes_is_owed_nothing_of_before():
    backlog, route_queue = queued(tasks(0, 1000), tasks(2000, 1000))
    take(route_queue, 500)
    backlog.append(DEFAULT, 0, (0, 7), tasks(4000, 100))

    assert 9 <= sum(task >= 4000 for task in take(route_queue, 30)) <= 11


def test_bytes_are_work_too():
    large = [TaskRecord(0, number, lasting(0.0), 0, b"x" * int(QUANTUM * BANDWIDTH)) for number in range(3)]
    _, route_queue = queued(large, tasks(20, 3, lasting(0.0)))

    assert [len(route_queue.take(9)) for _ in range(4)] == [1, 3, 1, 1]


def test_the_highest_priority_first():
    backlog = Backlog()
    backlog.append(DEFAULT, 0, (1, 0), tasks(1, 2))
    backlog.append(DEFAULT, 5, (1, 0), tasks(11, 2))

    assert [route_queue.priority for route_queue in backlog.route_queues()] == [5, 0]
    head = backlog.route_queues()[0].head()
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
    head = backlog.route_queues()[0].head()
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


def test_it_knows_how_many_wait_without_counting_them():
    backlog = Backlog()
    for client in (1, 2):
        backlog.append(DEFAULT, 0, (client, 0), tasks(client << SEQ_BITS, 50))
    (route_queue,) = backlog.route_queues()
    assert route_queue.size == 100

    some = [route_queue.take(1)[0] for _ in range(20)]
    assert route_queue.size == 80
    backlog.push_front(DEFAULT, 0, (1, 0), some[0])
    assert route_queue.size == 81
    for line in route_queue.groups.values():
        line[0].state = line[1].state = State.CANCELLED
    route_queue.head()
    route_queue.tidy()
    assert route_queue.size == 77 == sum(map(len, route_queue.groups.values()))


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
    assert [route_queue.priority for route_queue in backlog.route_queues()] == [0]
    assert taken(backlog, 9) == [1]
    assert not backlog.routes


def test_what_is_not_queued_any_more_takes_no_turn():
    backlog, route_queue = queued(tasks(10, 9), tasks(20, 9))
    for record in list(backlog.entries())[9:12]:
        record.state = State.CANCELLED

    assert take(route_queue, 3) == [10, 23, 11]


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

    assert taken(backlog, 9) == [102, 201, 103, 202, 104, 203, 105, 204, 205]


def test_tidying_waits_until_it_is_worth_it():
    backlog = Backlog()
    records = tasks(1, 10)
    backlog.append(DEFAULT, 0, (1, 0), records)
    records[4].state = State.CANCELLED
    backlog.left = 1

    backlog.tidy(live=9)

    assert len(list(backlog.entries())) == 10


def test_lineups_of_some_queues():
    backlog = Backlog()
    routes = [("a", frozenset(), ()), ("b", frozenset(), ()), ("a", frozenset({"gpu"}), ())]
    for number, route in enumerate(routes):
        backlog.append(route, 0, (1, 0), tasks(number, 1))

    def routes_of(*queues: str) -> list[Route]:
        return [route_queue.route for route_queue in backlog.route_queues(queues)]

    assert len(backlog.routes) == 3
    assert routes_of("a", "c") == [routes[0], routes[2]]
    assert taken(backlog, 9, routes[0]) == [0]
    assert routes_of("a", "b") == [routes[1], routes[2]]
    assert [taken(backlog, 9, route) for route in routes] == [[], [1], [2]]
    assert not routes_of("a", "b")
    assert not backlog._of_queue


def test_who_was_served_stands_behind_its_equals():
    backlog = Backlog()
    routes = [(queue, frozenset(), ()) for queue in "abc"]
    for number, route in enumerate(routes):
        backlog.append(route, 0, (1, 0), tasks(10 * number, 5))
    backlog.append(routes[1], 7, (1, 0), tasks(90, 5))

    assert [(route_queue.route[0], route_queue.priority) for route_queue in backlog.route_queues()] == [
        ("b", 7),
        ("a", 0),
        ("b", 0),
        ("c", 0),
    ]
    for route in routes:
        assert taken(backlog, 1, route)
    assert [route_queue.route[0] for route_queue in backlog.route_queues()] == ["b", "b", "a", "c"]


def test_groups_that_are_passed_over_do_not_end_the_taking():
    backlog, route_queue = queued(tasks(10, 50), tasks(80, 50))
    backlog.append(DEFAULT, 0, (7, 0), [TaskRecord(7, 1, TURN, 0, b"")])
    backlog.withheld.add(7)

    assert len(take(route_queue, 30)) == 30
