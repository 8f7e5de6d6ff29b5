"""map: several threads, or the map's own input, ask its iterator for results."""

from concurrent.futures import ThreadPoolExecutor

import pytest


def double(number):
    return 2 * number


@pytest.mark.parametrize("options", [{}, {"buffersize": 10}, {"chunksize": 1}, {"ordered": False}])
def test_threads_share_an_iterator_by_next(mesh, options):
    results = mesh.map(double, range(1000), **options)

    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: next(results), range(1000)))

    assert sorted(taken) == [2 * i for i in range(1000)]
    assert list(results) == []


def taken_by(results):
    """What one thread gets of a map that others iterate over, too."""
    taken = []
    while True:
        try:
            for result in results:
                taken.append(result)  # noqa: PERF402  up to the item that fails
            return taken
        except ZeroDivisionError:
            taken.append(None)


def some(number):
    return 1 / 0 if number % 100 == 7 else number


@pytest.mark.parametrize("options", [{}, {"buffersize": 10}, {"chunksize": 7}, {"ordered": False}])
def test_threads_share_an_iterator_by_for(mesh, options):
    results = mesh.map(some, range(2000), **options)

    with ThreadPoolExecutor(4) as threads:
        taken = [result for own in threads.map(taken_by, [results] * 4) for result in own]

    assert taken.count(None) == 20
    assert sorted(result for result in taken if result is not None) == [
        number for number in range(2000) if number % 100 != 7
    ]


def test_input_that_asks_its_own_map_for_a_result_is_refused(mesh):
    def numbers():
        yield 1
        yield next(results)

    results = mesh.map(double, numbers(), chunksize=1, buffersize=1)

    assert next(results) == 2
    with pytest.raises(ValueError, match="by their own input"):
        next(results)
