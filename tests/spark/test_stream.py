"""The window, the order and the end of a stream, and the pace that it is cut at; no Spark is needed."""

import sys
from itertools import pairwise

import pytest

from taskmesh.outcome import Success
from taskmesh.spark.errors import MeshTaskError
from taskmesh.spark.pace import START, TARGET_S, Pace, pace_of
from taskmesh.spark.settings import Settings
from taskmesh.spark.stream import Stream

pytestmark = [pytest.mark.spark]


class Engine:
    """Pieces are done when somebody waits for them, the last one first."""

    def __init__(self, failing: object = None) -> None:
        self.under_way: list[object] = []
        self.most = 0
        self.done: set[object] = set()
        self.given_up: list[object] = []
        self._failing = failing
        self.sent = 0

    def submit(self, data):
        self.sent += 7
        self.under_way.append(data)
        self.most = max(self.most, len(self.under_way))
        return data

    def is_done(self, piece):
        return piece in self.done

    def wait(self, pieces):
        self.done.add(pieces[-1])

    def outcome(self, piece, where):
        self.under_way.remove(piece)
        if piece == self._failing:
            raise MeshTaskError(where)
        return piece, Success(1, "pool/0", 0.5)

    def cancel(self, pieces):
        self.given_up += pieces


def _pieces(count, size=10):
    return ((number, 100, size) for number in range(count))


def _stream(engine, *, order=True, learn=None, **settings):
    return Stream(lambda: engine, Settings("tcp://127.0.0.1:1", **settings), order=order, learn=learn)


def test_row_24_no_more_than_the_window_is_under_way_and_order_is_kept():
    engine = Engine()

    assert list(_stream(engine, window=3).run(_pieces(20))) == list(range(20))
    assert engine.most == 3
    assert engine.given_up == []


@pytest.mark.parametrize(("limit", "most"), [(35, 3), (10, 1), (5, 1), (1000, 4)])
def test_row_24_nor_more_than_its_bytes_but_always_one(limit, most):
    engine = Engine()

    assert list(_stream(engine, window_bytes=limit).run(_pieces(20))) == list(range(20))
    assert engine.most == most


def test_without_order_what_is_done_goes_first():
    found = list(_stream(Engine(), order=False, window=3).run(_pieces(5)))

    assert sorted(found) == list(range(5))
    assert found[0] == 2


def test_row_24_bytes_that_are_known_only_when_they_are_sent_count_as_well():
    engine, learnt = Engine(), []

    stream = _stream(engine, window=9, window_bytes=20, learn=lambda *told: learnt.append(told))

    assert list(stream.run(_pieces(6, size=0))) == list(range(6))
    assert engine.most == 3
    assert learnt == [(100, 0.5, 7)] * 6


def test_row_22_a_stream_that_is_closed_gives_up_what_is_under_way():
    engine = Engine()
    results = _stream(engine, window=3).run(_pieces(20))
    next(results)

    results.close()

    assert engine.given_up == engine.under_way == [1, 2]


def test_a_failure_names_its_rows_and_gives_up_the_rest():
    engine = Engine(failing=2)

    with pytest.raises(MeshTaskError, match="rows 200 to 299 of the partition"):
        list(_stream(engine, window=2).run(_pieces(20)))

    assert engine.given_up == [2, 3]


def test_row_06_nothing_is_opened_for_nothing():
    def refuse():
        raise AssertionError("opened")

    assert list(Stream(refuse, Settings("tcp://127.0.0.1:1")).run(_pieces(0))) == []


def test_every_result_teaches_the_pace():
    learnt = []

    list(_stream(Engine(), learn=lambda *told: learnt.append(told)).run(_pieces(3)))

    assert learnt == [(100, 0.5, 10)] * 3


@pytest.mark.parametrize("seconds_a_row", [1e-7, 1e-5, 1e-3, 0.05, 10.0])
def test_a_pace_finds_a_tenth_of_a_second(seconds_a_row):
    pace, seen = Pace(), [START]
    for _ in range(40):
        rows = min(pace.rows, 1_000_000)
        pace.learn(rows, rows * seconds_a_row)
        seen.append(pace.rows)

    assert all(after <= 8 * before for before, after in pairwise(seen))
    assert pace.rows == max(1, int(TARGET_S / seconds_a_row)) or pace.rows > 900_000


def test_a_batchs_small_rest_teaches_nothing_unless_it_is_slow():
    pace = Pace()

    pace.learn(3, 1e-6)
    assert pace.rows == START
    pace.learn(3, 6.0)
    assert pace.rows == START // 2


def test_a_pace_that_is_fixed_stays():
    pace = Pace(7)

    pace.learn(7, 100.0)

    assert pace.rows == 7


def test_a_pace_is_found_again_and_does_not_keep_the_functions_bytes():
    function = bytes(range(200))
    before = sys.getrefcount(function)

    pace = pace_of(function)

    assert pace_of(bytes(range(200))) is pace
    assert pace_of(bytes(range(100))) is not pace
    assert sys.getrefcount(function) == before
