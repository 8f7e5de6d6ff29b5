"""B5: a task that failed and whose result nobody asks for is told in the log, and no other."""

import asyncio
import gc
import logging
from collections.abc import Callable

import pytest

from taskmesh import Mesh, TaskFuture, gather, wait
from tests.harness.waiting import wait_until


def fail(text: str) -> None:
    raise LookupError(text)


@pytest.fixture
def told(mesh: Mesh, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Gives the texts of what was logged so far."""
    caplog.set_level(logging.DEBUG, "taskmesh")

    def texts() -> list[str]:
        gc.collect()
        mesh._client.callbacks.flush()
        return [record.getMessage() for record in caplog.records if record.name == "taskmesh"]

    return texts


def test_a_failed_future_that_is_dropped_unseen_is_told_with_its_traceback(mesh, told):
    future = mesh.submit(fail, "no such key")
    wait([future])
    task_id = future.task_id
    assert told() == []

    del future

    wait_until(told, 10, "the loop's thread holds it no longer")
    [text] = told()
    assert f"fail {task_id} failed, and its result was never asked for: " in text
    assert "LookupError: no such key" in text.splitlines()[0]
    assert "raise LookupError(text)" in text


def ask_for_the_result(future):
    with pytest.raises(LookupError):
        future.result()


def gather_it(future):
    with pytest.raises(LookupError):
        gather([future])


def gather_its_error(future):
    gather([future], return_exceptions=True)


def ask_for_the_state(future):
    wait([future])
    assert future.state == "failed"


def ask_for_the_traceback(future):
    wait([future])
    assert "LookupError" in future.traceback_text


def await_it(future):
    asyncio.run(_awaited(future))


@pytest.mark.parametrize(
    "look",
    [
        TaskFuture.exception,
        ask_for_the_result,
        gather_it,
        gather_its_error,
        ask_for_the_state,
        ask_for_the_traceback,
        await_it,
    ],
)
def test_a_failed_future_that_somebody_has_looked_at_is_not_told(mesh, told, look):
    future = mesh.submit(fail, "seen")
    look(future)

    del future

    assert told() == []


async def _awaited(future):
    with pytest.raises(LookupError):
        await future


def test_of_several_that_failed_gather_raises_one_for_all(mesh, told):
    futures = [mesh.submit(fail, text) for text in "abc"]
    wait(futures)

    with pytest.raises(LookupError):
        gather(futures)
    del futures

    assert told() == []


def test_results_cancelled_tasks_and_maps_are_not_told(mesh, told):
    done, given_up = mesh.submit(abs, -1), mesh.submit(fail, "cancelled")
    given_up.cancel()
    wait([done, given_up])
    results = mesh.map(fail, ["a", "b"], chunksize=1)
    with pytest.raises(LookupError):
        next(results)
    del done, given_up, results

    assert told() == []


def test_one_that_outlives_its_mesh_is_told_in_the_thread_that_drops_it(make_mesh, caplog):
    mesh = make_mesh()
    future = mesh.submit(fail, "late")
    wait([future])
    mesh.close()

    del future

    gc.collect()
    wait_until(lambda: "LookupError: late" in caplog.text)
