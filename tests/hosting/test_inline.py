"""The inline mesh: real machines in this thread, under a virtual clock; and each way in which it differs."""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from taskmesh import Mesh, Retry, as_completed, current_task, gather, task, wait
from taskmesh.context import _sources
from taskmesh.errors import ConfigError, HubUnreachable, MeshClosed, RemoteError, TaskMeshError, TaskTimeout
from taskmesh.mesh import InlineMesh
from taskmesh.pool.slots.nested import in_slot
from tests.hosting.middleware import Recorder

SEEN: list[object] = []
WORDS = ["starts", "submitted", "begins", "ends", "stops"]


@pytest.fixture
def mesh() -> Iterator[InlineMesh]:
    SEEN.clear()
    with Mesh.inline(workers=2) as mesh:
        yield mesh


@task
def note(word: object) -> object:
    SEEN.append(word)
    return word


@task
def double(number: int) -> int:
    return 2 * number


@task(retries=Retry(max=3, backoff=200.0, max_backoff=200.0, jitter=False))
def fails_at_first(times: int) -> int:
    if current_task().attempt <= times:
        raise ValueError("not yet")
    return current_task().attempt


@task
def total(number: int) -> int:
    return number and number + total.submit(number - 1).result()


def interrupt() -> None:
    raise KeyboardInterrupt


def say(text: str) -> None:
    print(text)  # noqa: T201  what is tested


@task
def place() -> tuple[int, str]:
    return os.getpid(), threading.current_thread().name


@task
async def coming(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


@task
def logs(text: str) -> None:
    logging.getLogger("tests.inline").warning(text)


@task(timeout=0.05)
def endless() -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pass


@task(hard_timeout=0.001)
def hard() -> str:
    until = time.monotonic() + 0.01
    while time.monotonic() < until:
        pass
    return "whole"


def test_a_task_runs_when_somebody_waits_and_in_this_thread(mesh):
    future = note.submit("a")

    assert SEEN == []
    assert future.result() == "a"
    assert SEEN == ["a"]
    assert place.submit().result() == (os.getpid(), threading.current_thread().name)


def test_run_all_runs_what_callbacks_submit_too(mesh):
    note.submit(1).add_done_callback(lambda future: note.submit(2))

    mesh.run_all()

    assert SEEN == [1, 2]


def test_values_travel_as_pickles_both_ways(mesh):
    given = [1, 2]

    returned = note.submit(given).result()

    assert returned == given
    assert returned is not given
    assert SEEN[0] is not given


def test_all_ways_of_submitting_and_waiting(mesh):
    futures = [double.submit(number) for number in range(20)]

    assert gather(futures) == [2 * number for number in range(20)]
    assert sorted(each.result() for each in as_completed(futures)) == [2 * number for number in range(20)]
    assert not wait([double.submit(1)]).not_done
    assert list(mesh.map(double, range(1000))) == [2 * number for number in range(1000)]
    assert list(mesh.pipe(range(10), double)) == [2 * number for number in range(10)]
    assert double.submit(double.submit(double.submit(1))).result() == 8
    assert coming.submit(1).result() == 2
    with mesh.batch() as batch:
        double.submit(3)
    mesh.run_all()
    assert batch.done.done()


def test_ten_minutes_of_backoff_pass_in_a_moment(mesh):
    began = mesh.now

    assert fails_at_first.submit(3).result() == 4

    assert mesh.now - began == pytest.approx(600.0, abs=5.0)


def test_a_delay_passes_when_everyone_waits_and_by_advance(mesh):
    late = note.with_options(delay=3600.0)
    first = late.submit("first")

    mesh.advance(3500.0)
    assert SEEN == []
    mesh.advance(200.0)
    assert SEEN == ["first"]
    assert first.done()
    assert late.submit("second").result() == "second"


def test_a_time_out_is_one_of_the_virtual_clock(mesh):
    future = note.with_options(delay=60.0).submit("late")

    with pytest.raises(TimeoutError):
        future.result(timeout=30.0)
    assert future.result(timeout=31.0) == "late"


def test_schedules_fire_as_the_clock_goes_on(mesh):
    mesh.schedule("tick", note, "tick", when=60.0)

    mesh.advance(timedelta(minutes=10).total_seconds() + 1)

    assert set(SEEN) == {"tick"}
    assert len(SEEN) in (10, 11)  # times are the whole minutes of the clock on the wall


def test_what_cannot_happen_is_said_and_not_waited_for():
    with pytest.raises(TaskMeshError, match="this wait cannot end"), Mesh.inline() as mesh:
        mesh.promise("nobody").result()


def test_a_promise_is_fulfilled_and_a_sink_gives_out(mesh):
    approved = note.submit(mesh.promise("approval"))
    assert mesh.fulfil("approval", "yes")
    assert approved.result() == "yes"
    double.with_options(sink="out").submit(21)
    with mesh.sink("out") as sink:
        outcome = sink.get(timeout=5.0)
        assert outcome.result() == 42
        sink.ack(outcome)


def test_tasks_submit_tasks_deeper_than_there_are_slots(mesh):
    assert total.submit(9).result() == 45


def test_what_a_task_logs_comes_to_its_caller(mesh, caplog):
    future = logs.submit("careful")
    future.result()

    assert [line.text for line in future.logs()] == ["careful"]
    assert [record.message for record in caplog.records] == ["careful"]


def test_a_cancelled_task_never_runs(mesh):
    future = note.submit("never")

    assert future.cancel()
    mesh.run_all()

    assert SEEN == []


def test_middleware_stands_around_its_tasks(tmp_path):
    path = tmp_path / "seen"
    with Mesh.inline(middleware=[Recorder(str(path))]) as mesh:
        assert mesh.submit(double, 1).result() == 2
    assert [line.split()[0] for line in path.read_text().splitlines()] == WORDS


async def _awaited(mesh: Mesh) -> list[int]:
    return [await double.submit(4), *[each async for each in mesh.amap(double, range(3))]]


def test_it_is_awaited(mesh):
    assert asyncio.run(_awaited(mesh)) == [8, 0, 2, 4]


def test_another_thread_waits_as_well(mesh):
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(mesh.submit(double, 4).result()))
    thread.start()
    thread.join(30)

    assert found == [8]


def test_a_closed_one_leaves_the_process_as_it_was(mesh):
    handlers, fds = list(logging.getLogger().handlers), len(os.listdir("/proc/self/fd"))
    with Mesh.inline() as inner:
        assert inner.submit(total, 2).result() == 3
    assert logging.getLogger().handlers == handlers
    assert len(os.listdir("/proc/self/fd")) == fds
    assert not in_slot()
    assert not _sources
    with pytest.raises(MeshClosed):
        inner.submit(double, 1)


def test_an_exception_in_the_block_gives_its_tasks_up():
    SEEN.clear()
    with pytest.raises(KeyError), Mesh.inline():
        raise KeyError(note.submit("never").state)
    assert SEEN == []


# --- the rows of the table in docs/how-to/testing.md


def test_row_globals_are_those_of_the_test(mesh):
    note.submit("here").result()
    assert SEEN == ["here"]


def test_row_sys_exit_fails_the_task_and_not_the_test(mesh):
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        mesh.submit(sys.exit, 3).result()


def test_an_interrupt_of_a_task_is_the_programs(mesh):
    future = mesh.submit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert mesh.submit(double, 1).result() == 2


def test_row_no_time_passes_while_a_task_runs(mesh):
    began = mesh.now
    assert hard.submit().result() == "whole", "a hard time limit never strikes"
    assert mesh.now == began


def test_row_the_soft_limit_is_of_the_real_clock(mesh):
    with pytest.raises(TaskTimeout):
        endless.submit().result()


def test_row_prints_are_the_tests(mesh, capsys):
    future = task(stream_logs=True)(say).submit("hello")
    future.result()
    assert capsys.readouterr().out == "hello\n"
    assert future.logs() == []


def test_row_others_waits_do_no_work(mesh):
    with mesh.batch() as batch:
        double.submit(1)
    assert not batch.done.done()
    mesh.run_all()
    batch.done.result(timeout=0)


def test_row_it_has_no_address(mesh):
    with pytest.raises(HubUnreachable, match="no other process"):
        mesh._client.open().gateway(1.0)
    for setting in ({"bind": "tcp://127.0.0.1:0"}, {"hub": "process"}, {"journal": "file"}):
        with pytest.raises(ConfigError, match="inline mesh"), Mesh.inline(**setting):
            pass


@pytest.mark.slow
def test_a_thousand_tests_are_a_thousand_meshes():
    """As a suite with an inline mesh for each of its tests."""
    for number in range(1000):
        with Mesh.inline() as mesh:
            assert mesh.submit(double, number).result() == 2 * number
