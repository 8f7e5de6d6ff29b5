"""The backend of joblib: scikit-learn's results beside loky's, errors, generators, calls within calls."""

from __future__ import annotations

import _thread
import importlib
import multiprocessing
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskmesh import Mesh
from taskmesh.errors import SerializationError
from tests.harness.program import outcome_of
from tests.harness.waiting import wait_until

REASON = "joblib and scikit-learn: make .venv/ready-peers"
joblib = pytest.importorskip("joblib", reason=REASON)
backend = pytest.importorskip("taskmesh.joblib", reason=REASON, exc_type=ImportError)
calls = pytest.importorskip("tests.integrations.calls", reason=REASON, exc_type=ImportError)
numpy = pytest.importorskip("numpy", reason=REASON)
sparse = pytest.importorskip("scipy.sparse", reason=REASON)
delayed, Parallel = joblib.delayed, joblib.Parallel
WAIT_S = 30


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Mesh]:
    """Have joblib's calls run on a mesh, which has none of them left afterwards."""
    with Mesh(workers=2) as mesh, joblib.parallel_config("taskmesh"):
        yield mesh
        wait_until(lambda: not any(mesh.status()["tasks"].values()), message="no task is left")


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    backend.register()


@pytest.fixture(scope="module")
def by_loky() -> Iterator[dict[str, Any]]:
    """Results of scikit-learn by joblib's own processes; its tracker of resources lives as long as Python."""
    with joblib.parallel_config("loky"), warnings.catch_warnings(action="ignore"):
        yield {name: fit(2) for name, fit in calls.FITS.items()}
        joblib.externals.loky.get_reusable_executor().shutdown()


@pytest.mark.timeout(180)  # each slot imports scikit-learn
@pytest.mark.parametrize("name", calls.FITS)
def test_scikit_learn_gives_what_it_gives_with_loky(name: str, by_loky: dict[str, Any]) -> None:
    assert calls.FITS[name](-1) == by_loky[name]


def test_calls_run_in_slots_and_in_batches(mesh: Mesh) -> None:
    before = mesh.status()["finished"]
    assert Parallel(n_jobs=-1)(delayed(calls.square)(x) for x in range(2000)) == [x * x for x in range(2000)]

    assert 0 < mesh.status()["finished"] - before < 500


def test_minus_one_job_is_each_slot_and_one_job_runs_here() -> None:
    assert [joblib.effective_n_jobs(n) for n in (-1, -2, -9, 7)] == [2, 1, 1, 7]
    assert Parallel(n_jobs=1)([delayed(threading.get_ident)()]) == [threading.get_ident()]
    with pytest.raises(ValueError, match="n_jobs == 0"):
        Parallel(n_jobs=0)([delayed(calls.process)()])


@pytest.mark.parametrize("way", ["generator", "generator_unordered"])
def test_results_come_as_a_generator(way: str) -> None:
    found = Parallel(return_as=way)(delayed(calls.square)(x) for x in range(200))

    assert iter(found) is found
    given = list(found)
    assert given == sorted(given) or way == "generator_unordered"
    assert sorted(given) == [x * x for x in range(200)]


def test_two_generators_of_one_block_are_two_calls(tmp_path: Path) -> None:
    kept = Parallel(return_as="generator")(delayed(calls.square)(x) for x in range(500))
    dropped = Parallel(return_as="generator")(delayed(calls.stay)(tmp_path / "started") for _ in range(2))
    with pytest.warns(UserWarning, match="have been cancelled"):
        del dropped

    assert list(kept) == [x * x for x in range(500)]


def test_an_error_reaches_the_caller_and_ends_the_rest(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no 7") as caught:
        Parallel(batch_size=1)(
            delayed(calls.fail_at)(x, 7) if x < 8 else delayed(calls.stay)(tmp_path / "started")
            for x in range(100)
        )

    assert "in fail_at" in "".join(traceback.format_exception(caught.value))


def test_a_call_that_takes_longer_than_the_timeout_is_ended(tmp_path: Path) -> None:
    with pytest.raises(multiprocessing.TimeoutError):
        Parallel(timeout=0.5)(delayed(calls.stay)(tmp_path / "started") for _ in range(4))


def test_ctrl_c_leaves_no_task(tmp_path: Path) -> None:
    started = tmp_path / "started"

    def interrupt() -> None:
        wait_until(started.exists, WAIT_S)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Parallel()(delayed(calls.stay)(started) for _ in range(100))
    thread.join()


def test_what_cannot_be_pickled_is_an_error_whoever_submits_it() -> None:
    for first in (0, 500):
        with pytest.raises(SerializationError, match="lock"):
            Parallel()(delayed(calls.square)(threading.Lock() if x >= first else x) for x in range(1000))


def test_a_slot_that_is_killed_costs_no_result() -> None:
    assert Parallel(batch_size=2)(delayed(calls.die_once)(x) for x in range(20)) == list(range(20))


def test_calls_within_calls_are_tasks_and_deeper_ones_run_where_they_are_made() -> None:
    for own, processes in Parallel()(delayed(calls.nested_processes)(2) for _ in range(2)):
        assert own not in processes

    assert Parallel()(delayed(calls.nested)(2, 3, x) for x in range(3)) == [27 * x + 81 for x in range(3)]


def test_calls_within_calls_that_do_not_ask_for_jobs_run_where_they_are_made() -> None:
    for own, processes in Parallel()(delayed(calls.nested_processes)(None) for _ in range(4)):
        assert set(processes) == {own}


def test_a_task_calls_by_joblib_on_the_mesh_that_runs_it(mesh: Mesh) -> None:
    own, processes = mesh.submit(calls.task_with_calls).result(WAIT_S)

    assert own not in processes


@pytest.mark.slow
def test_a_hundred_calls_within_calls_wait_for_one_another() -> None:
    for _ in range(100):
        assert Parallel(n_jobs=4)(delayed(calls.nested)(4, 1, x) for x in range(8)) == [
            3 * x + 3 for x in range(8)
        ]


def test_a_large_array_is_put_into_the_mesh_once_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[int] = []
    put = backend.kept_value
    monkeypatch.setattr(
        backend, "kept_value", lambda client, value: puts.append(id(value)) or put(client, value)
    )
    array = numpy.arange(1_000_000.0).reshape(1000, 1000)
    matrix = sparse.random(1000, 1000, 0.3, format="csr", random_state=1)
    small = numpy.arange(1000.0)

    for count in (1, 2):
        found = Parallel(batch_size=1)(delayed(calls.at)(array, x, 3) for x in range(20))
        assert found == [float(array[x, 3]) for x in range(20)]
        assert len(puts) == count
    found = Parallel(batch_size=1)(delayed(calls.at)(matrix, x, 3) for x in range(20))
    assert found == [float(matrix[x, 3]) for x in range(20)]
    Parallel(batch_size=1)(delayed(calls.at)(small, x) for x in range(20))
    Parallel(batch_size=1, max_nbytes=None)(delayed(calls.at)(array, x, 3) for x in range(4))
    assert len(puts) == 3


def test_arrays_of_which_the_mesh_could_not_keep_all_travel_with_their_calls() -> None:
    first, second = numpy.arange(500_000.0), numpy.arange(1_000_000.0)
    with Mesh(workers=2, client__max_bytes="10MB"):
        found = Parallel(batch_size=1)(
            delayed(calls.sum_at)(x, first, *[second] * (x % 2)) for x in range(20)
        )

    assert found == [x * (1.0 + x % 2) for x in range(20)]


def test_arrays_that_are_not_needed_any_more_are_dropped_while_a_call_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: weakref.WeakSet[Any] = weakref.WeakSet()
    counts = []
    put = backend.kept_value

    def counted(client: Any, value: Any) -> Any:
        future = put(client, value)
        kept.add(future)
        counts.append(len(kept))
        return future

    monkeypatch.setattr(backend, "kept_value", counted)
    found = Parallel(batch_size=1)(delayed(calls.at)(numpy.full(200_000, float(x)), 1) for x in range(60))

    assert found == [float(x) for x in range(60)]
    assert max(counts) < 20


def test_thread_pools_of_libraries_share_the_cpus_or_are_as_large_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with joblib.parallel_config("taskmesh", inner_max_num_threads=3):
        assert Parallel()(delayed(calls.pool_threads)() for _ in range(2)) == [{3}] * 2
    share = max(joblib.cpu_count() // 2, 1)
    for threads in Parallel(n_jobs=2)(delayed(calls.pool_threads)() for _ in range(2)):
        assert threads == {share}


def test_the_registered_mesh_goes_before_the_open_one() -> None:
    with Mesh(workers=4) as outer, Mesh(workers=3):
        backend.register(outer)
        with joblib.parallel_config("taskmesh"):
            assert joblib.effective_n_jobs(-1) == 4
        backend.register()
        with joblib.parallel_config("taskmesh"):
            assert joblib.effective_n_jobs(-1) == 3


def test_of_two_meshes_that_are_open_without_a_block_neither_is_used() -> None:
    code = (
        "from joblib import parallel_config, effective_n_jobs\n"
        "from taskmesh import Mesh\n"
        "from taskmesh.joblib import register\n"
        "register()\n"
        "meshes = [Mesh(workers=1), Mesh(workers=1)]\n"
        'with parallel_config("taskmesh"):\n'
        "    effective_n_jobs(-1)\n"
    )
    assert "NoMesh: 2 meshes are open here" in outcome_of([sys.executable, "-c", code]).stderr


def test_a_newcomer_s_program_opens_a_mesh_that_ends_with_it(tmp_path: Path) -> None:
    program = tmp_path / "first.py"
    program.write_text(
        "from joblib import Parallel, delayed, parallel_config\n"
        "from taskmesh.joblib import register\n"
        "register()\n"
        'with parallel_config("taskmesh", n_jobs=2):\n'
        "    print(Parallel()(delayed(lambda x: x + 1)(x) for x in range(3)))\n"
    )
    ended = outcome_of([sys.executable, "-W", "error", str(program)])

    assert (ended.stdout, ended.stderr, ended.returncode) == ("[1, 2, 3]\n", "", 0)


def test_without_joblib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.delitem(sys.modules, "taskmesh.joblib")

    with pytest.raises(ImportError, match=r"needs joblib: `pip install '\.\[joblib\]'`"):
        importlib.import_module("taskmesh.joblib")
