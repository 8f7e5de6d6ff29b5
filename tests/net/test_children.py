"""Tasks that wait without a slot, and find their children again. Rows W51 and W52 with real processes."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmesh import Mesh, Retry, WaitFor, current_task, errors, gather, promise, task
from tests.harness.cluster import SETTINGS, Cluster
from tests.harness.journal import note, words
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

WAIT_S = 60


@pytest.fixture(params=["embedded", "elsewhere"])
def mesh(request: pytest.FixtureRequest, programs: Programs) -> Iterator[Mesh]:
    if request.param == "embedded":
        with Mesh(workers=2) as mesh:
            yield mesh
        return
    address = programs.hub()[1]
    programs.worker(address, "--name", "one", slots=2)
    with Mesh(address) as mesh:
        yield mesh


def waiting(mesh: Mesh) -> int:
    """The number of tasks and promises that WAIT."""
    return mesh.status()["tasks"]["WAITING"]


@task
def approved(key: str) -> tuple[object, int]:
    answer = promise(key)
    if not answer.done():
        raise WaitFor(answer)
    return answer.result(), current_task().attempt


@task
def noted(journal: Path, number: int) -> int:
    note(journal, str(number))
    return number * number


@task(resume=True, retries=Retry(max=3, backoff=0.01))
def squares(journal: Path, count: int, how: str) -> tuple[int, int, bool]:
    """The sum of squares, and by which attempt; the first one ends as `how` says."""
    numbers = list(range(count))
    random.shuffle(numbers)  # the order of calls does not matter
    futures = {number: noted.submit(journal, number) for number in numbers}
    here = current_task()
    if here.attempt == 1:
        if how == "error":
            raise ValueError(how)
        if how == "exit":
            gather(futures.values())
            os.kill(os.getpid(), signal.SIGKILL)
        raise WaitFor(*futures.values())
    return sum(future.result() for future in futures.values()), here.attempt, here.resumed


@task(resume=True, retries=Retry(max=3, backoff=0.01))
async def gathered(journal: Path, count: int) -> tuple[int, int]:
    numbers = list(range(count))
    random.shuffle(numbers)
    results = await asyncio.gather(*[noted.submit(journal, number) for number in numbers])
    if current_task().attempt < 4:
        raise ValueError("once more")
    return sum(results), current_task().attempt


@task(resume=True)
def killed(journal: Path, count: int, kills: int) -> tuple[int, int]:
    """The sum of squares; each attempt but the last kills its slot, later each time."""
    numbers = list(range(count))
    random.shuffle(numbers)
    futures = [noted.submit(journal, number) for number in numbers]
    attempt = current_task().attempt
    if attempt <= kills:
        gather(futures[: count * attempt // (kills + 1)])
        os.kill(os.getpid(), signal.SIGKILL)
    return sum(gather(futures)), attempt


@task(resume=True, retries=3)
def same_call_thrice(journal: Path) -> list[int]:
    futures = [noted.submit(journal, 5) for _ in range(3)]
    if not current_task().resumed:
        raise WaitFor(*futures)
    return gather(futures)


def test_w52_a_task_waits_for_a_promise_without_a_slot(mesh: Mesh):
    count = 60
    futures = [approved.submit(f"key-{number}") for number in range(count)]
    wait_until(lambda: waiting(mesh) == 2 * count, WAIT_S)  # tasks and promises
    assert mesh.submit(sum, (1, 2)).result(WAIT_S) == 3

    for number in range(count):
        assert mesh.fulfil(f"key-{number}", number) is True
    assert gather(futures, timeout=WAIT_S) == [(number, 2) for number in range(count)]
    assert waiting(mesh) == 0


def test_w52_a_promise_that_was_fulfilled_before(mesh: Mesh):
    mesh.fulfil("early", 7)
    assert approved.submit("early").result(WAIT_S) == (7, 1)


def test_w52_a_promise_that_nobody_waits_for_goes_with_its_task(mesh: Mesh):
    @task
    def leaves_it() -> str:
        promise("left")
        return "done"

    assert mesh.submit(leaves_it).result(WAIT_S) == "done"
    wait_until(lambda: waiting(mesh) == 0, WAIT_S)


@pytest.mark.parametrize("how", ["error", "wait", "exit"])
def test_w51_another_attempt_finds_the_children_of_the_former(mesh: Mesh, tmp_path: Path, how: str):
    journal, count = tmp_path / "journal", 50
    total, attempt, is_resumed = squares.submit(journal, count, how).result(WAIT_S)

    assert (total, attempt, is_resumed) == (sum(number**2 for number in range(count)), 2, True)
    assert sorted(map(int, words(journal))) == list(range(count))


def test_w51_in_an_event_loop_and_in_any_order(mesh: Mesh, tmp_path: Path):
    journal, count = tmp_path / "journal", 200
    assert gathered.submit(journal, count).result(WAIT_S) == (sum(x * x for x in range(count)), 4)
    assert sorted(map(int, words(journal))) == list(range(count))


@pytest.mark.parametrize(
    ("count", "kills"), [(60, 3), pytest.param(1000, 20, marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
)
def test_w51_its_slot_is_killed_again_and_again(tmp_path: Path, count: int, kills: int):
    journal = tmp_path / "journal"
    with Mesh(workers=2, hub__crash_limit=kills + 2) as mesh:
        total = mesh.submit(killed, journal, count, kills).result(4 * WAIT_S)
    assert total == (sum(x * x for x in range(count)), kills + 1)
    assert sorted(map(int, words(journal))) == list(range(count))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_w52_ten_thousand_wait_on_two_slots():
    count = 10_000
    with Mesh(workers=2) as mesh:
        futures = [approved.submit(f"key-{number}") for number in range(count)]
        wait_until(lambda: waiting(mesh) == 2 * count, 500)
        for number in range(count):
            mesh.fulfil(f"key-{number}", number)
        assert [future.result(500)[0] for future in futures] == list(range(count))


def test_equal_calls_are_told_apart(mesh: Mesh, tmp_path: Path):
    assert same_call_thrice.submit(tmp_path / "journal").result(WAIT_S) == [25, 25, 25]
    assert words(tmp_path / "journal") == ["5", "5", "5"]


def test_functions_of_one_name_are_told_apart(mesh: Mesh):
    @task(resume=True)
    def scaled() -> list[int]:
        factors = [2, 3]
        random.shuffle(factors)
        futures = {}
        for factor in factors:

            @task
            def scale(number: int, factor: int = factor) -> int:
                return number * factor

            futures[factor] = scale.submit(10)
        if not current_task().resumed:
            raise WaitFor(*futures.values())
        return [futures[2].result(), futures[3].result()]

    assert [mesh.submit(scaled).result(WAIT_S) for _ in range(6)] == [[20, 30]] * 6


def test_children_that_depend_on_children(mesh: Mesh, tmp_path: Path):
    @task
    def add(journal: Path, numbers: list[int]) -> int:
        note(journal, "add")
        return sum(numbers)

    @task(resume=True)
    def tree(journal: Path) -> int:
        total = add.submit(journal, [noted.submit(journal, number) for number in range(3)])
        if not total.done():
            raise WaitFor(total)
        return total.result() + current_task().attempt

    assert mesh.submit(tree, tmp_path / "journal").result(WAIT_S) in (6, 7)
    assert sorted(words(tmp_path / "journal")) == ["0", "1", "2", "add"]


def test_a_time(mesh: Mesh):
    @task
    def later(begin: float) -> tuple[int, float]:
        if current_task().attempt == 1:
            raise WaitFor(delay=0.5)
        return current_task().attempt, time.time() - begin

    attempt, seconds = mesh.submit(later, time.time()).result(WAIT_S)
    assert attempt == 2
    assert seconds >= 0.5


def test_futures_that_another_attempt_would_not_find(mesh: Mesh):
    @task
    def careless() -> None:
        raise WaitFor(noted.submit(Path(os.devnull), 1), "text")

    with pytest.raises(errors.TaskMeshError, match="resume=True"):
        mesh.submit(careless).result(WAIT_S)


def test_an_item_of_a_map(mesh: Mesh):
    @task
    def item(number: int) -> int:
        if current_task().attempt == 1:
            raise WaitFor(delay=0.01)
        return number

    with pytest.raises(errors.TaskMeshError, match="chunksize=1"):
        list(mesh.map(item, range(3), chunksize=3))

    assert list(mesh.map(item, range(3), chunksize=1)) == [0, 1, 2]


def test_it_takes_something_to_wait_for():
    for arguments in ({}, {"delay": -1}, {"delay": "soon"}):
        with pytest.raises(errors.ConfigError, match="WaitFor"):
            WaitFor(**arguments)
    with pytest.raises(errors.ConfigError, match="resume"):
        task(resume=True, acks="early")(sum)
    with pytest.raises(errors.TaskMeshError, match="outside a task"):
        current_task()


def test_here_it_is_an_error_like_any_other():
    @task
    def waits() -> None:
        raise WaitFor(delay=1.0)

    with pytest.raises(WaitFor, match="only a task that a mesh runs can"):
        waits()


def test_the_upstream_of_a_task(mesh: Mesh):
    @task
    def told(_: int, __: int) -> tuple[str, ...]:
        return current_task().upstream

    one = noted.submit(Path(os.devnull), 1)
    assert mesh.submit(told, one, 2).result(WAIT_S) == (one.task_id,)


@task(resume=True)
def held_between(journal: Path, count: int, gate: Path) -> int:
    """The sum of squares, once somebody has opened the gate."""
    total = sum(gather([noted.submit(journal, number) for number in range(count)]))
    note(journal, "computed")
    wait_until(gate.exists, WAIT_S)
    return total


def test_children_that_have_ended_do_not_run_again_when_the_hub_and_all_pools_are_killed(
    programs: Programs, tmp_path: Path
):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    settings = {**SETTINGS, "TASKMESH_JOURNAL": str(tmp_path / "tasks.journal")}
    cluster = Cluster(programs)
    cluster.start_hub(settings)
    cluster.start_worker("one")
    with cluster.mesh() as mesh:
        future = mesh.with_options(detach=True).submit(held_between, journal, 6, gate)
        wait_until(lambda: "computed" in words(journal), WAIT_S)
        wait_until(lambda: mesh.status()["journal"]["waiting"] == 0, WAIT_S)
    cluster.hub.kill()
    cluster.pools["one"].kill_all()
    gate.touch()
    cluster.start_hub(settings)
    cluster.start_worker("two")
    with cluster.mesh() as mesh:
        assert mesh.attach(future.task_id).result(WAIT_S) == sum(number * number for number in range(6))
    numbers = [word for word in words(journal) if word != "computed"]
    assert sorted(numbers) == [str(number) for number in range(6)], "none ran twice"
