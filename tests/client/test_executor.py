"""MeshExecutor behaves as concurrent.futures.Executor says."""

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import threading
import weakref

import pytest

import taskmesh.executor as executor_module
from taskmesh import Mesh, MeshExecutor, task
from taskmesh.errors import ConfigError, SerializationError
from tests.harness.waiting import wait_until

WAIT_S = 10


def double(number):
    return 2 * number


def add(a, b):
    return a + b


def test_executor_is_one_and_closes_its_own_mesh(opened):
    with MeshExecutor(max_workers=3) as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        assert executor.submit(add, 1, b=2).result(WAIT_S) == 3
        assert list(executor.map(add, [1, 2], [3, 4])) == [4, 6]

    assert opened.last._config.pool.concurrency == 3
    assert opened.last.closed_with == [False]


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"mp_context": multiprocessing.get_context("spawn")}, "Leave it out"),
        ({"thread_name_prefix": "x"}, "Leave it out"),
    ],
)
def test_executor_tells_what_to_do_in_place_of_what_others_have(options, cure):
    with pytest.raises(ConfigError, match=cure):
        MeshExecutor(2, **options)


@pytest.mark.parametrize(
    "defaults",
    [
        {"mp_context": None, "initializer": None, "initargs": (), "max_tasks_per_child": None},
        {"thread_name_prefix": "", "initializer": None, "initargs": ()},
        {"thread_name_prefix": None, "initializer": None, "initargs": ("for nobody",)},
        {"initargs": None},
    ],
)
def test_executor_takes_what_others_have_at_its_default(opened, mesh, defaults):
    with MeshExecutor(max_workers=None, **defaults) as executor:
        assert executor.submit(double, 1).result(WAIT_S) == 2
    assert mesh.executor(**defaults).submit(double, 2).result(WAIT_S) == 4


def test_other_libraries_find_how_many_tasks_run_at_a_time(opened, mesh):
    with MeshExecutor(3) as executor:  # dask.config.set(pool=executor) looks here
        assert (executor._max_workers, mesh.executor()._max_workers) == (3, 2)


def test_executor_as_an_argument_says_why_it_cannot_be_one(mesh):
    with pytest.raises(
        SerializationError, match=r"a mesh belongs to its process.*Inside a task use the mesh that"
    ):
        mesh.submit(double, mesh.executor())


def test_executor_of_a_mesh_leaves_it_open(mesh, port):
    with mesh.executor(queue="slow") as executor:
        assert executor.submit(double, 1).result(WAIT_S) == 2

    assert port._specs[port.runs[-1].spec].queue == "slow"
    assert port.closed_with == []
    assert mesh.submit(double, 2).result(WAIT_S) == 4


def test_executor_after_shutdown_takes_nothing(mesh):
    executor = mesh.executor()
    executor.shutdown()
    executor.shutdown()

    for call in (lambda: executor.submit(double, 1), lambda: executor.map(double, [1])):
        with pytest.raises(RuntimeError, match="after shutdown"):
            call()


def test_shutdown_waits_for_everything_submitted(mesh, port):
    port.gate.clear()
    executor = mesh.executor()
    futures = [executor.submit(double, i) for i in range(10)]
    executor.map(double, range(3000), chunksize="auto")
    threading.Timer(0.02, port.release).start()

    executor.shutdown()

    assert all(future.done() for future in futures)
    assert len(port.ran) == 3010


def test_shutdown_without_wait_returns_at_once_and_closes_its_own_mesh_later(opened):
    executor = MeshExecutor(1)
    future = executor.submit(double, 1)
    opened.last.gate.clear()
    futures = [executor.submit(double, i) for i in range(10)]

    executor.shutdown(wait=False)
    opened.last.release()

    assert [f.result(WAIT_S) for f in (future, *futures)] == [2, *(2 * i for i in range(10))]
    wait_until(lambda: opened.last.closed_with == [False])


def test_executor_that_nobody_holds_ends_its_own_mesh_after_its_tasks(opened):
    executor = MeshExecutor(1)
    futures = [executor.submit(double, 1)]
    opened.last.gate.clear()
    futures += [executor.submit(double, i) for i in range(10)]
    del executor
    assert opened.last.closed_with == []
    opened.last.release()

    assert [f.result(WAIT_S) for f in futures] == [2, *(2 * i for i in range(10))]
    wait_until(lambda: opened.last.closed_with == [False])


@pytest.mark.parametrize("buffersize", [None, 2])
def test_results_of_an_executor_that_nobody_holds_all_come(opened, buffersize):
    results = MeshExecutor(1).map(double, range(100), buffersize=buffersize)

    assert list(results) == [2 * i for i in range(100)]
    del results
    wait_until(lambda: opened.last.closed_with == [False])


def test_mesh_of_an_executor_that_nobody_holds_stays_open(mesh, port):
    assert mesh.executor().submit(double, 1).result(WAIT_S) == 2

    assert mesh.submit(double, 2).result(WAIT_S) == 4
    assert port.closed_with == []


def test_shutdown_can_cancel_what_has_not_started(mesh, port):
    executor = mesh.executor()
    ended = executor.submit(double, 4)
    assert ended.result(WAIT_S) == 8
    port.gate.clear()
    futures = [executor.submit(double, i) for i in range(20_000)]
    executor.map(double, range(3000), chunksize=10)
    other = mesh.submit(double, 5)

    executor.shutdown(cancel_futures=True)

    assert all(future.cancelled() for future in futures)
    port.release()
    assert other.result(WAIT_S) == 10
    assert port.ran == [(4,), (5,)]


def test_shutdown_cancels_nothing_before_the_hub_says_that_it_had_not_started(mesh, port, monkeypatch):
    port.gate.clear()
    executor = mesh.executor()
    futures = [executor.submit(double, i) for i in range(4)]
    told = []
    monkeypatch.setattr(port, "cancel", lambda seqs, unstarted: told.append((seqs, unstarted)))

    executor.shutdown(wait=False, cancel_futures=True)

    assert told == [([future._seq for future in futures], True)]
    assert not any(future.done() for future in futures)
    port.release()
    assert [future.result(WAIT_S) for future in futures] == [0, 2, 4, 6]


@pytest.mark.parametrize("used", [False, True])
def test_shutdown_of_a_closed_mesh_has_nothing_to_cancel(mesh, used):
    executor = mesh.executor()
    if used:
        executor.submit(double, 1).result(WAIT_S)
    mesh.close()

    executor.shutdown(cancel_futures=True)


@pytest.mark.parametrize("late", ["submit", "map"])
def test_what_is_submitted_beside_a_shutdown_is_refused(mesh, port, monkeypatch, late):
    port.gate.clear()
    executor = mesh.executor()
    place, name = {"submit": (executor._mesh, "submit"), "map": (executor_module, "start_map")}[late]
    real = getattr(place, name)

    def overtaken(*args, **kwargs):
        made = real(*args, **kwargs)
        executor.shutdown()  # by another thread: it does not see what is being submitted
        return made

    monkeypatch.setattr(place, name, overtaken)
    with pytest.raises(RuntimeError, match="after shutdown"):
        getattr(executor, late)(double, [1])

    assert not mesh._client.table.unended
    port.release()


def test_executor_left_by_an_exception_gives_up_what_it_was_given(mesh, port):
    port.gate.clear()
    other = mesh.submit(double, 1)

    with contextlib.suppress(KeyError), mesh.executor() as executor:
        futures = [executor.submit(double, i) for i in range(4)]
        executor.map(double, range(3000), chunksize="auto")
        raise KeyError("mine")
    port.release()

    assert all(future.cancelled() for future in futures)
    assert other.result(WAIT_S) == 2
    assert port.closed_with == []


def test_executor_left_by_an_exception_closes_its_own_mesh_without_waiting(opened):
    with contextlib.suppress(KeyboardInterrupt), MeshExecutor(1) as executor:
        executor.submit(double, 1).result(WAIT_S)
        opened.last.gate.clear()
        future = executor.submit(double, 2)
        raise KeyboardInterrupt

    assert future.cancelled()
    assert opened.last.closed_with == [True]


def test_executor_forgets_futures_that_have_ended(mesh):
    executor = mesh.executor()

    for i in range(5000):
        executor.submit(double, i).result(WAIT_S)

    assert len(executor._submitted) <= 1024
    executor.shutdown()


def test_executor_keeps_no_future_that_has_ended_and_was_dropped(mesh):
    executor = mesh.executor()
    future = executor.submit(double, 1)
    assert future.result(WAIT_S) == 2
    dropped = weakref.ref(future)

    del future

    wait_until(lambda: dropped() is None, WAIT_S)


def test_executor_map_with_a_buffer_counts_chunks(mesh):
    drawn = []

    def numbers():
        for number in range(100):
            drawn.append(number)
            yield number

    results = mesh.executor().map(double, numbers(), chunksize=5, buffersize=2)

    assert len(drawn) == 10
    assert list(results) == [2 * i for i in range(100)]


@pytest.mark.parametrize("buffersize", [None, 3])
def test_executor_map_of_no_iterables_is_empty_as_with_other_executors(mesh, buffersize):
    assert list(mesh.executor().map(double, buffersize=buffersize)) == []


def test_executor_waits_for_both_of_two_maps_that_begin_at_once(mesh, port):
    port.gate.clear()
    executor = mesh.executor()
    others = []

    class Former:
        """A map that is over; as this is asked for, another thread's map begins."""

        @property
        def active(self):
            if not others:
                others.append(threading.Thread(target=executor.map, args=(double, [2])))
                others[0].start()
                wait_until(lambda: executor._lock.locked() or not others[0].is_alive())
            return False

    executor._maps = [Former()]
    executor.map(double, [1])
    others[0].join(WAIT_S)

    assert sum(len(feed.futures) for feed in executor._maps) == 2
    port.release()
    executor.shutdown()


def test_executor_works_in_an_event_loop(mesh):
    async def main():
        loop = asyncio.get_running_loop()
        executor = mesh.executor()
        return await asyncio.gather(*(loop.run_in_executor(executor, double, i) for i in range(50)))

    assert asyncio.run(main()) == [2 * i for i in range(50)]


def test_executor_takes_tasks(mesh, port):
    slow = task(queue="slow")(double)

    assert mesh.executor().submit(slow, 4).result(WAIT_S) == 8
    assert port._specs[port.runs[-1].spec].queue == "slow"


def test_executor_refuses_what_makes_no_sense(mesh):
    with pytest.raises(ValueError, match="greater than 0"):
        MeshExecutor(0)
    for number in (True, 2.5, "3"):
        with pytest.raises(ConfigError, match="max_workers has to be a whole number"):
            MeshExecutor(number)
    with pytest.raises(ValueError, match="of the executor's own"):
        MeshExecutor(2, mesh=mesh)


def test_executor_alone_is_embedded_whatever_the_environment_says(opened, monkeypatch):
    monkeypatch.setenv("TASKMESH_ADDRESS", "tcp://127.0.0.1:5550")

    with MeshExecutor(1) as executor:
        executor.submit(double, 1).result(WAIT_S)
    with Mesh() as mesh:
        mesh.submit(double, 1).result(WAIT_S)

    assert [port._config.mesh.address for port in opened.ports] == ["", "tcp://127.0.0.1:5550"]
