"""map and starmap: in order or not, lazily, in chunks; errors in their places."""

import gc
import itertools
import threading
import time
import weakref
from concurrent.futures import CancelledError
from functools import partial

import pytest

from taskmesh import task
from taskmesh.errors import ConfigError, MeshClosed, SerializationError
from taskmesh.messages.runs import CHUNK
from tests.client.watched import Box, is_gone
from tests.harness.nasty import Unpicklable
from tests.harness.waiting import wait_until

WAIT_S = 10


def double(number):
    return 2 * number


def add(a, b):
    return a + b


def pick(number):
    if number % 5 == 0:
        raise ValueError(f"five in {number}")
    return number


def stay(number):
    return number


waiter_pool = []


def first_true(values):
    return next(value for value in values if value)


def shut_at_three(number):
    if number == 3:
        waiter_pool[0].clear()
    return number


@pytest.mark.parametrize("chunksize", [1, 7, "auto", 10_000])
@pytest.mark.parametrize("count", [0, 1, 10, 3000])
def test_map_gives_all_results_in_order(mesh, chunksize, count):
    results = mesh.map(double, range(count), chunksize=chunksize)

    assert list(results) == [2 * i for i in range(count)]


def test_map_without_order_gives_all_results(mesh):
    results = mesh.map(double, range(3000), ordered=False)

    assert sorted(results) == [2 * i for i in range(3000)]


def test_map_stops_at_the_shortest_iterable_and_starmap_takes_tuples(mesh):
    assert list(mesh.map(add, [1, 2, 3], (10, 20))) == [11, 22]
    assert list(mesh.starmap(add, ([i, i] for i in range(4)), chunksize=3)) == [0, 2, 4, 6]


def test_map_in_chunks_sends_chunks(mesh, port):
    list(mesh.map(double, range(100), chunksize=25))

    specs = [port._specs[run.spec].kind for run in port.runs]
    assert sum(len(run.seqs) for run in port.runs) == 4
    assert set(specs) == {CHUNK}
    assert len({run.group for run in port.runs}) == 1
    assert port.runs[0].group > 0


def test_map_chunks_grow(mesh, port):
    list(mesh.map(stay, range(20_000)))

    assert sum(len(run.seqs) for run in port.runs) < 1000


def test_map_raises_an_items_error_in_its_place_and_can_go_on(mesh):
    results = mesh.map(pick, range(1, 12), chunksize=4)

    seen = []
    while True:
        try:
            seen.append(next(results))
        except StopIteration:
            break
        except ValueError as error:
            seen.append(f"{error}, {error.__notes__[-1].split(', ')[1]}")

    assert seen == [1, 2, 3, 4, "five in 5, attempt 1", 6, 7, 8, 9, "five in 10, attempt 1", 11]


def test_map_in_a_for_loop_ends_at_an_error(mesh):
    seen = []

    with pytest.raises(ValueError, match="five in 5"):
        seen.extend(mesh.map(pick, range(1, 12), chunksize=4))

    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("chunksize", [1, 3])
@pytest.mark.parametrize("has_executor", [True, False])
def test_map_item_whose_task_raises_stop_iteration_fails_in_its_place(mesh, chunksize, has_executor):
    mapping = mesh.executor() if has_executor else mesh
    results = mapping.map(first_true, [[1], [0], [3]], chunksize=chunksize)

    assert next(results) == 1
    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert list(results) == [3]


def test_map_item_that_cannot_be_pickled_fails_alone(mesh):
    results = mesh.map(stay, [1, Unpicklable(), 3], chunksize=1)

    assert next(results) == 1
    with pytest.raises(SerializationError, match="argument 1"):
        next(results)
    assert next(results) == 3


def test_map_of_tasks_that_may_be_killed_sends_calls(mesh, port):
    limited = task(hard_timeout=20)(stay)

    assert list(mesh.map(limited, range(5), chunksize=5)) == list(range(5))
    assert {port._specs[run.spec].kind for run in port.runs} == {0}


def test_map_with_a_buffer_takes_endless_iterables_and_stays_within_it(mesh):
    drawn = []

    def endless():
        for number in itertools.count():
            drawn.append(number)
            yield number

    results = mesh.map(stay, endless(), buffersize=10)
    assert len(drawn) <= 10
    for expected in range(200):
        assert next(results) == expected
        assert len(drawn) <= expected + 1 + 10


@pytest.mark.parametrize("chunksize", [1, 3, 100, "auto"])
@pytest.mark.parametrize("buffersize", [1, 5, 64])
def test_map_with_a_buffer_gives_all_results(mesh, chunksize, buffersize):
    results = mesh.map(double, iter(range(500)), chunksize=chunksize, buffersize=buffersize)

    assert list(results) == [2 * i for i in range(500)]


def test_map_draws_a_buffered_iterable_in_the_consumers_thread_only(mesh):
    threads = set()

    def numbers():
        for number in range(300):
            threads.add(threading.current_thread())
            yield number

    assert len(list(mesh.map(stay, numbers(), buffersize=20, chunksize=2))) == 300
    assert threads == {threading.current_thread()}


def test_map_raises_what_its_iterable_raises_after_the_items_before_it(mesh):
    def numbers():
        yield from range(5)
        raise OSError("the list is torn")

    results = mesh.map(stay, numbers(), buffersize=3, chunksize=1)
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(OSError, match="torn"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    with pytest.raises(OSError, match="torn"):
        mesh.map(stay, numbers())


@pytest.mark.parametrize("chunksize", [4, 10])
@pytest.mark.parametrize("starred", [True, False])
def test_map_gives_the_items_of_a_chunk_that_its_iterable_made_before_it_failed(mesh, chunksize, starred):
    def numbers():
        yield from range(6)
        raise OSError("the list is torn")

    if starred:
        calls = ((number,) for number in numbers())
        results = mesh.starmap(stay, calls, buffersize=100, chunksize=chunksize)
    else:
        results = mesh.map(stay, numbers(), buffersize=100, chunksize=chunksize)

    assert [next(results) for _ in range(6)] == list(range(6))
    with pytest.raises(OSError, match="torn"):
        next(results)
    assert list(results) == []


def test_map_times_out(mesh, port):
    port.gate.clear()
    results = mesh.map(stay, range(10), timeout=0.02)

    with pytest.raises(TimeoutError, match=r"test_map\.stay"):
        next(results)


def test_map_that_nobody_iterates_over_runs_to_its_end(mesh, port):
    mesh.map(stay, range(5000))

    wait_until(lambda: len(port.ran) == 5000)


def test_map_whose_consumer_is_away_goes_on(mesh, port):
    results = mesh.map(stay, range(5000))
    assert next(results) == 0

    wait_until(lambda: len(port.ran) == 5000)
    assert list(results) == list(range(1, 5000))


def test_map_that_was_begun_and_dropped_is_cancelled(mesh, port):
    port.max_batch = 1
    waiter_pool.append(port.gate)
    for value in mesh.map(shut_at_three, range(5000), chunksize=1):
        if value == 3:
            break
    waiter_pool.clear()
    gc.collect()

    assert not mesh._client.table.unended
    assert not mesh._client.maps
    assert len(port.cancelled) == 4996


def test_map_in_a_callback_works_while_the_delivery_thread_is_busy_with_it(mesh):
    results = []

    mesh.submit(stay, 1).add_done_callback(lambda f: results.append(list(mesh.map(stay, range(3000)))))

    wait_until(lambda: results)
    assert results == [list(range(3000))]


def test_map_goes_on_while_a_callback_waits(mesh):
    gate = threading.Event()
    mesh.submit(stay, 1).add_done_callback(lambda _: gate.wait(WAIT_S))

    assert list(mesh.map(stay, range(3000), timeout=WAIT_S)) == list(range(3000))
    gate.set()


def test_map_is_waited_for_by_a_clean_exit(make_mesh, opened):
    mesh = make_mesh()

    mesh.map(stay, range(5000))
    mesh.close()

    assert len(opened.last.ran) == 5000


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_map_item_that_would_end_the_delivery_thread_fails_in_its_place(mesh, port, kind):
    threads = []

    class Odd:
        def __reduce__(self):
            threads.append(threading.current_thread())
            raise kind

    port.gate.clear()
    results = mesh.map(stay, [*range(100), Odd()])
    assert not threads
    port.release()
    mesh._client.wait_for_all()

    seen = []
    with pytest.raises((kind, SerializationError)):
        seen.extend(results)
    assert seen == list(range(len(seen)))
    assert len(seen) > 8
    assert threading.current_thread() not in threads


def test_map_on_a_closed_mesh_is_refused(mesh):
    mesh.close()

    with pytest.raises(MeshClosed):
        mesh.map(stay, [1])


def test_map_is_cancelled_with_its_mesh(mesh, port):
    port.gate.clear()
    results = mesh.map(stay, range(10), chunksize=5)
    wait_until(lambda: port.runs)
    mesh.close(cancel=True)

    with pytest.raises(CancelledError):
        next(results)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunksize": 0}, "chunksize"),
        ({"chunksize": "big"}, "chunksize"),
        ({"chunksize": True}, "chunksize .* not True"),
        ({"buffersize": 0}, "buffersize"),
        ({"buffersize": "x", "chunksize": 2}, "buffersize .* not 'x'"),
        ({"buffersize": True, "chunksize": 2}, "buffersize .* not True"),
        ({"timeout": "1"}, "seconds"),
        ({"timeout": True}, "seconds, or None, not True"),
        ({"timeout": float("nan")}, "seconds, or None, not nan"),
    ],
)
@pytest.mark.parametrize("has_executor", [False, True])
def test_map_refuses_bad_sizes(mesh, options, words, has_executor):
    mapping = mesh.executor() if has_executor else mesh
    with pytest.raises(ConfigError, match=words):
        mapping.map(stay, [1], **options)
    assert not mesh._client.table.unended


def test_map_refuses_a_task_with_a_key(mesh):
    with pytest.raises(ConfigError, match="one by one"):
        mesh.map(task(key="k")(stay), [1])
    with pytest.raises(TypeError, match="at least one iterable"):
        mesh.map(stay)


def test_map_of_items_that_take_time_spreads_over_small_chunks(mesh, port):
    def wait(number):
        threading.Event().wait(0.004)
        return number

    started = time.monotonic()
    assert list(mesh.map(wait, range(60))) == list(range(60))

    assert time.monotonic() - started < WAIT_S
    assert sum(len(run.seqs) for run in port.runs) >= 8


@pytest.mark.parametrize("buffersize", [None, 2])
def test_a_result_of_its_own_task_is_not_kept_once_it_is_given(mesh, buffersize):
    for box in mesh.map(Box, range(10), chunksize=1, buffersize=buffersize):
        watched = weakref.ref(box)
        del box
        wait_until(partial(is_gone, watched))


def test_a_chunk_is_not_kept_while_the_next_one_is_made(mesh):
    watched = []

    def numbers():
        yield from (0, 1)
        wait_until(lambda: all(map(is_gone, watched)))
        yield from (2, 3)

    results = mesh.map(Box, numbers(), chunksize=2, buffersize=2)
    watched += [weakref.ref(next(results)), weakref.ref(next(results))]

    assert next(results).number == 2


def test_errors_of_items_are_given_in_their_places_where_they_are_asked_for(mesh):
    for chunksize in (1, 3):
        one, error, half = mesh.map(invert, [1, 0, 2], chunksize=chunksize, return_exceptions=True)
        assert (one, half) == (1.0, 0.5)
        assert isinstance(error, ZeroDivisionError)
    [error] = mesh.starmap(divmod, [(1, 0)], return_exceptions=True)
    assert isinstance(error, ZeroDivisionError)


def invert(number):
    return 1 / number
