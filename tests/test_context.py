import asyncio
import logging
import threading
import time
from dataclasses import dataclass

import pytest

from taskmesh import context
from taskmesh.context import TaskContext, current_task, running
from taskmesh.errors import TaskMeshError

TASK = TaskContext(id="0" * 32, name="mod.work", attempt=2, queue="q")


@pytest.fixture
def slot():
    """What a slot does: it installs a source that knows what runs now."""
    state = {"task": None}
    context.install(lambda: state["task"])
    yield state
    context.install(None)


def test_outside_a_task_there_is_none(slot):
    with pytest.raises(TaskMeshError, match="outside a task: call it in code that a mesh runs"):
        current_task()


def test_the_source_is_asked_each_time_also_by_threads_of_the_task(slot):
    slot["task"] = TASK
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_task()))
    thread.start()
    thread.join()

    assert current_task() is TASK
    assert seen == [TASK]
    slot["task"] = None
    with pytest.raises(TaskMeshError):
        current_task()


def test_a_bound_context_is_this_asyncio_tasks_alone():
    async def work(name):
        with running(TaskContext(id="1" * 32, name=name, attempt=1)):
            await asyncio.sleep(0)
            return current_task().name

    async def main():
        return await asyncio.gather(work("a"), work("b"))

    assert asyncio.run(main()) == ["a", "b"]
    with pytest.raises(TaskMeshError):
        current_task()


def test_progress_is_reported_as_floats_and_checked():
    told = []
    task = TaskContext(
        id="1" * 32, name="n", attempt=1, report=lambda done, total: told.append((done, total))
    )

    task.progress(1)
    task.progress(2, 4)

    assert told == [(1.0, 0.0), (2.0, 4.0)]
    for wrong in [(-1, 2), (1, -2), (float("nan"), 1), ("a", 1), (1, None)]:
        with pytest.raises(TaskMeshError, match=r"takes numbers >= 0"):
            task.progress(*wrong)
    TASK.progress(1, 2)  # nobody listens: no harm


def test_a_report_that_fails_is_not_taken_for_bad_numbers():
    def fail(done, total):
        raise TypeError("the link's own")

    task = TaskContext(id="1" * 32, name="n", attempt=1, report=fail)

    with pytest.raises(TypeError, match="the link's own"):
        task.progress(1)


def test_deadline_and_cancellation_are_live():
    flag = threading.Event()
    task = TaskContext(id="1" * 32, name="n", attempt=1, deadline=time.monotonic() + 100, ask=flag.is_set)

    assert 90 < task.remaining <= 100
    assert not task.cancelled
    flag.set()
    assert task.cancelled
    assert (TASK.remaining, TASK.deadline, TASK.cancelled) == (None, None, False)
    assert TaskContext(id="1", name="n", attempt=1, deadline=time.monotonic() - 1).remaining == 0.0


def test_log_lines_name_the_task(caplog):
    with caplog.at_level(logging.INFO, "taskmesh.task"):
        TASK.log.info("read %d lines", 3, extra={"own": 1})

    record = caplog.records[0]
    assert record.getMessage() == f"[mod.work {'0' * 32} #2] read 3 lines"
    assert (record.task_name, record.task_id, record.task_attempt, record.own) == ("mod.work", "0" * 32, 2, 1)


def test_an_exception_that_forbids_assignments_leaves_the_block_as_itself():
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    with pytest.raises(Frozen), running(TASK):
        raise Frozen(1)
