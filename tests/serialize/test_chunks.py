import pickle
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmesh.errors import SerializationError, TaskTimeout
from taskmesh.messages.slot_messages import SlotFailure
from taskmesh.serialize import chunks, payload
from taskmesh.serialize.chunks import PackedItem, snapshot
from taskmesh.serialize.values import MARK
from tests.messages.samples import items_of


class Fragile:
    """Cannot be rebuilt when it says so."""

    def __init__(self, number, *, broken=False):
        self.number = number
        self.broken = broken

    def __setstate__(self, state):
        if state["broken"]:
            raise ValueError("fell apart")
        self.__dict__.update(state)


def loaded(data, **options):
    """The items of a chunk, with an error in the place of each bad one."""
    items, starred, _ = payload.loads_chunk(data, **options)
    assert starred
    return [SerializationError(item.text) if type(item) is chunks.BadItem else item for item in items]


def packed(data):
    """What stands in the pickle: 2 entries for one in one, 4 for items apart."""
    return len(pickle.loads(data))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers() | st.text() | st.floats(allow_nan=False) | st.binary()), max_size=20))
def test_plain_items_travel_in_one_pickle(items):
    sent = payload.dumps_chunk(items)

    assert loaded(sent) == items
    assert packed(sent) == 2


def test_items_of_sound_types_travel_in_one_pickle_and_others_apart():
    assert packed(payload.dumps_chunk([(Path("a"), np.float64(1))])) == 2
    assert packed(payload.dumps_chunk([(Fragile(1),)])) == 4


@pytest.mark.parametrize(
    "shared", [[], {}, {1}, bytearray(), ([],), [[]], {1: []}, np.zeros(2), np.zeros(20_000)], ids=repr
)
def test_items_share_nothing_where_they_arrive(shared: object):
    values, _ = payload.loads_chunk_values(payload.dumps_chunk_result([shared] * 3, {}))
    items = loaded(payload.dumps_chunk([(1, shared)] * 3)) + [(1, value) for value in values]

    parts = [part for _, item in items for part in (item if isinstance(item, tuple) else (item,))]
    assert len(set(map(id, parts))) == 6
    assert not any(np.shares_memory(np.asarray(a), np.asarray(b)) for a, b in pairwise(parts) if len(a))


def test_different_containers_of_numbers_and_texts_travel_in_one_pickle():
    items = [([1], {"a": 2}, {3}, (4, "b")), ([1], {}, set(), ())]

    assert loaded(payload.dumps_chunk(items)) == items
    assert packed(payload.dumps_chunk(items)) == 2


@pytest.mark.parametrize("value", [[1], [1, [2]], bytearray(b"a"), np.zeros(2), np.zeros(20_000)], ids=repr)
def test_a_snapshot_is_what_it_was(value: Any):
    packed_item = snapshot(value, "a result of f")
    value[0] = 7
    if type(value) is list and len(value) > 1:
        value[1].append(3)
        assert type(packed_item) is PackedItem
    values, failures = payload.loads_chunk_values(payload.dumps_chunk_result([packed_item, value], {}))

    assert (values[0][0], values[1][0], failures) == ({list: 1, bytearray: 97}.get(type(value), 0), 7, {})
    values[0][0] = 5  # it can be changed where it arrives


def test_an_item_that_cannot_be_rebuilt_stands_alone():
    items = [(Fragile(i, broken=i == 2), "text") for i in range(5)]

    rebuilt = loaded(payload.dumps_chunk(items), what="an argument of work")

    assert [item[0].number for item in rebuilt if isinstance(item, tuple)] == [0, 1, 3, 4]
    assert isinstance(rebuilt[2], SerializationError)
    assert "an argument of work cannot be rebuilt here: ValueError: fell apart" in str(rebuilt[2])


def test_an_item_that_cannot_be_pickled_carries_its_error():
    items = [(0, "a"), (1, threading.Lock()), (2, lambda: 7)]

    first, second, third = loaded(payload.dumps_chunk(items, where="work"))

    assert first == (0, "a")
    assert third[1]() == 7
    assert isinstance(second, SerializationError)
    assert "an argument of work (type _thread.lock) cannot be pickled" in str(second)


def test_the_part_of_an_item_that_is_to_blame_is_named():
    inner = {"pools": [1, threading.Lock()]}

    [argument] = loaded(payload.dumps_chunk([(0, inner)], where="work"))
    [(_, failure)] = items_of(payload.dumps_chunk_result([inner], {}, where="work"))

    because = "cannot be pickled because of its ['pools'][1] (type _thread.lock): "
    assert f"an argument of work (type dict) {because}" in str(argument)
    assert f"a result of work (type dict) {because}" in failure.text


def test_large_buffers_of_items_find_their_way_back():
    arrays = [np.full(50_000, i, dtype="i4") for i in range(4)]
    items = [(array, i) for i, array in enumerate(arrays)]
    items[1] = (threading.Lock(), 1)

    rebuilt = loaded(payload.dumps_chunk(items))

    assert isinstance(rebuilt[1], SerializationError)
    for i in (0, 2, 3):
        assert np.array_equal(rebuilt[i][0], arrays[i])
        assert rebuilt[i][0].flags.writeable


def test_results_and_failures_come_back_in_order():
    failure = SlotFailure(1, "exception", "ValueError", "bad", "Traceback", b"p", retryable=True)

    outcome = items_of(payload.dumps_chunk_result(["a", None, "c"], {1: failure}))

    assert outcome == [(True, "a"), (False, failure), (True, "c")]


def test_a_result_that_cannot_be_pickled_is_that_items_failure():
    values = [1, threading.Lock(), None, Fragile(3, broken=True), Fragile(4)]
    failure = SlotFailure(2, "exception", text="mine")

    outcome = items_of(payload.dumps_chunk_result(values, {2: failure}, where="work"))

    assert [good for good, _ in outcome] == [True, False, False, False, True]
    assert (outcome[1][1].serial, outcome[1][1].kind) == (1, "result")
    assert "a result of work (type _thread.lock) cannot be pickled" in outcome[1][1].text
    assert outcome[2][1] == failure
    assert "fell apart" in outcome[3][1].text
    assert outcome[4][1].number == 4


def test_definitions_by_value_are_written_once_for_all_items():
    class Local:
        def __init__(self, number):
            self.number = number

        def double(self):
            return 2 * self.number

    one = payload.dumps_chunk([(Local(0),)])
    many = payload.dumps_chunk([(Local(i), Local) for i in range(50)])

    rebuilt = loaded(many)

    assert len(many) < len(one) + 50 * 100
    assert [item.double() for item, _ in rebuilt] == [2 * i for i in range(50)]
    assert {cls for _, cls in rebuilt} == {Local}, "a class that is known here is this one"


def test_a_definition_that_cannot_be_pickled_spoils_its_own_items_only():
    class Guarded:
        lock = threading.Lock()

    class Harmless:
        pass

    rebuilt = loaded(payload.dumps_chunk([(Harmless(),), (Guarded(),), (3,)]))

    assert type(rebuilt[0][0]) is Harmless
    assert isinstance(rebuilt[1], SerializationError)
    assert rebuilt[2] == (3,)


@pytest.mark.usefixtures("processes")
def test_a_chunk_of_another_process_keeps_its_classes_together():
    program = (
        "import sys\n"
        "from taskmesh.serialize import payload\n"
        "class Main:\n"
        "    def __init__(self, n): self.n = n\n"
        "sys.stdout.buffer.write(payload.dumps_chunk([(Main(i),) for i in range(3)]))\n"
    )
    sent = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=50
    ).stdout

    rebuilt = loaded(sent)

    assert [item[0].n for item in rebuilt] == [0, 1, 2]
    assert len({type(item[0]) for item in rebuilt}) == 1


def test_nothing_at_all_can_be_rebuilt_is_an_error():
    class Local:
        pass

    sent = payload.dumps_chunk([(Local(),)])
    entries, counts, definitions, extra = pickle.loads(sent)
    other = definitions.replace(MARK, bytes((sys.version_info[1] + 1,)) + MARK[1:])

    with pytest.raises(SerializationError, match="same Python minor version"):
        loaded(pickle.dumps((entries, counts, other, extra)))
    with pytest.raises(SerializationError, match="Its class's own code failed"):
        loaded(b"\x80\x05nonsense")


def test_items_whose_own_code_raises_anything_do_not_stop_the_others():
    class Exits:
        def __reduce__(self):
            raise SystemExit(3)

    rebuilt = loaded(payload.dumps_chunk([(1,), (Exits(),), (2,)]))

    assert (rebuilt[0], rebuilt[2]) == ((1,), (2,))
    assert "SystemExit: 3" in str(rebuilt[1])


def test_a_time_limit_that_strikes_meanwhile_is_no_items_fault():
    class Interrupted:
        def __reduce__(self):
            raise TaskTimeout("soft limit")

    with pytest.raises(TaskTimeout):
        payload.dumps_chunk_result([1, Interrupted()], {})


def test_a_bad_item_is_a_value_nobody_can_return():
    bad = chunks.BadItem("text")

    assert items_of(payload.dumps_chunk_result([1], {})) == [(True, 1)]
    assert not hasattr(bad, "__dict__")
