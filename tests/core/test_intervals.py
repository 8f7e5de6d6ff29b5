"""IntervalSet against a set of Python's own."""

from hypothesis import given
from hypothesis import strategies as st

from taskmesh.core.intervals import IntervalSet

NUMBERS = st.integers(min_value=0, max_value=60)
ADDITIONS = st.lists(st.one_of(NUMBERS, st.lists(NUMBERS, max_size=12)), max_size=25)


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

    assert {number for number in range(62) if number in intervals} == reference
    assert len(intervals) == len(reference)


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
