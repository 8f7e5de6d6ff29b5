"""Tasks that wait: many slots in one process, and what limits, cancelling and crashes mean there."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmesh import Mesh, as_completed
from taskmesh.errors import TaskError, TaskTimeout, WorkerCrashed
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import waiting

WAIT_S = 40
MANY = 24
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    with Mesh(workers=MANY, mode="async") as opened:
        yield opened


@pytest.fixture(params=["async", "thread"])
def any_mode(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with Mesh(workers=MANY, mode=request.param) as opened:
        yield opened


def test_as_many_coroutines_wait_at_once_as_there_are_slots(any_mode):
    futures = [any_mode.submit(waiting.meet, "all", MANY) for _ in range(MANY)]

    assert len({future.result(WAIT_S) for future in futures}) == 1


def test_as_many_functions_wait_at_once_as_there_are_slots(any_mode):
    futures = [any_mode.submit(waiting.meet_in_threads, "all", MANY) for _ in range(MANY)]

    assert len({future.result(WAIT_S) for future in futures}) == 1


def test_slots_share_as_many_processes_as_they_are_told_to(tmp_path):
    go = tmp_path / "go"
    with Mesh(workers=6, mode="async", processes=2) as mesh:
        futures = [mesh.submit(waiting.runs, str(tmp_path / f"{n}"), str(go)) for n in range(6)]
        wait_until(lambda: sum(waiting.begun(tmp_path / f"{n}") for n in range(6)) == 6, WAIT_S)
        slots = [one for one in Path("/proc").glob("[0-9]*/task") if _is_of_slots(one)]
        go.touch()
        assert [future.result(WAIT_S) for future in futures] == [1] * 6
    assert len(slots) >= 2


def _is_of_slots(tasks: Path) -> bool:
    try:
        return any(thread.read_text().startswith("slot-") for thread in tasks.glob("*/comm"))
    except OSError:
        return False


def test_a_worker_runs_many_tasks_in_a_process_and_has_a_tag_that_says_so(programs: Programs, tmp_path):
    go = tmp_path / "go"
    address = programs.hub()[1]
    programs.worker(address, "--mode", "async", "--processes", "2", slots=2 * MANY)
    with Mesh(address):
        runs = waiting.runs.with_options(tags=["mode:async"])
        futures = [runs.submit(str(tmp_path / f"{number}"), str(go)) for number in range(2 * MANY)]
        everywhere = range(2 * MANY)
        wait_until(lambda: all(waiting.begun(tmp_path / f"{number}") for number in everywhere), WAIT_S)
        go.touch()
        assert {future.result(WAIT_S) for future in futures} == {1}


def test_context_variables_and_current_tasks_never_mix(mesh):
    names = [f"task {number}" for number in range(1_000)]
    futures = [mesh.submit(waiting.minds_its_own, name) for name in names]
    futures += [mesh.submit(waiting.minds_its_own_in_a_thread, name) for name in names]

    assert {future.result(WAIT_S) for future in futures} == {""}


def test_each_task_has_its_own_lines(mesh):
    futures = {f"task {number}": mesh.submit(waiting.talks, f"task {number}") for number in range(MANY)}
    for name, future in futures.items():
        future.result(WAIT_S)
        lines = [(line.logger, line.text) for line in future.logs()]
        assert [text for logger, text in lines if logger == "tests.waiting"] == [
            f"{name} logs {number}" for number in range(3)
        ]
        assert [text for logger, text in lines if logger == "stdout"] == [
            *(f"{name} prints {number}" for number in range(3)),
            f"{name} ends",
        ]


def test_short_tasks_and_maps_work_as_in_processes(mesh):
    assert list(mesh.map(waiting.doubled, range(2_000))) == [2 * number for number in range(2_000)]
    futures = [mesh.submit(len, "x" * number) for number in range(2_000)]
    assert sum(future.result(WAIT_S) for future in futures) == sum(range(2_000))


def test_large_arguments_and_results_are_each_tasks_own(mesh):
    values = [bytes([number]) * 300_000 for number in range(2 * MANY)]
    futures = [mesh.submit(bytes.swapcase, value) for value in values]

    assert [future.result(WAIT_S) for future in futures] == [value.swapcase() for value in values]


def test_tasks_wait_for_tasks_of_their_own(mesh):
    parents = [waiting.asks.submit(4) for _ in range(2 * MANY)]
    parents += [waiting.asks_in_a_thread.submit(4) for _ in range(2 * MANY)]

    assert [parent.result(WAIT_S) for parent in parents] == [[0, 2, 4, 6]] * (4 * MANY)


def test_chains_of_two_clients_do_not_meet(mesh):
    with Mesh(workers=MANY, mode="async") as other:
        chains = [
            (mesh.submit(waiting.doubled, mesh.submit(waiting.doubled, number)), 4 * number)
            for number in range(50)
        ]
        chains += [
            (other.submit(waiting.doubled, other.submit(waiting.doubled, -number)), -4 * number)
            for number in range(50)
        ]
        assert [future.result(WAIT_S) for future, _ in chains] == [value for _, value in chains]


def test_a_coroutine_that_exits_fails_alone(mesh, tmp_path):
    go = tmp_path / "go"
    other = mesh.submit(waiting.runs, str(tmp_path / "other"), str(go))
    wait_until(lambda: waiting.begun(tmp_path / "other"), WAIT_S)

    with pytest.raises(TaskError, match="SystemExit"):
        mesh.submit(waiting.exits).result(WAIT_S)
    assert mesh.submit(waiting.doubled, 3).result(WAIT_S) == 6
    go.touch()
    assert other.result(WAIT_S) == 1


# --- limits -----------------------------------------------------------------------------------------------


def test_a_coroutine_beyond_its_timeout_is_cancelled(mesh, tmp_path):
    other = mesh.submit(waiting.waits, str(tmp_path / "other"), 1.0)
    future = mesh.submit(waiting.waits.with_options(timeout=0.2), str(tmp_path / "late"))

    with pytest.raises(TaskTimeout, match=r"timeout=0.2 s"):
        future.result(WAIT_S)
    assert (tmp_path / "late").read_text() == "begun\ncancelled\n"
    assert other.result(WAIT_S) == "waited"


def test_a_function_beyond_its_timeout_is_left_to_its_thread(tmp_path, caplog):
    go = tmp_path / "go"
    with Mesh(workers=MANY, mode="thread") as mesh:
        future = mesh.submit(waiting.sleeps.with_options(timeout=0.2), str(tmp_path / "late"), str(go))

        with pytest.raises(TaskTimeout, match=r"timeout=0.2 s") as raised:
            future.result(WAIT_S)
        assert any("goes on in its thread" in note for note in raised.value.__notes__)
        met = [mesh.submit(waiting.meet_in_threads, "all", MANY) for _ in range(MANY)]
        assert len({one.result(WAIT_S) for one in met}) == 1  # its slot has another thread
        go.touch()


def test_items_beyond_their_timeout_fail_alone(tmp_path):
    go = tmp_path / "go"
    late = waiting.sleeps.with_options(timeout=0.3)
    items = [(str(tmp_path / "0"), str(tmp_path)), (str(tmp_path / "1"), str(go)), (str(tmp_path / "2"), "/")]
    with Mesh(workers=MANY, mode="thread") as mesh:
        found = list(mesh.starmap(late, items, chunksize=3, return_exceptions=True))
        go.touch()
    assert [type(one) for one in found] == [str, TaskTimeout, str]


def test_late_coroutines_of_a_map_are_cancelled_each_by_itself(mesh, tmp_path):
    late = waiting.waits.with_options(timeout=0.3)
    items = [(str(tmp_path / "0"),), (str(tmp_path / "1"), 0.0), (str(tmp_path / "2"),)]
    found = list(mesh.starmap(late, items, chunksize=3, return_exceptions=True))

    assert [type(one) for one in found] == [TaskTimeout, str, TaskTimeout]
    assert [(tmp_path / name).read_text() for name in "02"] == ["begun\ncancelled\n"] * 2


def test_a_map_that_is_given_up_begins_no_further_item(mesh, tmp_path):
    items = [(str(tmp_path / f"{number}"), 5.0) for number in range(4)]
    results = mesh.starmap(waiting.waits.with_options(timeout=20), items, chunksize=4)
    wait_until(lambda: waiting.begun(tmp_path / "0"), WAIT_S)
    results.close()

    wait_until(lambda: (tmp_path / "0").read_text() == "begun\ncancelled\n", WAIT_S)
    met = [mesh.submit(waiting.meet, "all", MANY) for _ in range(MANY)]
    assert len({one.result(WAIT_S) for one in met}) == 1
    assert not (tmp_path / "1").exists()


def test_a_limit_of_months_is_as_good_as_any(mesh):
    assert mesh.submit(waiting.doubled.with_options(timeout=1e7), 4).result(WAIT_S) == 8


def test_a_process_with_many_lost_threads_is_replaced(programs: Programs, tmp_path):
    go = tmp_path / "go"
    address = programs.hub()[1]
    worker = programs.worker(address, "--mode", "thread", slots=4)
    with Mesh(address) as mesh:
        first = mesh.submit(waiting.meet_in_threads, "first", 1).result(WAIT_S)
        late = waiting.sleeps.with_options(timeout=0.1)
        for number in range(2):
            with pytest.raises(TaskTimeout):
                mesh.submit(late, str(tmp_path / f"{number}"), str(go)).result(WAIT_S)
        later = wait_until(
            lambda: (pid := mesh.submit(waiting.meet_in_threads, "again", 1).result(WAIT_S)) != first and pid,
            WAIT_S,
        )
        assert later != first
        go.touch()
    told = worker.errors
    assert "thread.left" in told
    assert "the process is replaced" in told


def test_a_hard_timeout_ends_the_process_when_the_others_have_ended(mesh, tmp_path):
    go = tmp_path / "go"
    others = [mesh.submit(waiting.runs, str(tmp_path / f"{number}"), str(go)) for number in range(4)]
    wait_until(lambda: sum(waiting.begun(tmp_path / f"{number}") for number in range(4)) == 4, WAIT_S)
    hung = mesh.submit(
        waiting.sleeps.with_options(hard_timeout=0.2), str(tmp_path / "hung"), str(tmp_path / "-")
    )
    wait_until(lambda: waiting.begun(tmp_path / "hung"), WAIT_S)
    go.touch()

    with pytest.raises(TaskTimeout, match="hard_timeout"):
        hung.result(WAIT_S)
    assert [other.result(WAIT_S) for other in others] == [1] * 4
    assert mesh.submit(waiting.doubled, 4).result(WAIT_S) == 8


# --- cancelling -------------------------------------------------------------------------------------------


def test_a_cancelled_coroutine_ends_at_its_await(mesh, tmp_path):
    other = mesh.submit(waiting.waits, str(tmp_path / "other"), 1.0)
    future = mesh.submit(waiting.waits, str(tmp_path / "one"))
    wait_until(lambda: waiting.begun(tmp_path / "one"), WAIT_S)

    assert future.cancel()
    wait_until(lambda: (tmp_path / "one").read_text() == "begun\ncancelled\n", WAIT_S)
    assert other.result(WAIT_S) == "waited"


def test_a_cancelled_function_that_looks_may_clean_up(mesh, tmp_path):
    future = mesh.submit(waiting.looks, str(tmp_path / "one"))
    wait_until(lambda: waiting.begun(tmp_path / "one"), WAIT_S)

    assert future.cancel()
    wait_until(lambda: (tmp_path / "one").read_text() == "begun\nsaw it\n", WAIT_S)
    met = [mesh.submit(waiting.meet_in_threads, "all", MANY) for _ in range(MANY)]
    assert len({one.result(WAIT_S) for one in met}) == 1


def test_a_cancelled_function_that_does_not_look_gives_its_slot_away(mesh, tmp_path):
    go = tmp_path / "go"
    future = mesh.submit(waiting.sleeps, str(tmp_path / "one"), str(go))
    wait_until(lambda: waiting.begun(tmp_path / "one"), WAIT_S)

    assert future.cancel()
    met = [mesh.submit(waiting.meet_in_threads, "all", MANY) for _ in range(MANY)]
    assert len({one.result(WAIT_S) for one in met}) == 1
    go.touch()


# --- crashes ----------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_of_those_that_ran_in_a_crashed_process_only_the_guilty_one_is_charged(mesh, tmp_path):
    go, together = tmp_path / "go", tmp_path / "together"
    others = [mesh.submit(waiting.runs, str(tmp_path / f"{number}"), str(go)) for number in range(8)]
    guilty = mesh.submit(waiting.crashes, str(tmp_path / "guilty"), str(together))
    wait_until(lambda: sum(waiting.begun(tmp_path / f"{number}") for number in range(8)) == 8, WAIT_S)
    wait_until(lambda: waiting.begun(tmp_path / "guilty"), WAIT_S)
    together.touch()
    wait_until(lambda: sum(waiting.begun(tmp_path / f"{number}") for number in range(8)) > 8, WAIT_S)
    go.touch()

    with pytest.raises(WorkerCrashed) as raised:
        guilty.result(WAIT_S)
    assert {other.result(WAIT_S) for other in others} == {2}
    assert [waiting.begun(tmp_path / f"{number}") for number in range(8)] == [2] * 8
    assert waiting.begun(tmp_path / "guilty") == 1 + 3, "once with others, and as often as any that crashes"
    assert "signal 11" in str(raised.value)


def test_what_was_lost_with_a_killed_process_runs_again(mesh, tmp_path):
    futures = [mesh.submit(waiting.doubled, number) for number in range(500)]
    pid = mesh.submit(waiting.meet_in_threads, "pid", 1).result(WAIT_S)
    futures += [mesh.submit(waiting.doubled, number) for number in range(500)]
    with pytest.raises(ProcessLookupError):
        _kill_until_gone(pid)

    assert [future.result(WAIT_S) for future in futures] == [2 * number for number in [*range(500)] * 2]
    assert len(list(as_completed(futures))) == 1_000


def _kill_until_gone(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), WAIT_S)
    os.kill(pid, 0)


# --- what people see --------------------------------------------------------------------------------------


def test_a_task_that_keeps_the_loop_is_named_with_its_stack(programs: Programs, tmp_path):
    go = tmp_path / "go"
    address = programs.hub()[1]
    worker = programs.worker(address, "--mode", "async", slots=4)
    with Mesh(address) as mesh:
        future = mesh.submit(waiting.keeps_the_loop, str(go))
        told = wait_until(
            lambda: [row for row in worker.events("stderr") if row["event"] == "loop.blocked"], WAIT_S
        )
        go.touch()
        future.result(WAIT_S)
    text = told[0]["text"]
    assert f"keeps_the_loop {future.task_id}" in text
    assert re.search(r"in wait_until\b.*in keeps_the_loop\b", text, re.DOTALL)


def test_the_stack_of_a_waiting_coroutine_is_where_it_waits(programs: Programs, tmp_path):
    address = programs.hub()[1]
    programs.worker(address, "--mode", "async", slots=4)
    with Mesh(address) as mesh:
        futures = [mesh.submit(waiting.waits, str(tmp_path / f"{number}")) for number in range(4)]
        wait_until(lambda: sum(waiting.begun(tmp_path / f"{number}") for number in range(4)) == 4, WAIT_S)

        told = programs.run("stack", futures[2].task_id, "--address", address)
        assert "waiting.py" in told.stdout
        assert re.search(r"line \d+ in wait_for\n.*line \d+ in waits$", told.stdout.strip(), re.DOTALL), told
        for future in futures:
            future.cancel()
