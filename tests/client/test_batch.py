"""Batches whose threads meet at the worst moment, or whose hub is away: each ends after its futures."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from taskmesh import Mesh, TaskState
from taskmesh.client.batch import Batch
from taskmesh.errors import QueueFull

END_S = 30


def same(x: int) -> int:
    return x


def elsewhere(call: Callable[[], object]) -> None:
    """Do it in another thread, to its end."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(END_S)
    assert not thread.is_alive()


@pytest.fixture
def batch(mesh: Mesh) -> Batch:
    return mesh.batch()


def test_its_block_is_left_while_a_task_is_submitted_and_it_ends_after_that_task(
    mesh, port, batch, monkeypatch
):
    put = mesh._client.table.put

    def hooked(*args: object) -> object:
        elsewhere(lambda: batch.__exit__(None, None, None))
        return put(*args)

    monkeypatch.setattr(mesh._client.table, "put", hooked)
    port.gate.clear()
    future = batch.submit(same, 1)
    mesh._client.callbacks.flush()
    assert not batch.done.done()

    port.release()
    assert batch.done.result(END_S) is None
    assert future.done()
    assert list(batch) == [future]


def test_its_block_is_left_while_a_submit_fails_and_it_ends_without_that_task(mesh, batch, monkeypatch):
    def refuse(*_: object) -> None:
        elsewhere(lambda: batch.__exit__(None, None, None))
        raise QueueFull

    monkeypatch.setattr(mesh._client.table, "put", refuse)
    with pytest.raises(QueueFull):
        batch.submit(same, 1)

    assert batch.done.result(END_S) is None
    assert list(batch) == []


def test_cancelled_while_the_hub_is_away_it_ends(mesh, port, batch):
    port.gate.clear()
    port.accepting = port.connected = False
    with batch:
        futures = [batch.submit(same, x) for x in range(10)]
    assert batch.counts() == {TaskState.UNREACHABLE: 10}

    assert batch.cancel() == 10
    assert batch.done.result(END_S) is None
    assert all(future.cancelled() for future in futures)


def test_cancelling_the_wait_for_its_end_does_not_cancel_that(port, batch):
    port.gate.clear()
    with batch:
        batch.submit(same, 1)

    async def wait_shortly() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(batch.done), 0.01)

    asyncio.run(wait_shortly())
    port.release()
    assert batch.done.result(END_S) is None
    assert batch.counts() == {TaskState.SUCCEEDED: 1}


def test_callbacks_of_its_end_run_in_the_thread_of_callbacks(mesh, batch):
    found: list[bool] = []
    batch.done.add_done_callback(lambda _: found.append(mesh._client.callbacks.is_here))
    with batch:
        batch.submit(same, 1)

    batch.done.result(END_S)
    mesh._client.callbacks.flush()
    assert found == [True]
