"""Several pools of one hub: what an operator sees of them, and what is refused."""

from collections.abc import Iterator

import pytest

from taskmesh import Mesh
from taskmesh.errors import SerializationError
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until
from tests.hosting import workload


@pytest.fixture(scope="module")
def pools(shared_programs: Programs, shared_address: str) -> str:
    """The hub with pools `first` (two slots) and `slow` (another queue)."""
    shared_programs.worker(shared_address, "--name", "slow", "--queues", "slow")
    return shared_address


@pytest.fixture
def mesh(pools: str) -> Iterator[Mesh]:
    with Mesh(pools) as mesh:
        yield mesh


def test_a_task_that_no_pool_serves_waits_for_one(mesh, programs, pools):
    future = mesh.with_options(queue="rare").submit(workload.add, 1, 2)
    wait_until(lambda: mesh.status()["tasks"]["queued"] == 1)
    told = programs.run("explain", "--address", pools, future.task_id, "--json")
    assert "queue 'rare': no pool serves it" in rows(told)["why"]

    programs.worker(pools, "--queues", "rare")

    assert future.result(20) == 3


def test_a_result_above_the_limit_of_its_pool_is_that_tasks_failure(mesh, programs, pools):
    programs.worker(pools, "--queues", "narrow", TASKMESH_MAX_PAYLOAD="100kB")
    narrow = mesh.with_options(queue="narrow")
    futures = [narrow.submit(workload.zeros, size) for size in (99_000, 101_000, 10)]

    error = futures[1].exception(20)

    assert isinstance(error, SerializationError)
    assert "above max_payload = 100,000" in str(error)
    assert [len(futures[index].result(20)) for index in (0, 2)] == [99_000, 10]


def test_a_second_pool_of_a_name_is_refused_and_the_first_works_on(mesh, shared_programs, pools):
    double = shared_programs.start("worker", "--address", pools, "--name", "slow", "--queues", "slow")

    assert double.wait(20) == 1
    assert "is pool slow already: start this one with another --name" in double.errors
    assert mesh.with_options(queue="slow").submit(workload.add, 1, 2).result(20) == 3
