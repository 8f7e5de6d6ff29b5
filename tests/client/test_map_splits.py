"""map: chunks that crash their slot, or that are too large to travel, become single items."""

import itertools

import pytest

from taskmesh.errors import TooLarge, WorkerCrashed

WAIT_S = 10


def stay(number):
    return number


def test_map_with_a_crash_in_a_chunk_blames_the_guilty_item_alone(mesh, port):
    port.crashes = lambda args: args[0] == 13
    results = mesh.map(stay, range(20), chunksize=10)

    assert list(itertools.islice(results, 13)) == list(range(13))
    with pytest.raises(WorkerCrashed, match=r"test_map_splits\.stay") as caught:
        next(results)
    assert "attempt 3: crash" in caught.value.__notes__
    assert list(results) == list(range(14, 20))


def test_map_without_order_with_a_crash_gives_all_the_others(mesh, port):
    port.crashes = lambda args: args[0] == 13
    results = mesh.map(stay, range(20), chunksize=10, ordered=False)
    seen = []
    with pytest.raises(WorkerCrashed):
        seen.extend(results)  # keeps what came before the error
    seen += list(results)

    assert sorted(seen) == [i for i in range(20) if i != 13]


def test_map_of_an_at_most_once_task_is_not_run_again_after_a_crash(mesh, port):
    port.crashes = lambda args: args[0] == 3
    results = mesh.with_options(acks="early").map(stay, range(6), chunksize=3)

    assert [next(results) for _ in range(3)] == [0, 1, 2]
    for _ in range(3):
        with pytest.raises(WorkerCrashed):
            next(results)
    with pytest.raises(StopIteration):
        next(results)
    assert 4 not in [args[0] for args in port.ran]


def test_map_chunk_above_max_payload_is_split(make_mesh, opened):
    mesh = make_mesh(hub="process", max_payload=100_000)

    sizes = mesh.map(len, [b"x" * 60_000, b"y" * 60_000, b"z" * 200_000, b""], chunksize=4)

    assert [next(sizes), next(sizes)] == [60_000, 60_000]
    with pytest.raises(TooLarge, match="max_payload"):
        next(sizes)
    assert list(sizes) == [0]


def test_map_chunk_that_was_split_gives_each_result_once_out_of_order_too(make_mesh, opened):
    mesh = make_mesh(hub="process", max_payload=100_000)

    sizes = mesh.map(len, [b"x" * 60_000, b"y" * 60_001, b"z"], chunksize=3, ordered=False, timeout=WAIT_S)

    assert sorted(sizes) == [1, 60_000, 60_001]
