"""IntervalSet against a set of Python's own."""

from hypothesis import given
from hypothesis import strategies as st

from taskmesh.hub.machine.books.interval_set import BLOCK, COST, IntervalSet

NUMBERS = st.integers(min_value=0, max_value=60)
FEW = st.lists(NUMBERS, max_size=12)
EDGES = st.integers(min_value=0, max_value=4).map(lambda block: block * BLOCK)
RUNS = st.builds(
    lambda edge, before, count: range(max(0, edge - before), edge - before + count),
    EDGES,
    st.integers(min_value=0, max_value=3),
    st.sampled_from((1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 2)),
)
ADDITIONS = st.lists(st.one_of(NUMBERS, FEW, RUNS), max_size=25)


@given(ADDITIONS)
def test_it_holds_what_was_added_and_nothing_else(additions):
    intervals, reference = IntervalSet(), set()
    for addition in additions:
        if isinstance(addition, int):
            intervals.add(addition)
            reference.add(addition)
        else:
            intervals.add_all(addition)
            reference.update(addition)

    assert {number for number in range(8 * BLOCK) if number in intervals} == reference
    assert len(intervals) == len(reference)
    assert intervals.end == max(reference, default=-1) + 1


@given(ADDITIONS, ADDITIONS)
def test_what_is_taken_out_is_not_in_it_until_it_is_added_again(additions, removals):
    intervals, reference = IntervalSet(), set()
    for numbers in ([one] if isinstance(one, int) else one for one in additions):
        intervals.add_all(numbers)
        reference.update(numbers)
    for number in (number for one in removals for number in ([one] if isinstance(one, int) else one)):
        intervals.discard(number)
        reference.discard(number)

    assert {number for number in range(8 * BLOCK) if number in intervals} == reference
    assert len(intervals) == len(reference)
    assert all(intervals.blocks.values()), "a block of which nothing is left costs nothing"
    intervals.add_all(range(7 * BLOCK))
    assert intervals.pieces == 1


@given(ADDITIONS)
def test_neighbours_are_one_piece(additions):
    intervals, reference = IntervalSet(), set()
    for addition in additions:
        numbers = [addition] if isinstance(addition, int) else addition
        intervals.add_all(numbers)
        reference.update(numbers)

    gaps = sum(number + 1 not in reference for number in reference)
    assert intervals.pieces == gaps


def test_a_million_in_order_cost_one_piece():
    intervals = IntervalSet()
    for start in range(0, 1_000_000, 1000):
        intervals.add_all(range(start, start + 1000))

    assert intervals.pieces == 1
    assert 999_999 in intervals
    assert 1_000_000 not in intervals


def test_numbers_that_come_in_another_order_cost_no_more():
    intervals = IntervalSet()
    for first in (0, 1, 2):
        for number in range(first, 1_000_000, 3):
            intervals.add(number)
        assert COST * len(intervals.blocks) < 400_000, (
            "as intervals, each adding moved megabytes: 18 s for all"
        )

    assert intervals.pieces == 1
    assert COST * len(intervals.blocks) < 1000


def test_numbers_far_from_each_other_are_counted_for_what_they_take():
    intervals = IntervalSet()
    intervals.add_all(range(0, 1_000_000 * BLOCK, 1000 * BLOCK))

    assert 200_000 < COST * len(intervals.blocks) < 500_000
    assert intervals.pieces == 1000
