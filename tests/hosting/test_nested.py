"""Tasks that submit tasks, on an embedded mesh, one with a hub process, and on a worker elsewhere."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskmesh import Mesh, Retry, as_completed, current_task, errors, gather, promise, task
from tests.harness.journal import Journal, words
from tests.harness.ports import lasting_address
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting.nested import square, squares

WAIT_S = 30
SLOTS = 2


@pytest.fixture(scope="module")
def far_away(shared_programs: Programs) -> str:
    """The address of a hub with one worker."""
    address = shared_programs.hub()[1]
    shared_programs.worker(address, "--name", "one", slots=SLOTS)
    return address


@contextmanager
def opened(place: str, far_away: str) -> Iterator[Mesh]:
    if place == "elsewhere":
        opening = Mesh(far_away)
    elif place == "inline":
        opening = Mesh.inline(workers=SLOTS)
    else:
        opening = Mesh(workers=SLOTS, hub=place)
    with opening as mesh:
        yield mesh


@pytest.fixture(params=["thread", "process", "elsewhere"])
def mesh(request: pytest.FixtureRequest, far_away: str) -> Iterator[Mesh]:
    with opened(request.param, far_away) as mesh:
        yield mesh


@pytest.fixture(params=["thread", "process", "elsewhere", "inline"])
def anywhere(request: pytest.FixtureRequest, far_away: str) -> Iterator[Mesh]:
    """Tests that need no two tasks at a time."""
    with opened(request.param, far_away) as mesh:
        yield mesh


@pytest.fixture
def local() -> Iterator[Mesh]:
    with Mesh(workers=SLOTS) as mesh:
        yield mesh


@task
def fib(number: int) -> int:
    if number < 2:
        return number
    one, other = fib.submit(number - 1), fib.submit(number - 2)
    return one.result() + other.result()


@task
def beside_a_mesh(number: int) -> tuple[int, str]:
    own = Mesh(workers=1)  # the only one of the slot's process
    return square.submit(number).result(), repr(own)


@task
def chain(depth: int) -> int:
    return 1 + chain.submit(depth - 1).result() if depth else 0


@task
def refuse(text: str) -> None:
    raise ValueError(text)


@task
def asking(text: str) -> None:
    refuse.submit(text).result()


@task
def note(path: str, word: str, seconds: float = 0.0) -> None:
    threading.Event().wait(seconds)
    Journal(path).append(word)


@task
def sends_and_returns(path: str, count: int) -> str:
    for number in range(count):
        note.submit(path, str(number), 0.02)
    return "sent"


@task
def sends_and_waits(path: str, count: int) -> str:
    gather([note.submit(path, str(number), 0.1) for number in range(count)])
    return "all"


@task
def sends_and_fails(path: str, count: int) -> None:
    for number in range(count):
        note.submit(path, str(number), 0.5)
    raise ValueError("after sending")


@task
def sends_and_dies_once(path: str, mark: str, count: int) -> str:
    for number in range(count):
        note.submit(path, str(number), 0.4)
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@task(timeout=4.0)
def waits_too_long(path: str) -> None:
    note.submit(path, "first").result()
    for number in range(10):
        note.submit(path, str(number), 30.0)
    note.submit(path, "last", 30.0).result()


@task
async def awaiting(count: int) -> int:
    futures = [square.submit(number) for number in range(count)]
    return sum([await future for future in futures])


@task
def gathering(count: int) -> tuple[int, int, int]:
    futures = [square.submit(number) for number in range(count)]
    done, late = wait(futures, timeout=WAIT_S)
    assert not late
    return sum(f.result() for f in done), sum(f.result() for f in as_completed(futures)), sum(gather(futures))


@task
def modules_here(nested: bool) -> bool:
    if nested:
        square.submit(2).result()
    return "zmq" in sys.modules


@task(queue="nobody-serves-this")
def elsewhere() -> None:
    raise AssertionError("no pool serves its queue")


@task
def chain_then_elsewhere(depth: int) -> str:
    if depth:
        return chain_then_elsewhere.submit(depth - 1).result()
    try:
        elsewhere.submit()
    except errors.QueueFull as error:
        return str(error)
    return "it was taken"


@task
def in_a_thread(count: int) -> int:
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(sum(f.result() for f in map(square.submit, range(count))))
    )
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.smoke
def test_a_task_waits_for_tasks_of_its_own(anywhere):
    assert squares.submit(50).result(WAIT_S) == sum(n * n for n in range(50))


def test_recursion_far_beyond_the_places(anywhere):
    assert fib.submit(9).result(WAIT_S) == 34
    assert chain.submit(40).result(WAIT_S) == 40


def test_tasks_submit_to_the_mesh_that_runs_them_and_not_to_one_of_their_process(local):
    assert beside_a_mesh.submit(3).result(WAIT_S) == (
        9,
        "<Mesh embedded, 1 slots: not open yet, 0 tasks under way>",
    )


def test_an_error_of_a_child_is_its_parents_as_itself(anywhere):
    error = asking.submit("not like this").exception(WAIT_S)

    assert type(error) is ValueError
    assert error.args == ("not like this",)


def test_a_task_is_done_when_its_children_are(anywhere, tmp_path):
    journal = tmp_path / "journal"

    assert sends_and_returns.submit(str(journal), 10).result(WAIT_S) == "sent"

    assert sorted(map(int, words(journal))) == list(range(10))


def test_children_of_a_task_that_fails_are_cancelled(mesh, tmp_path):
    journal = tmp_path / "journal"

    assert type(sends_and_fails.submit(str(journal), 50).exception(WAIT_S)) is ValueError

    wait_until(lambda: not any(mesh.status()["tasks"].values()), 20, "no task is left")
    assert len(words(journal)) < 50


def test_children_of_a_crashed_attempt_are_cancelled_and_the_next_has_its_own(local, tmp_path):
    journal, mark = tmp_path / "journal", tmp_path / "mark"

    assert sends_and_dies_once.submit(str(journal), str(mark), 30).result(WAIT_S) == "survived"

    wait_until(lambda: not any(local.status()["tasks"].values()), 20, "no task is left")
    assert set(words(journal)) == {str(number) for number in range(30)}
    assert len(words(journal)) < 60, "the first attempt's were cancelled with it"


def test_another_attempt_finds_children_by_their_key(mesh, tmp_path):
    @task(key=lambda journal, number: f"{journal}/{number}", keep=60)
    def noted(journal: str, number: int) -> int:
        Journal(journal).append(str(number))
        return number * number

    @task(retries=Retry(max=3, backoff=0.01))
    def total(journal: str) -> tuple[int, int]:
        squares = gather([noted.submit(journal, number) for number in range(5)])
        if current_task().attempt < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return sum(squares), current_task().attempt

    journal = tmp_path / "journal"
    assert mesh.submit(total, str(journal)).result(WAIT_S) == (30, 3)
    assert sorted(words(journal)) == ["0", "1", "2", "3", "4"]


def test_a_child_may_wait_for_a_promise_of_its_parent(mesh):
    @task
    def told(answer: str, key: str) -> str:
        return f"{key}: {answer}"

    @task
    def asks(key: str) -> object:
        return told.submit(promise(key), key)

    before = mesh.status()["accepted"]
    futures = [mesh.submit(asks, f"ask-{number}") for number in range(2)]
    wait_until(lambda: mesh.status()["accepted"] == before + 6, WAIT_S, "each has made a promise and a child")
    for number in range(2):
        mesh.fulfil(f"ask-{number}", "yes")
    assert gather(futures, timeout=WAIT_S) == ["ask-0: yes", "ask-1: yes"]


def test_a_promise_that_nobody_waits_for_ends_with_its_task(mesh):
    @task
    def leaves_it() -> str:
        promise("left")
        return "done"

    assert mesh.submit(leaves_it).result(WAIT_S) == "done"
    wait_until(lambda: mesh.status()["tasks"]["queued"] == 0, WAIT_S)


def test_children_of_a_parent_that_is_cancelled_end_with_it(mesh, tmp_path):
    """B1: 48 of them started within five seconds after it, and others' tasks waited behind them."""
    journal = tmp_path / "journal"
    parent = sends_and_waits.submit(str(journal), 200)
    wait_until(lambda: words(journal), WAIT_S)

    assert parent.cancel()
    brief = 4.5  # below the five seconds after which the hub gives up whom it has not heard
    wait_until(lambda: not any(mesh.status()["tasks"].values()), brief, "no task is left")
    assert len(words(journal)) < 60


def test_the_soft_limit_ends_the_wait_and_the_children(local, tmp_path):
    journal = tmp_path / "journal"

    assert type(waits_too_long.submit(str(journal)).exception(WAIT_S)) is errors.TaskTimeout

    wait_until(lambda: not any(local.status()["tasks"].values()), 5, "no task is left")
    assert words(journal) == ["first"]


def test_every_way_of_waiting(local):
    expected = sum(n * n for n in range(10))

    assert awaiting.submit(10).result(WAIT_S) == expected
    assert gathering.submit(10).result(WAIT_S) == (expected,) * 3
    assert in_a_thread.submit(10).result(WAIT_S) == expected
    assert list(local.map(squares, [10] * 6)) == [expected] * 6


def test_slots_without_nested_tasks_stay_small(local):
    assert modules_here.submit(False).result(WAIT_S) is False
    assert modules_here.submit(True).result(WAIT_S) is True


def test_a_child_that_cannot_run_here_when_no_place_is_left_says_so(local):
    text = chain_then_elsewhere.submit(20).result(WAIT_S)

    assert "another queue" in text
    assert "more slots" in text


def test_children_go_first(local, tmp_path):
    """Else a thousand parents would all begin before the first of them could end."""
    journal = tmp_path / "journal"

    @task
    def family(number: int) -> None:
        note(str(journal), f"begin-{number}")
        square.submit(number).result()
        note(str(journal), f"end-{number}")

    for future in [family.submit(number) for number in range(60)]:
        future.result(WAIT_S)

    found = words(journal)
    alive = most = 0
    for word in found:
        alive += 1 if word.startswith("begin") else -1
        most = max(most, alive)
    assert most <= 5 * SLOTS


def test_an_interrupted_mesh_ends_at_once_with_parents_waiting(tmp_path):
    journal = tmp_path / "journal"
    mesh = Mesh(workers=1)
    mesh.submit(waits_too_long, str(journal))
    wait_until(lambda: words(journal), 10, "the first child has run")
    began = time.monotonic()
    mesh.close(cancel=True)
    assert time.monotonic() - began < 2.0


def test_two_event_loops_do_not_meet(local):
    """A parent with an event loop and no place left runs coroutine children beside its loop."""

    @task
    async def deeper(depth: int) -> int:
        return 1 + await deeper.submit(depth - 1) if depth else 0

    async def outside() -> int:
        return await deeper.submit(12)

    assert asyncio.run(outside()) == 12


def test_a_hub_that_comes_back_finds_parent_and_children_again(programs, tmp_path):
    hub, address = programs.hub(lasting_address())
    programs.worker(address, "--name", "steady", slots=SLOTS)
    journal = tmp_path / "journal"
    with Mesh(address):
        future = sends_and_waits.submit(str(journal), 20)
        wait_until(lambda: words(journal), 10, "the first child has run")
        hub.kill()
        programs.hub(address, TASKMESH_LEASE="2")

        assert future.result(WAIT_S) == "all"
        assert future.attempt == 1
    assert {int(word) for word in words(journal)} == set(range(20))
