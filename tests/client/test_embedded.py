"""The surface over a real embedded mesh: how each way of ending reaches the caller."""

import asyncio
import contextlib
import importlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from taskmesh import Mesh, Retry, as_completed, current_task, errors, gather, task
from taskmesh.client.futures.outcome import TaskState
from taskmesh.errors import FunctionUnavailable
from tests.harness.waiting import wait_until

WAIT_S = 30


@task
def double(number: int) -> int:
    return 2 * number


@task
def stay() -> None:
    threading.Event().wait()


@task
def held(gate: str) -> None:
    wait_until(Path(gate).exists, WAIT_S)


@task
async def coming(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


def append_one(kept: list[int]) -> int:
    kept.append(1)
    return len(kept)


_filled: list[int] = [0]


def fill(number: int) -> list[int]:
    """Returns one list again and again, as code does that saves memory."""
    _filled[0] = number
    return _filled


def set_item(shared: dict[str, int], key: str, value: int) -> None:
    shared[key] = value


def path_entries() -> list[str]:
    return sys.path


class Counting:
    def __init__(self) -> None:
        self.count = 0

    def hit(self, step: int = 1) -> int:
        self.count += step
        return self.count

    __call__ = hit


class CountingInALoop(Counting):
    async def __call__(self, step: int = 1) -> int:  # type: ignore[override]
        return self.hit(step)


def take_base(given: dict[str, int], number: int) -> int:
    return given.pop("base") + number


def raise_first(given: np.ndarray[Any, Any], number: int) -> float:
    given[0] += 1
    return float(given[0] + number)


async def _submitted(mesh: Mesh, fn: Callable[..., int], *args: int) -> int:
    return await mesh.call(fn, *args)


class Flaky(Counting):
    def once(self) -> int:
        if self.hit() < 2:
            raise ValueError("a former attempt is not remembered")
        return self.count


def crash_on(number: int, bad: int) -> int:
    if number == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@task
def report() -> str:
    current_task().progress(3, 7)
    threading.Event().wait()
    return "late"


@task
def who(gate: str = "") -> tuple[str, int]:
    if gate:
        wait_until(Path(gate).exists, WAIT_S)
    return current_task().id, current_task().attempt


def flaky(number: int, failures: int, notes: str) -> tuple[int, int]:
    """Fails so many times for every third number; returns it with the attempt."""
    attempt = current_task().attempt
    with open(notes, "a") as file:
        file.write(f"{number} {attempt} {time.monotonic()}\n")
    if number % 3 == 0 and attempt <= failures:
        raise ValueError(f"{number} fails")
    return number, attempt


class TestMapWithRetries:
    """A map of a task with `retries=` goes in chunks, and tries the items alone that have failed."""

    @pytest.fixture
    def mesh(self) -> Iterator[Mesh]:
        with Mesh(workers=2) as mesh:
            yield mesh

    def run(self, mesh: Mesh, notes: Path, failures: int, **options: Any) -> list[Any]:
        retry = task(retries=Retry(max=2, backoff=0.05))(flaky)
        numbers = range(30)
        columns = numbers, [failures] * 30, [str(notes)] * 30
        return list(mesh.map(retry, *columns, chunksize=10, **options))

    @pytest.mark.parametrize("failures", [1, 2])
    def test_items_that_failed_are_tried_again_in_their_places(self, mesh, tmp_path, failures):
        found = self.run(mesh, tmp_path / "notes", failures)

        assert found == [(number, 1 + (number % 3 == 0) * failures) for number in range(30)]
        runs = Counter(line.split()[0] for line in (tmp_path / "notes").read_text().splitlines())
        assert runs == {str(n): 1 + (n % 3 == 0) * failures for n in range(30)}, "no other item ran again"

    def test_an_item_that_fails_in_the_end_raises_in_its_place(self, mesh, tmp_path):
        found = self.run(mesh, tmp_path / "notes", 3, return_exceptions=True)

        assert [str(error) for error in found[::3]] == [f"{number} fails" for number in range(0, 30, 3)]
        assert found[1:3] == [(1, 1), (2, 1)]
        runs = Counter(line.split()[0] for line in (tmp_path / "notes").read_text().splitlines())
        assert runs["0"] == 3, "two retries"

    def test_results_come_as_they_end(self, mesh, tmp_path):
        found = self.run(mesh, tmp_path / "notes", 1, ordered=False)

        assert sorted(found) == [(number, 1 + (number % 3 == 0)) for number in range(30)]


@task
def clean_up(notes: str, *, returns: bool) -> None:
    """Notes that it looks for its cancellation, then that it has seen it."""
    with open(notes, "a", buffering=1) as file:
        file.write(f"looks: {current_task().cancelled}\n")
        wait_until(lambda: current_task().cancelled, WAIT_S)
        file.write("cleans up\n")
        if not returns:
            threading.Event().wait()


class TestCancelled:
    """`current_task().cancelled` of a task that runs."""

    @pytest.mark.parametrize("returns", [True, False])
    def test_a_task_that_looks_may_clean_up(self, tmp_path, monkeypatch, returns):
        monkeypatch.setattr("taskmesh.pool.machine.machine.CANCEL_GRACE", 0.5)
        notes = tmp_path / "notes"
        with Mesh(workers=1) as mesh:
            future = clean_up.submit(str(notes), returns=returns)
            wait_until(lambda: notes.exists() and "looks" in notes.read_text(), WAIT_S)
            assert future.cancel()
            assert mesh.submit(os.getpid).result(WAIT_S), "the next task runs"

        assert notes.read_text() == "looks: False\ncleans up\n"

    def test_a_task_that_does_not_look_is_killed_at_once(self, monkeypatch):
        monkeypatch.setattr("taskmesh.pool.machine.machine.CANCEL_GRACE", 600.0)
        with Mesh(workers=1) as mesh:
            future = stay.submit()
            wait_until(lambda: future.state == TaskState.RUNNING, WAIT_S)
            assert future.cancel()

            assert mesh.submit(os.getpid).result(WAIT_S)


def test_a_mesh_opens_and_works_where_a_test_has_frozen_time(monkeypatch):
    """B7: as freezegun does it."""
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 1_000_000.0)

    with Mesh(workers=1) as mesh:
        assert mesh.submit(pow, 2, 3).result(WAIT_S) == 8
        assert list(mesh.map(abs, [-1, -2], timeout=WAIT_S)) == [1, 2]
        late = mesh.submit(stay)
        with pytest.raises(TimeoutError):
            late.result(0.2)
        late.cancel()


@pytest.fixture(scope="module")
def embedded() -> Iterator[Mesh]:
    with Mesh(workers=2, config={}) as mesh:
        yield mesh


pytestmark = [
    pytest.mark.leaks("one mesh serves all tests of this module"),
    pytest.mark.usefixtures("processes"),
]


def test_everything_comes_back_in_its_place(embedded):
    futures = [embedded.submit(double, i) for i in range(5000)]

    assert gather(futures, timeout=WAIT_S) == [2 * i for i in range(5000)]
    assert sorted(f.result() for f in as_completed(futures)) == [2 * i for i in range(5000)]
    assert list(embedded.map(double, range(20_000))) == [2 * i for i in range(20_000)]
    assert sorted(embedded.map(double, range(2000), ordered=False)) == [2 * i for i in range(2000)]


def test_task_knows_itself_and_the_future_knows_it(embedded):
    future = embedded.submit(who)

    assert future.result(WAIT_S) == (future.task_id, 1)
    assert future.attempt == 1
    assert future.worker.startswith("local/")
    assert future.state is TaskState.SUCCEEDED
    assert future.accepted


def test_coroutine_function_gives_its_result(embedded):
    assert embedded.submit(coming, 1).result(WAIT_S) == 2


def test_soft_limit_raises_task_timeout(embedded):
    with pytest.raises(errors.TaskTimeout):
        embedded.with_options(timeout=0.05).submit(stay).result(WAIT_S)


def test_hard_limit_kills_and_raises_task_timeout(embedded):
    future = embedded.with_options(hard_timeout=0.2).submit(stay)

    with pytest.raises(errors.TaskTimeout, match="hard_timeout"):
        future.result(WAIT_S)
    assert isinstance(future.exception(), TimeoutError)


def test_crash_is_worker_crashed_with_its_history(embedded):
    future = embedded.submit(crash_on, 1, 1)

    with pytest.raises(errors.WorkerCrashed) as caught:
        future.result(WAIT_S)
    assert future.state is TaskState.DEAD
    assert "attempt 3" in "\n".join(caught.value.__notes__)


def test_task_that_waits_too_long_expires(embedded, tmp_path):
    gate = tmp_path / "gate"
    busy = [embedded.submit(held, str(gate)) for _ in range(6)]
    future = embedded.with_options(expires=0.05).submit(double, 1)

    with pytest.raises(errors.TaskExpired):
        future.result(WAIT_S)
    assert future.state is TaskState.EXPIRED
    gate.touch()
    gather(busy, timeout=WAIT_S)


def test_cancel_of_a_running_task_frees_its_slot(embedded):
    futures = [embedded.submit(stay) for _ in range(2)]
    wait_until(lambda: sum(pool["busy"] for pool in embedded.status()["pools"]) == 2, WAIT_S)
    started = time.monotonic()

    assert embedded.cancel(futures) == 2

    assert embedded.submit(double, 4).result(WAIT_S) == 8
    assert time.monotonic() - started < WAIT_S


def test_progress_reaches_the_future(embedded):
    future = embedded.submit(report)

    wait_until(lambda: future.progress == (3, 7), WAIT_S)
    assert future.running()
    assert future.state is TaskState.RUNNING
    future.cancel()


@task
def tell(steps: int, total: float = 0) -> None:
    for step in range(steps):
        current_task().progress(step + 1, total)


def test_the_last_progress_comes_with_the_outcome(embedded):
    """B2: of a short task none was known, and whole numbers became floats."""
    whole, parts = embedded.submit(tell, 10), embedded.submit(tell, 3, 4.5)

    assert (whole.result(WAIT_S), parts.result(WAIT_S)) == (None, None)
    assert (repr(whole.progress), parts.progress) == ("(10, 0)", (3, 4.5))


def test_a_map_with_a_time_limit_goes_in_chunks_and_the_limit_is_each_item_s(embedded):
    """B3: with `timeout=` each item was a message of its own."""

    @task(timeout=0.3)
    def slow(item: int) -> str:
        if item == 5:
            threading.Event().wait()
        return current_task().id

    got = list(embedded.map(slow, range(10), chunksize=10, return_exceptions=True))

    assert isinstance(got.pop(5), errors.TaskTimeout)
    assert len(set(got)) == 1, "they were one chunk"


def test_flush_status_and_events_tell_of_the_hub(embedded):
    embedded.submit(double, 1)
    embedded.flush(WAIT_S)

    status = embedded.status()
    assert status["accepted"] >= 1
    assert [pool["slots"] for pool in status["pools"]] == [2]
    assert all("kind" in event or "event" in event for event in embedded.events())


def test_an_embedded_pool_runs_only_what_is_registered_when_it_is_told_so():
    with Mesh(workers=1, pool__only_registered="math") as mesh:
        assert mesh.submit(math.sqrt, 16).result(20) == 4.0
        error = mesh.submit(abs, -1).exception(20)

    assert isinstance(error, errors.FunctionUnavailable)
    assert "functions of math alone" in str(error)


def test_a_module_that_opens_a_mesh_when_it_is_imported_is_told_in_the_slot(tmp_path, monkeypatch):
    module = tmp_path / "opens_a_mesh_at_import.py"
    module.write_text(
        "from taskmesh import Mesh\n"
        "def double(number):\n"
        "    return 2 * number\n"
        "with Mesh(workers=1) as mesh:\n"
        f"    RESULT = mesh.submit(double, 2).result({WAIT_S})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(errors.FunctionUnavailable, match=r"opens a mesh when it is imported.* Open the mesh"):
        importlib.import_module(module.stem)


def test_a_module_that_makes_a_mesh_and_opens_it_later_may_be_imported_by_slots(tmp_path, monkeypatch):
    module = tmp_path / "makes_a_mesh_at_import.py"
    module.write_text(
        "from taskmesh import Mesh\n"
        "mesh = Mesh(workers=1)\n"
        "def double(number):\n"
        "    return 2 * number\n"
        "def doubled(number):\n"
        f"    return mesh.submit(double, number).result({WAIT_S})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = importlib.import_module(module.stem)

    with made.mesh:
        assert made.doubled(2) == 4
        assert made.mesh.submit(made.doubled, 3).result(WAIT_S) == 6


def test_meshes_of_a_name_that_is_bound_again_leave_nothing():
    """A cell of a notebook that opens a mesh, run ten times; what is left is looked for afterwards."""
    results = []
    for number in range(10):
        with pytest.warns(ResourceWarning) if number else contextlib.nullcontext():
            mesh = Mesh(workers=2)
        results.append(mesh.submit(double, number))
    mesh.close()

    assert gather(results) == [2 * number for number in range(10)]


def test_items_of_a_chunk_share_neither_arguments_nor_results():
    with Mesh(workers=1) as mesh:
        assert list(mesh.map(append_one, [[]] * 300)) == [1] * 300
        assert list(mesh.map(fill, range(300), chunksize=50)) == [[number] for number in range(300)]


class TestACallableWithAState:
    """Its state is data of the call: each call, attempt and item finds it as it was submitted."""

    @pytest.fixture
    def mesh(self) -> Iterator[Mesh]:
        with Mesh(workers=1) as mesh:
            yield mesh

    def test_a_partial(self, mesh: Mesh):
        popped = partial(take_base, {"base": 10})

        assert [mesh.submit(popped, number).result() for number in range(3)] == [10, 11, 12]
        assert list(mesh.map(popped, range(300))) == list(range(10, 310))

    @pytest.mark.parametrize(
        "made",
        [Counting, CountingInALoop, lambda: Counting().hit, lambda: [1].pop],
        ids=["object", "coroutine", "bound method", "of a list"],
    )
    def test_objects_and_bound_methods(self, mesh: Mesh, made: Callable[[], Callable[..., int]]):
        one = made()

        assert [mesh.submit(one).result() for _ in range(3)] == [1, 1, 1]
        assert [mesh.submit(made()).result() for _ in range(3)] == [1, 1, 1], "equal ones are not one"

    def test_its_large_arrays_are_each_calls_own(self, mesh: Mesh):
        raised = partial(raise_first, np.zeros(1 << 17))

        assert [mesh.submit(raised, number).result() for number in range(3)] == [1.0, 2.0, 3.0]
        assert list(mesh.map(raised, range(50), chunksize=10)) == [number + 1.0 for number in range(50)]
        assert list(mesh.map(raised, map(np.array, range(50)), chunksize=10))[-1] == 50.0
        assert list(mesh.pipe(range(3), raised, raised, ordered=True)) == [2.0, 3.0, 4.0]

    def test_it_can_be_mapped_piped_and_awaited(self, mesh: Mesh):
        assert list(mesh.map(CountingInALoop(), [2] * 20)) == [2] * 20
        assert list(mesh.pipe([2] * 5, Counting(), CountingInALoop().hit)) == [2] * 5
        assert asyncio.run(_submitted(mesh, Counting().hit, 3)) == 3

    def test_one_that_a_slot_lacks_is_an_unavailable_function(self, mesh: Mesh, monkeypatch):
        lost = ModuleType("lost_module")
        exec("def f(x): return x", vars(lost))  # noqa: S102
        monkeypatch.setitem(sys.modules, "lost_module", lost)

        with pytest.raises(FunctionUnavailable, match="finds no module 'lost_module'"):
            mesh.submit(partial(lost.f, 1)).result()

    def test_it_travels_as_it_is_then(self, mesh: Mesh):
        one = Counting()
        first = mesh.submit(one.hit).result()
        one.hit(5)

        assert (first, mesh.submit(one.hit).result(), one.count) == (1, 6, 5)

    def test_an_attempt_finds_nothing_of_the_one_before(self, mesh: Mesh):
        with pytest.raises(ValueError, match="not remembered"):
            mesh.with_options(retries=Retry(max=2, backoff=0.01)).submit(Flaky().once).result()

    def test_a_function_keeps_what_it_refers_to(self, mesh: Mesh):
        kept = Counting()

        def count() -> int:
            return kept.hit()

        assert [mesh.submit(count).result() for _ in range(3)] == [1, 2, 3]


class TestWhatSlotsTakeOverFromTheProgram:
    def test_modules_where_it_has_added_to_the_path(self, tmp_path: Path, monkeypatch):
        (tmp_path / "added_module.py").write_text("def where(): return __file__", encoding="utf-8")
        with Mesh(workers=1) as mesh:
            assert mesh.submit(abs, -1).result() == 1
            monkeypatch.syspath_prepend(str(tmp_path))
            where = importlib.import_module("added_module").where

            assert mesh.submit(where).result() == str(tmp_path / "added_module.py")
            assert mesh.submit(path_entries).result()[0] == str(tmp_path)

    def test_proxies_of_a_manager(self):
        with multiprocessing.get_context("spawn").Manager() as manager, Mesh(workers=1) as mesh:
            shared, queue = manager.dict(), manager.Queue()
            mesh.submit(shared.__class__.update, shared, {"argument": 1}).result()
            mesh.submit(partial(set_item, shared), "partial", 2).result()
            mesh.submit(queue.put, 3).result()

            assert (dict(shared), queue.get()) == ({"argument": 1, "partial": 2}, 3)


class TestMultiprocessingInATask:
    def test_libraries_find_a_child_with_a_parent_that_lives(self):
        with Mesh(workers=1) as mesh:
            name, daemon, *parent = mesh.submit(as_multiprocessing_sees_it).result()

        assert (name.rstrip("0123456789"), daemon) == ("slot-", False)
        assert parent == [True, True]

    def test_a_child_starts_processes_a_pool_and_a_manager(self):
        with Mesh(workers=1) as mesh:
            assert mesh.submit(start_processes).result() == ("slot", [1, 2], {"pid": True})


def as_multiprocessing_sees_it() -> tuple[str, bool, bool, bool]:
    this, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    assert parent is not None
    return this.name, this.daemon, parent.pid == os.getppid(), parent.is_alive()


def start_processes() -> tuple[str, list[int], dict[str, bool]]:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(2) as pool:
        found = manager.dict()
        child = context.Process(target=tell_parent, args=(found, os.getpid()))
        child.start()
        child.join()
        return found.pop("name").partition("-")[0], pool.map(abs, [-1, -2]), dict(found)


def tell_parent(found: dict[str, Any], pid: int) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    found.update(name=parent.name, pid=parent.pid == pid)
