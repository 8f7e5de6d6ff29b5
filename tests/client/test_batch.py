"""Batches whose threads meet at the worst moment: each ends, and not before the last of its members."""

import threading
from collections.abc import Callable

import pytest

from taskmesh import Mesh
from taskmesh.client.batch import Batch
from taskmesh.errors import BatchError, ConfigError, MeshClosed, NoMesh, QueueFull, Tally

END_S = 30


def same(x: int) -> int:
    return x


def elsewhere(call: Callable[[], object]) -> None:
    """Do it in another thread, to its end."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(END_S)
    assert not thread.is_alive()


class EnteredLate:
    """A lock; before it is taken for the first time, another thread does something."""

    def __init__(self, lock: threading.RLock, meanwhile: Callable[[], object]) -> None:
        self._lock = lock
        self._meanwhile = [meanwhile]

    def __enter__(self) -> None:
        while self._meanwhile:
            elsewhere(self._meanwhile.pop())
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def batch(mesh: Mesh) -> Batch:
    return mesh.batch()


@pytest.fixture
def while_putting(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Have another thread do something when the next task is about to enter the table."""

    def arrange(meanwhile: Callable[[], object]) -> None:
        table = mesh._client.table
        put = table.put

        def hooked(*args: object) -> object:
            elsewhere(meanwhile)
            return put(*args)

        monkeypatch.setattr(table, "put", hooked)

    return arrange


def test_sealed_while_a_task_is_submitted_it_ends_after_that_task(batch, while_putting):
    while_putting(batch.seal)

    future = batch.submit(same, 1)

    assert batch.done.result(END_S) == Tally(1, 0, 1, 0, 0)
    assert future.result(END_S) == 1


def test_cancelled_while_a_task_is_submitted_it_cancels_that_task(batch, port, while_putting):
    port.gate.clear()
    while_putting(batch.cancel)

    future = batch.submit(same, 1)

    assert future.cancelled()
    with pytest.raises(BatchError) as caught:
        batch.done.result(END_S)
    assert caught.value.tally == Tally(1, 0, 0, 0, 1)


def test_sealed_while_a_submit_fails_it_ends_without_that_task(mesh, batch, monkeypatch):
    def refuse(*_: object) -> None:
        elsewhere(batch.seal)
        raise QueueFull

    monkeypatch.setattr(mesh._client.table, "put", refuse)
    with pytest.raises(QueueFull):
        batch.submit(same, 1)

    assert batch.done.result(END_S) == Tally()


def test_what_is_submitted_with_options_of_the_batch_is_its_own(batch):
    with_options = batch.with_options(priority=1).with_options(timeout=END_S)
    future = with_options.submit(same, 1)
    results = with_options.map(same, range(3))
    batch.seal()

    assert batch.done.result(END_S) == Tally(4, 0, 4, 0, 0)
    assert (future.result(END_S), list(results)) == (1, [0, 1, 2])
    with pytest.raises(ConfigError, match="is sealed"):
        with_options.submit(same, 1)


def test_sealed_before_a_map_is_counted_it_refuses_the_map(batch):
    batch._lock = EnteredLate(batch._lock, batch.seal)

    with pytest.raises(ConfigError, match="is sealed"):
        batch.map(same, range(10))

    assert batch.done.result(END_S) == Tally()


def test_sealed_while_a_map_submits_its_last_chunk_it_ends_after_that_chunk(batch, monkeypatch):
    count = batch.on_items

    def interleave(items: int) -> None:
        """Between the last draw and the submission, the callback thread comes to the map."""
        count(items)
        [job] = batch._open
        elsewhere(lambda: job.work(draw=False))
        elsewhere(batch.seal)

    monkeypatch.setattr(batch, "on_items", interleave)
    results = batch.map(same, [7])

    assert batch.done.result(END_S) == Tally(1, 0, 1, 0, 0)
    assert list(results) == [7]


@pytest.mark.parametrize("by", ["its iterator", "the batch"])
def test_a_map_that_is_given_up_with_nothing_on_its_way_lets_the_batch_end(batch, by):
    results = batch.map(same, iter(range(10)), buffersize=1)
    first = next(results)

    if by == "the batch":
        batch.cancel()
    else:
        results.close()
        batch.seal()

    assert first == 0
    assert batch.done.result(END_S) == Tally(1, 0, 1, 0, 0)


def test_a_map_that_cannot_start_lets_the_batch_end(mesh, batch, monkeypatch):
    def refuse() -> None:
        raise NoMesh("not now")

    monkeypatch.setattr(mesh._client, "open", refuse)
    with pytest.raises(NoMesh):
        batch.map(same, range(10))
    batch.seal()

    assert batch.done.result(END_S) == Tally()


def test_a_map_that_an_interrupt_has_torn_lets_the_batch_end(mesh, batch, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(mesh._client.table, "put", interrupt)
        with pytest.raises(KeyboardInterrupt):
            batch.map(same, range(10), chunksize=10)
    batch.seal()

    with pytest.raises(BatchError) as caught:
        batch.done.result(END_S)
    assert caught.value.tally == Tally(10, 0, 0, 0, 10)


def test_a_mesh_that_closes_waits_for_no_map_that_is_not_asked_for_more(mesh, batch):
    results = batch.map(same, iter(range(10)), buffersize=1)
    first = next(results)

    elsewhere(mesh.close)

    assert first == 0
    assert batch.done.result(0) == Tally(1, 0, 1, 0, 0)
    with pytest.raises(MeshClosed, match="the rest of the map"):
        next(results)
