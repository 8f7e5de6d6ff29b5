"""Programs under faults: what is found, what passes, and that a seed plays the same way again."""

import pytest

from taskmesh import Retry, current_task, task
from taskmesh.hosting.inline_slots import AFTER, BEFORE, POOL
from taskmesh.testing import SeedFailed, explore

BOOKED: list[int] = []
ACCOUNTS: dict[int, int] = {}


@task
def book(number: int) -> int:
    BOOKED.append(number)
    return number


@task
def settle(number: int) -> int:
    ACCOUNTS[number] = 2 * number
    return number


@task
def parent(number: int) -> int:
    return sum(settle.submit(number + each).result() for each in range(3))


@task(retries=Retry(max=2, backoff=100.0))
def unsteady(number: int) -> int:
    if current_task().attempt == 1:
        raise ConnectionError
    return number


def booking() -> list[int]:
    BOOKED.clear()
    return [future.result() for future in [book.submit(number) for number in range(3)]]


def settling() -> list[int]:
    ACCOUNTS.clear()
    return [future.result() for future in [settle.submit(number) for number in range(3)]]


def booked_once(returned: list[int]) -> bool:
    return sorted(BOOKED) == sorted(returned)


def test_a_task_that_may_not_run_twice_is_found_within_200_seeds():
    with pytest.raises(SeedFailed) as caught:
        explore(booking, seeds=200, check=booked_once)

    assert f"seeds=[{caught.value.seed}]" in str(caught.value)
    assert caught.value.faults
    with pytest.raises(SeedFailed) as again:
        explore(booking, seeds=[caught.value.seed], check=booked_once)
    assert [words(fault) for fault in again.value.faults] == [words(fault) for fault in caught.value.faults]


def words(fault: str) -> str:
    """Return a fault without the task's id, which is another one each time."""
    name, _, rest = fault.partition(" ")
    return f"{name} {rest[8:]}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_that_may_passes_2000_seeds():
    def settled(returned: list[int]) -> None:
        assert returned == [0, 1, 2]
        assert ACCOUNTS == {0: 0, 1: 2, 2: 4}

    assert explore(settling, seeds=2000, check=settled) > 1000


def test_maps_chains_retries_and_nested_tasks_pass():
    from taskmesh.client.current_mesh import current_mesh

    def workload() -> object:
        mesh = current_mesh()
        first = settle.submit(1)
        chain = settle.submit(settle.submit(first))
        return (
            sorted(mesh.map(settle, range(20))),
            chain.result(),
            unsteady.submit(5).result(),
            parent.submit(10).result(),
        )

    assert explore(workload, seeds=20, check=lambda found: found == ([*range(20)], 1, 5, 33)) > 20


def test_each_fault_happens():
    happened: set[str] = set()
    for seed in range(30):
        with pytest.raises(SeedFailed) as caught:
            explore(settling, seeds=[seed], check=lambda returned: False)
        happened |= {what for what in (BEFORE, AFTER, POOL) for fault in caught.value.faults if what in fault}

    assert happened == {BEFORE, AFTER, POOL}


def test_an_error_of_the_workload_is_the_cause():
    def workload() -> None:
        raise LookupError("mine")

    with pytest.raises(SeedFailed, match="seed 0: LookupError: mine") as caught:
        explore(workload, seeds=3)
    assert isinstance(caught.value.__cause__, LookupError)
