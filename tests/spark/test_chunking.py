"""Partitions cut into chunks and batches; no Spark is needed."""

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from taskmesh.errors import SerializationError
from taskmesh.serialize.code import dump_function
from taskmesh.spark.jobs.batch_size import BatchSizer
from taskmesh.spark.jobs.partitions import MOST_BYTES, ColumnPartition, _cut, gathered
from taskmesh.spark.jobs.pickled_batch import PickledBatcher
from taskmesh.spark.jobs.settings import Settings
from taskmesh.spark.steps import ipc
from taskmesh.spark.steps.chunks import ChunkStep, items_of
from tests.spark import tasks

pytestmark = [pytest.mark.spark]

START = 256


def _batches(*lengths: int) -> list[bytes]:
    """Spark's pickles of so many numbers each, which all take as many bytes."""
    first, found = 70_000, []
    for length in lengths:
        found.append(pickle.dumps(list(range(first, first + length)), 5))
        first += length
    return found


def _items(pieces) -> list[int]:
    lists = [list(map(items_of, chunk)) if isinstance(chunk, tuple) else [chunk] for chunk, _, _ in pieces]
    return [item for found in lists for items in found for item in items]


def test_the_first_batch_is_opened_and_later_ones_travel_as_they_are():
    batches = _batches(100, 120, 120, 50)

    pieces = list(PickledBatcher(BatchSizer(start=START)).pieces(iter(batches)))

    assert [type(chunk) for chunk, _, _ in pieces] == [list, tuple, tuple]
    assert pieces[0][1:] == (100, 0)
    assert pieces[1] == ((batches[1], batches[2]), 0, len(batches[1]) + len(batches[2]))  # 290 are over START
    assert _items(pieces) == list(range(70_000, 70_390))


def test_a_batch_of_more_items_than_a_piece_may_have_is_cut():
    pieces = list(PickledBatcher(BatchSizer(start=START)).pieces(iter(_batches(10, 3 * START, 10))))

    assert [rows for _, rows, _ in pieces] == [10, START, START, START, 0]
    assert _items(pieces) == list(range(70_000, 70_020 + 3 * START))


def test_the_pace_says_how_many_items_make_a_piece_while_it_is_cut():
    sizer = BatchSizer(start=START, by_item=True)
    pieces = PickledBatcher(sizer).pieces(iter(_batches(*[100] * 20)))

    next(pieces)
    sizer.learn(START, 0.01)
    lengths = [len(chunk) for chunk, _, _ in pieces]

    assert sizer.rows == START * 5
    assert lengths == [12, 7]


def test_no_piece_has_many_more_bytes_than_a_mebibyte_unless_one_item_has():
    sizer = BatchSizer(start=1, most_bytes=MOST_BYTES, by_item=True)
    texts = [["x" * 100_000], ["y" * 100_000] * 30, ["z" * 3_000_000]]
    batches = [pickle.dumps([f"{n}{text}" for n, text in enumerate(batch)], 5) for batch in texts]
    pieces = PickledBatcher(sizer).pieces(iter(batches))

    first = next(pieces)
    for count in (1, 8):
        sizer.learn(count, 1e-6, count * 100_000)
    rest = list(pieces)

    assert sizer.rows == 10
    assert [rows for _, rows, _ in [first, *rest]] == [1, 10, 10, 10, 1]


def test_items_that_only_pyspark_can_rebuild_are_opened():
    batches = [pickle.dumps([number, "by pyspark.cloudpickle"], 5) for number in range(3)]

    assert [type(chunk) for chunk, _, _ in PickledBatcher(BatchSizer()).pieces(iter(batches))] == [list] * 3


def test_order_is_kept_when_a_batch_is_opened_between_others():
    batches = [
        pickle.dumps([text * 5], 5) for text in ("first 0", "second ", "pyspark", "fourth ", "fifth 0")
    ]

    pieces = list(PickledBatcher(BatchSizer()).pieces(iter(batches)))

    assert [type(chunk) for chunk, _, _ in pieces] == [list, tuple, list, tuple]
    assert _items(pieces) == [text * 5 for text in ("first 0", "second ", "pyspark", "fourth ", "fifth 0")]


@pytest.mark.parametrize("lengths", [(), (0,), (0, 5), (5, 0, 5)])
def test_partitions_and_batches_may_be_empty(lengths):
    batches = _batches(*lengths)

    assert _items(PickledBatcher(BatchSizer()).pieces(iter(batches))) == list(
        range(70_000, 70_000 + sum(lengths))
    )


def test_a_step_takes_items_and_batches_and_says_how_many_there_were():
    step = ChunkStep(dump_function(abs), "map")

    assert step([-1, 2]) == (2, [1, 2])
    count, done = step((pickle.dumps([-3], 5), pickle.dumps([4, -5], 5)))
    assert (count, list(map(items_of, done))) == (3, [[3], [4, 5]])


def test_what_a_batch_comes_to_and_cannot_be_pickled_is_told_with_the_cure():
    step = ChunkStep(dump_function(tasks.unpicklable), "map")

    words = r"the result \(type list\) cannot be pickled.*\. Pass a list made of it"
    with pytest.raises(SerializationError, match=words):
        step((pickle.dumps([1], 5),))


def test_a_batch_that_cannot_be_rebuilt_is_told_with_the_cure():
    missing = pickle.dumps([1], 5).replace(b"K\x01", b"cno_such_module\nThing\n")

    with pytest.raises(SerializationError, match=r"an item of the RDD .*no_such_module"):
        items_of(missing)


def _rows(pieces) -> list[list[int]]:
    """The lengths of every piece's batches."""
    return [[batch.num_rows for batch in ipc.decode(data)[1]] for data, _, _ in pieces]


def _lengths(pieces) -> list[list[int]]:
    """The lengths of every piece's batches, which nobody has encoded so far."""
    return [[batch.num_rows for batch in piece] for piece in pieces]


def test_small_record_batches_travel_together_and_large_ones_are_cut():
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(100))})
    batches = [batch, batch, batch, pa.RecordBatch.from_pydict({"n": pa.array(range(600))})]

    pieces = list(gathered(batches, BatchSizer(start=START), 1 << 22))

    assert _lengths(pieces) == [[100, 100], [100], [256], [256], [88]]
    found = [n for piece in pieces for part in piece for n in part["n"].to_pylist()]
    assert found == [n for part in batches for n in part["n"].to_pylist()]


def test_record_batches_of_many_bytes_do_not_travel_together():
    batch = pa.RecordBatch.from_pydict({"raw": pa.array([bytes(400_000)], pa.binary())})

    assert _lengths(gathered([batch] * 5, BatchSizer(), 1 << 22)) == [[1, 1], [1, 1], [1]]
    assert list(gathered([batch.slice(0, 0)], BatchSizer(), 1 << 22)) == []


def test_rows_of_many_bytes_are_cut_so_that_a_windows_pieces_fit_in_it():
    way = ColumnPartition(Settings("tcp://127.0.0.1:1", window=4, window_bytes=1 << 20), None)
    batch = pa.RecordBatch.from_pydict({"raw": pa.array([bytes(100_000)] * 7, pa.binary())})

    for most, lengths in ((way._most, [[2], [2], [2], [1]]), (1, [[1]] * 7)):
        assert _rows(_cut([batch], BatchSizer(), most)) == lengths
        assert _lengths(gathered([batch], BatchSizer(), most)) == lengths
    fixed = replace(way, rows=5)
    assert _rows(_cut([batch], BatchSizer(5), fixed._most)) == [[5], [2]], "a number that was asked for"
