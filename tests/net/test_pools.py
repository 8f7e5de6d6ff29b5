"""Several pools: which of them gets what, and what an operator sees and commands."""

from collections.abc import Iterator

import pytest

from taskmesh import Mesh
from taskmesh.errors import SerializationError
from tests.harness.journal import words
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until
from tests.net import workload


@pytest.fixture(scope="module")
def pools(shared_programs: Programs, shared_address: str) -> str:
    """The hub with pools `first` (two slots), `slow` (other queues) and `strong` (tags)."""
    for line in (
        ("--name", "slow", "--queues", "slow,extra"),
        ("--name", "strong", "--queues", "strong", "--tags", "gpu,big"),
    ):
        shared_programs.worker(shared_address, *line)
    return shared_address


@pytest.fixture
def mesh(pools: str) -> Iterator[Mesh]:
    with Mesh(pools) as mesh:
        yield mesh


def workers(futures: list) -> set[str]:
    return {future.worker.partition("/")[0] for future in futures}


def test_a_queue_is_served_by_the_pools_that_name_it(mesh):
    extra = mesh.with_options(queue="extra")
    plain = [mesh.submit(workload.add, number, 1) for number in range(50)]
    other = [extra.submit(workload.add, number, 1) for number in range(50)]

    assert [future.result(20) for future in plain + other] == [*range(1, 51)] * 2
    assert workers(plain) == {"first"}
    assert workers(other) == {"slow"}


def test_tags_are_what_a_pool_must_have_all_of(mesh):
    tagged = mesh.with_options(queue="strong", tags=["gpu"])
    lacking = mesh.with_options(queue="strong", tags=["gpu", "tpu"]).submit(workload.add, 1, 1)

    futures = [tagged.submit(workload.add, number, 1) for number in range(20)]

    assert [future.result(20) for future in futures] == list(range(1, 21))
    assert workers(futures) == {"strong"}
    assert mesh.status()["tasks"]["QUEUED"] == 1
    assert lacking.cancel()


def test_a_task_that_no_pool_serves_waits_for_one(mesh, programs, pools):
    future = mesh.with_options(queue="rare").submit(workload.add, 1, 2)
    wait_until(lambda: mesh.status()["tasks"]["QUEUED"] == 1)
    told = programs.run("tasks", "--address", pools, future.task_id, "--json")
    assert "no pool serves queue 'rare'" in rows(told)["why"]

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


def test_pools_with_work_for_both_share_it(mesh, programs, pools, tmp_path):
    gate, journal = tmp_path / "gate", tmp_path / "journal"
    for name in ("one", "two"):
        programs.worker(pools, "--name", name, "--queues", "both")
    both = mesh.with_options(queue="both")

    held = [both.submit(workload.hold, str(journal), f"{number}", str(gate)) for number in range(2)]
    wait_until(lambda: len(words(journal)) == 2)  # with one slot each: both pools run one
    gate.touch()

    assert [future.result(20) for future in held] == ["0", "1"]
    assert workers(held) == {"one", "two"}


def test_a_second_pool_of_a_name_is_refused_and_the_first_works_on(mesh, shared_programs, pools):
    double = shared_programs.start("worker", "--address", pools, "--name", "slow", "--queues", "slow")

    assert double.wait(20) == 1
    assert "is pool slow already: start this one with another --name" in double.errors
    assert mesh.with_options(queue="slow").submit(workload.add, 1, 2).result(20) == 3
