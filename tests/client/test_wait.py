"""wait, as_completed, gather: as in concurrent.futures, without a condition for each future."""

import concurrent.futures
import threading
import weakref
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future
from functools import partial

import pytest

from taskmesh import as_completed, gather, wait
from tests.client.watched import Box, is_gone
from tests.harness.waiting import wait_until

WAIT_S = 10


def double(number):
    return 2 * number


def fail(text):
    raise ValueError(text)


@pytest.mark.parametrize("function", [wait, as_completed, gather])
def test_what_is_no_future_is_refused_by_name(mesh, function):
    with pytest.raises(TypeError, match=r"futures are waited for, as submit\(\) returns them, not 2"):
        function(mesh.map(double, [1, 2]))


@pytest.fixture
def held(mesh, port):
    """Futures that wait for port.release()."""
    port.gate.clear()
    port.max_batch = 1
    return mesh


def test_as_completed_takes_a_generator_and_yields_each_once(mesh):
    futures = []

    def submitted():
        for i in range(300):
            futures.append(mesh.submit(double, i))
            yield futures[-1]
            yield futures[-1]

    seen = list(as_completed(submitted(), WAIT_S))

    assert len(seen) == 300
    assert set(seen) == set(futures)


@pytest.mark.parametrize("ended", [False, True])
def test_as_completed_keeps_no_future_that_it_has_given(mesh, ended):
    futures = [mesh.submit(Box, 1) for _ in range(10)]
    if ended:
        wait(futures, WAIT_S)
    given = as_completed(futures, WAIT_S)
    del futures
    for future in given:
        watched = weakref.ref(future.result())
        del future
        wait_until(partial(is_gone, watched))


def test_as_completed_yields_in_the_order_of_ending(held, port):
    first, second = held.submit(double, 1), held.submit(double, 2)
    ended = as_completed([second, first], WAIT_S)
    port.release()

    assert list(ended) in ([first, second], [second, first])
    third, fourth = held.submit(double, 3), held.submit(double, 4)
    third.result(WAIT_S)
    assert next(as_completed([fourth, third])) in {third, fourth}


@pytest.mark.parametrize("timeout", [float("inf"), 1e30])
def test_limits_beyond_all_clocks_are_no_limits(held, port, timeout):
    futures = [held.submit(double, i) for i in range(3)]
    threading.Timer(0.05, port.release).start()

    assert set(as_completed(futures, timeout)) == set(futures)
    assert wait(futures, timeout, FIRST_COMPLETED).done
    assert gather(futures, timeout=timeout) == [0, 2, 4]


def test_as_completed_times_out_and_lets_go(held):
    future = held.submit(double, 1)

    with pytest.raises(TimeoutError, match="1 of 1 tasks"):
        list(as_completed([future], 0.01))

    assert future._extras.watchers == []


def test_as_completed_of_others_futures_is_the_stdlibs(mesh):
    other = Future()
    other.set_result(1)

    assert set(as_completed([other, mesh.submit(double, 1)], WAIT_S)) >= {other}


def test_wait_for_all_makes_no_condition(mesh):
    futures = [mesh.submit(double, i) for i in range(200)]

    done, pending = wait(iter(futures), WAIT_S)

    assert (done, pending) == (set(futures), set())
    assert all(future._extras is None or future._extras.condition is None for future in futures)


def test_wait_with_a_timeout_tells_what_is_not_done(held, port):
    futures = [held.submit(double, i) for i in range(3)]

    waited = wait(futures, 0.01)

    assert waited.done == set()
    assert waited.not_done == set(futures)


def test_wait_for_the_first_completed(held, port):
    futures = [held.submit(double, i) for i in range(3)]
    threading.Timer(0.02, port.release).start()

    assert wait(futures, WAIT_S, FIRST_COMPLETED).done


def test_wait_for_the_first_exception_does_not_stop_at_a_success(held, port):
    good, bad, late = held.submit(double, 1), held.submit(fail, "x"), held.submit(double, 2)
    port.release()

    assert bad in wait([late, good, bad], WAIT_S, FIRST_EXCEPTION).done
    assert wait([good], WAIT_S, FIRST_EXCEPTION).done == {good}


def test_wait_refuses_an_unknown_condition(mesh):
    with pytest.raises(ValueError, match="return condition"):
        wait([mesh.submit(double, 1)], WAIT_S, "SOME")


def test_wait_of_others_futures_is_the_stdlibs(mesh):
    other = Future()

    waited = wait([other, mesh.submit(double, 1)], WAIT_S, FIRST_COMPLETED)

    assert waited.not_done >= {other}


def test_gather_gives_results_in_order(mesh):
    assert gather(mesh.submit(double, i) for i in range(100)) == [2 * i for i in range(100)]


def test_gather_raises_the_first_error_at_once_and_the_others_go_on(held, port):
    bad, late = held.submit(fail, "first"), held.submit(double, 1)
    port.release()

    with pytest.raises(ValueError, match="first"):
        gather([late, bad], timeout=WAIT_S)

    assert late.result(WAIT_S) == 2


def test_gather_can_return_exceptions(mesh):
    results = gather([mesh.submit(fail, "x"), mesh.submit(double, 1)], return_exceptions=True)

    assert isinstance(results[0], ValueError)
    assert results[1] == 2


def test_gather_times_out(held):
    with pytest.raises(TimeoutError, match="1 of 1 tasks"):
        gather([held.submit(double, 1)], timeout=0.01)


def test_gather_of_a_cancelled_task_is_cancelled(held, port):
    future = held.submit(double, 1)
    wait_until(lambda: port.runs)
    future.cancel()

    with pytest.raises(concurrent.futures.CancelledError):
        gather([future])
    assert isinstance(gather([future], return_exceptions=True)[0], concurrent.futures.CancelledError)
