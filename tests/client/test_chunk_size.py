"""ChunkSizer: chunks grow with what is measured, within bounds."""

import itertools
import math

from taskmesh.client.maps.chunk_size import ChunkSizer


def run(pace, total, item_s):
    """Give all items out as a feed does, each chunk measured at once; return the sizes."""
    sizes = []
    left = total
    while left:
        size = min(pace.size(left), left)
        sizes.append(size)
        left -= size
        pace.observe_time(size, size * item_s)
    return sizes


def test_pace_starts_with_one_and_grows_to_some_milliseconds():
    sizes = run(ChunkSizer(2, 100_000), 100_000, 20e-6)

    assert sizes[0] == 1
    assert 250 <= max(sizes) <= 500  # 5 to 10 ms
    assert all(later <= 8 * earlier for earlier, later in itertools.pairwise(sizes))
    assert len(sizes) < 400


def test_pace_never_takes_more_than_its_share_of_a_short_map():
    assert max(run(ChunkSizer(2, 800), 800, 1e-7)) <= 100


def test_pace_ends_with_small_chunks():
    sizes = run(ChunkSizer(2, 100_000), 100_000, 20e-6)

    assert sizes[-1] < max(sizes)


def test_pace_leaves_few_items_for_each_chunk_at_the_end():
    """The last items may take long where the first ones did not: one slot must not have all of them."""
    pace = ChunkSizer(4, 20_000)
    run(pace, 10_000, 1e-7)

    assert [pace.size(left) for left in (800, 80, 40, 12, 3)] == [100, 10, 5, 1, 1]


def test_pace_of_long_items_stays_at_one():
    pace = ChunkSizer(2, 1000)

    assert set(run(pace, 1000, 0.05)) == {1}
    assert pace.ahead == 4


def test_pace_slows_down_at_once_when_items_turn_out_long():
    pace = ChunkSizer(2, None)
    run(pace, 10_000, 20e-6)
    assert pace.size(None) > 100

    pace.observe_time(100, 10.0)

    assert pace.size(None) == 1


def test_pace_keeps_chunks_small_in_bytes_and_in_number():
    pace = ChunkSizer(2, None)
    run(pace, 100_000, 1e-8)
    assert pace.size(None) == 4096

    pace.observe_bytes(10, 10 * 64 << 10)

    assert pace.size(None) == 4


def test_pace_stays_within_the_bound_of_what_may_be_on_its_way():
    pace = ChunkSizer(2, None, bound=40)

    run(pace, 10_000, 1e-7)

    assert pace.size(None) == 10


def test_fixed_pace_does_not_measure():
    pace = ChunkSizer(2, 100, 7)
    pace.observe_time(7, 10.0)

    assert (pace.size(100), pace.ahead) == (7, math.inf)
