"""The window, the order and the end of a stream, and the sizes of its pieces; no Spark is needed."""

import random
import statistics
import sys
from concurrent.futures import Future

import pyarrow as pa
import pytest

from taskmesh.client.futures.outcome import Success
from taskmesh.serialize.code import dump_function
from taskmesh.spark.jobs.batch_size import START, TARGET_S, BatchSizer, sizer_of
from taskmesh.spark.jobs.counts import Tally
from taskmesh.spark.jobs.partitions import ColumnPartition, pushed
from taskmesh.spark.jobs.remote_task import RemoteTask
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.jobs.stream import Stream
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.errors import MeshTaskError
from taskmesh.spark.steps.step import Step

pytestmark = [pytest.mark.spark]

NUMBERS = pa.schema([pa.field("x", pa.int64())])


class Engine:
    """Pieces are done when somebody waits for them, the last one first."""

    def __init__(self, failing: object = None) -> None:
        self.under_way: list[object] = []
        self.most = 0
        self.given_up: list[object] = []
        self._failing = failing
        self._data: dict[Future, object] = {}
        self.sent = 0
        self.slots = 3

    def submit(self, data):
        self.sent += 7
        self.under_way.append(data)
        self.most = max(self.most, len(self.under_way))
        piece = Future()
        self._data[piece] = data
        return piece

    def wait(self, pieces):
        pieces[-1].set_result(None)

    def outcome(self, piece, where):
        data = self._data[piece]
        self.under_way.remove(data)
        if data == self._failing:
            raise MeshTaskError(where)
        return data, Success(1, "pool/0", 0.5)

    def cancel(self, pieces):
        self.given_up += [self._data[piece] for piece in pieces]


class Sizer:
    """Notes what it is told; knows how long pieces take after so many of them."""

    def __init__(self, probes: int = 0) -> None:
        self.learnt: list[tuple] = []
        self._probes = probes

    @property
    def is_known(self):
        return len(self.learnt) >= self._probes

    def learn(self, *told):
        self.learnt.append(told)


def _pieces(count, size=10):
    return ((number, 100, size) for number in range(count))


def _stream(engine, sizer=None, *, ordered=True, **settings):
    settings = Settings("tcp://127.0.0.1:1", **settings)
    return Stream(lambda: engine, settings, sizer or Sizer(), Tally(), ordered=ordered)


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"window": 3}, 3),
        ({"window_bytes": 35}, 3),
        ({"window_bytes": 10}, 1),
        ({"window_bytes": 5}, 1),  # but always one
        ({"window_bytes": 1000}, 4),
    ],
)
def test_row_24_no_more_than_the_window_and_its_bytes_is_under_way_and_order_is_kept(settings, most):
    engine, sizer = Engine(), Sizer()

    assert list(_stream(engine, sizer, **settings).run(_pieces(20))) == list(range(20))
    assert engine.most == most
    assert engine.given_up == []
    assert sizer.learnt == [(100, 0.5, 10, engine.slots)] * 20


def test_without_order_what_is_done_goes_first():
    found = list(_stream(Engine(), ordered=False, window=3).run(_pieces(5)))

    assert sorted(found) == list(range(5))
    assert found[0] == 2


def test_row_24_bytes_that_are_known_only_when_they_are_sent_count_as_well():
    engine, sizer = Engine(), Sizer()

    assert list(_stream(engine, sizer, window=9, window_bytes=20).run(_pieces(6, size=0))) == list(range(6))
    assert engine.most == 3
    assert sizer.learnt == [(100, 0.5, 7, engine.slots)] * 6


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

    settings = Settings("tcp://127.0.0.1:1")
    assert list(Stream(refuse, settings, Sizer(), Tally()).run(_pieces(0))) == []


def test_pieces_go_one_by_one_while_nobody_knows_how_long_they_take():
    """A, E: the first pieces are probes."""
    engine = Engine()
    results = _stream(engine, Sizer(probes=2), window=3).run(_pieces(9))

    assert [(next(results), engine.most) for _ in range(3)] == [(0, 1), (1, 1), (2, 3)]
    assert list(results) == list(range(3, 9))


def _run(sizer, cost, pieces, most=10_000):
    """The sizes of pieces that a pace comes to for a function that takes `cost(rows)` seconds."""
    seen = []
    for _ in range(pieces):
        rows = min(sizer.rows, most)
        sizer.learn(rows, cost(rows))
        seen.append(rows)
    return seen


@pytest.mark.parametrize("seconds_a_row", [1e-7, 1e-5, 1e-3, 0.05, 10.0])
def test_a_pace_finds_a_twentieth_of_a_second(seconds_a_row):
    sizer = BatchSizer()

    seen = _run(sizer, lambda rows: rows * seconds_a_row, 40, 1_000_000)

    assert all(rows * seconds_a_row <= max(1.0, START * seconds_a_row) for rows in seen)
    assert sizer.rows == pytest.approx(max(1, int(TARGET_S / seconds_a_row)), abs=1, rel=0.05) or (
        sizer.rows > 400_000
    )


def test_many_slots_have_longer_pieces():
    """The hub passes on 2,000 pieces a second and not 20 for each of 1,000 slots."""
    few, many = BatchSizer(), BatchSizer()

    for _ in range(40):
        few.learn(few.rows, few.rows * 1e-5, slots=100)
        many.learn(many.rows, many.rows * 1e-5, slots=1_000)

    assert few.rows == pytest.approx(5_000, rel=0.05)
    assert many.rows == pytest.approx(50_000, rel=0.05)


@pytest.mark.parametrize("call", [0.04, 0.049, 0.06, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("start", [0.0, 5.0])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_fixed_cost_of_a_call_makes_pieces_large_and_not_small(call, start, noise):
    """A: 60 ms a call whatever its rows came to one row a call."""
    chance = random.Random(7)
    calls = iter([start, start])  # the first call on each of two slots loads something

    def cost(rows):
        return call * chance.uniform(1 - noise, 1 + noise) + next(calls, 0.0)

    seen = _run(BatchSizer(), cost, 200)

    assert sum(seen[:10]) > 25_000
    assert statistics.mean(seen[20:]) > 8_500
    assert min(seen[20:]) >= 2_500


@pytest.mark.parametrize(("call", "row"), [(0.06, 60e-6), (0.1, 1e-3), (0.02, 1e-4), (1.0, 1e-3)])
def test_a_pieces_are_no_smaller_than_the_rate_bears_and_not_much_larger(call, row):
    """A: rows a second are never more than a fifth below what one endless call would give."""
    seen = _run(BatchSizer(), lambda rows: call + rows * row, 60, 10**9)

    for rows in seen[-10:]:
        if rows > seen[-1] / 2:  # all but the one that looks whether the call still costs so much
            assert rows / (call + rows * row) >= 0.8 / row
            assert call + rows * row <= 12 * call


def test_a_start_that_took_long_is_forgotten():
    """A: two first calls of five seconds each are no reason for pieces of 10,000 rows of 2 ms."""
    calls = iter([5.0, 5.0])

    seen = _run(BatchSizer(), lambda rows: 0.002 * rows + next(calls, 0.0), 60)

    assert max(seen) <= 1_000
    assert 20 <= seen[-1] <= 30


def test_a_function_that_becomes_slower_gets_smaller_pieces_and_a_faster_one_larger_ones():
    sizer = BatchSizer()
    assert _run(sizer, lambda rows: 1e-5 * rows, 20)[-1] == pytest.approx(5_000, rel=0.1)
    assert _run(sizer, lambda rows: 1e-3 * rows, 40)[-1] == pytest.approx(50, rel=0.3)
    assert _run(sizer, lambda rows: 1e-5 * rows, 40)[-1] == pytest.approx(5_000, rel=0.3)


def test_a_batchs_small_rest_teaches_nothing_unless_it_is_slow():
    sizer = BatchSizer()

    sizer.learn(3, 1e-6)
    assert sizer.rows == START
    sizer.learn(3, 6.0)
    assert sizer.rows == START // 2


def test_items_that_are_called_one_by_one_have_no_call_to_pay_for():
    sizer = BatchSizer(0, 1, by_item=True)

    assert _run(sizer, lambda items: 0.1 * items, 5) == [1] * 5
    assert _run(sizer, lambda items: 0.001 * items, 10)[-1] == 50


def test_a_pace_that_is_fixed_stays():
    sizer = BatchSizer(7)

    sizer.learn(7, 100.0)

    assert sizer.rows == 7


def test_a_pace_is_found_again_and_does_not_keep_the_functions_bytes():
    function = bytes(range(200))
    before = sys.getrefcount(function)

    sizer = sizer_of(function)

    assert sizer_of(bytes(range(200))) is sizer
    assert sizer_of(bytes(range(100))) is not sizer
    assert sys.getrefcount(function) == before


class Tallies(list):
    """The tallies that partitions report at their end."""

    add = list.append


def _columns(given: list[list[int]], tallies: Tallies) -> list[pa.Array]:
    """The columns of a UDF that gives these back, computed in this process."""
    step = Step(dump_function(lambda ids: ids), "arrays", ipc.schema_bytes(NUMBERS), "raise")
    settings = Settings(engine="local", counts=tallies)
    way = ColumnPartition(settings, RemoteTask.of(settings, len, step), 0, ipc.schema_bytes(NUMBERS))
    return list(way.run(iter([pa.array(numbers, pa.int64()) for numbers in given])))


def test_h_a_batch_without_rows_before_others_has_a_column_without_rows():
    """H: it was told that a UDF's result had two rows in place of none."""
    given = [[], [1, 2], [], [], [3], []]

    found = _columns(given, Tallies())

    assert [column.to_pylist() for column in found] == given
    assert {column.type for column in found} == {pa.int64()}


def test_a_udfs_small_batches_travel_together_and_its_columns_are_cut_as_its_input():
    given = [list(range(first, first + length)) for first, length in ((0, 1), (1, 40), (41, 0), (41, 7))] * 50
    tallies = Tallies()

    found = _columns(given, tallies)

    assert [column.to_pylist() for column in found] == given
    (tally,) = tallies
    assert (tally.rows_in, tally.rows_out) == (2400, 2400)
    assert tally.pieces < 100, "150 batches have rows"


def test_e_what_would_stay_in_a_buffer_is_pushed_by_empty_batches():
    """E: PySpark's worker writes 64 KiB at a time; a batch of a few rows is not seen before."""
    batches = [pa.RecordBatch.from_pydict({"x": [number]}, NUMBERS) for number in range(3)]

    late = list(pushed(batches, NUMBERS, held=-1.0))
    early = list(pushed(batches, NUMBERS, held=60.0))

    assert early == batches
    assert [batch for batch in late if batch.num_rows] == batches
    empty = [batch for batch in late if not batch.num_rows]
    assert len(empty) * pa.ipc.get_record_batch_size(empty[0]) > 3 * 65536
    assert {batch.schema for batch in empty} == {NUMBERS}


def test_e_what_fills_the_buffer_itself_is_not_pushed():
    large = pa.RecordBatch.from_pydict({"x": range(10_000)}, NUMBERS)

    assert list(pushed([large] * 3, NUMBERS, held=-1.0)) == [large] * 3


@pytest.mark.parametrize("wide", [0, 3000])
def test_e_any_schema_can_be_pushed(wide):
    schema = pa.schema([pa.field(f"c{number}", pa.int64(), nullable=False) for number in range(wide)])
    one = pa.RecordBatch.from_struct_array(pa.array([dict.fromkeys(schema.names, 1)], pa.struct(schema)))

    assert sum(batch.num_rows for batch in pushed([one], schema, held=-1.0)) == 1
