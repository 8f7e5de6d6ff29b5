"""Tasks that ignore their results, in an embedded mesh, and what its client keeps of them."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from taskmesh import Mesh, TaskState, task
from taskmesh.client.dependencies import UpstreamTasks
from taskmesh.errors import ConfigError, DependencyError
from tests.harness.waiting import wait_until

END_S = 30
LARGE = 1_000_000


@task(ignore_result=True)
def square(x: int) -> int:
    return x * x


@task(ignore_result=True)
def zeros(size: int) -> bytes:
    return bytes(size)


@task(ignore_result=True)
def refuse(text: str) -> None:
    raise ValueError(text)


@task
def echo(value: object) -> object:
    return value


@task
def size_of(data: bytes) -> int:
    return len(data)


@pytest.fixture(params=[Mesh, Mesh.inline], ids=["processes", "inline"])
def mesh(processes: None, request: pytest.FixtureRequest) -> Iterator[Mesh]:
    with request.param(workers=2) as mesh:
        yield mesh


def held(mesh: Mesh) -> tuple[int, int]:
    """Count the upstream tasks that a mesh's client holds, and those of which it knows the end."""
    upstream: UpstreamTasks = mesh._client.table._upstream
    return len(upstream._futures), len(upstream._values)


@pytest.mark.usefixtures("mesh")
class TestOutcome:
    def test_it_is_none_and_says_who_ran_it(self):
        future = square.submit(3)

        assert future.result(END_S) is None
        assert (future.exception(), future.state, future.attempt) == (None, TaskState.SUCCEEDED, 1)
        assert future.worker

    def test_an_error_comes_as_ever(self):
        with pytest.raises(ValueError, match="no"):
            refuse.submit("no").result(END_S)
        blocked = echo.submit(refuse.submit("no"))
        with pytest.raises(DependencyError) as caught:
            blocked.result(END_S)
        assert isinstance(caught.value.__cause__, ValueError)

    def test_the_items_of_a_map_are_none_and_their_errors_come(self, mesh: Mesh):
        assert list(mesh.map(square, range(300), chunksize=100)) == [None] * 300
        assert list(mesh.map(square, range(3), chunksize=1)) == [None] * 3
        found = list(mesh.map(refuse, ["a", "b"], chunksize=2, return_exceptions=True))
        assert [str(error) for error in found] == ["a", "b"]

    def test_a_batch_counts_it(self, mesh: Mesh):
        with mesh.batch() as batch:
            batch.submit(square, 1)

        assert [future.result(END_S) for future in batch] == [None]
        assert batch.counts() == {TaskState.SUCCEEDED: 1}


class TestDependents:
    def test_they_get_the_value_and_the_client_does_not(self, received: list[int], mesh: Mesh):
        data = zeros.submit(LARGE)
        assert size_of.submit(data).result(END_S) == LARGE
        assert data.result(END_S) is None
        chunked = mesh.map(zeros, [LARGE] * 4, chunksize=2)
        assert list(chunked) == [None] * 4

        assert sum(received) < 1000

    def test_they_may_come_after_its_end_and_after_the_end_of_what_it_needs(self, mesh: Mesh):
        first = square.submit(3)
        second = square.submit(first)
        assert second.result(END_S) is None

        assert echo.submit(second).result(END_S) == 81
        assert echo.submit([first, second]).result(END_S) == [9, 81]
        assert held(mesh) == (0, 0)

    def test_one_that_waits_for_its_end_alone(self, mesh: Mesh):
        first = square.submit(3)
        assert first.result(END_S) is None

        assert echo.with_options(after=first).submit(1).result(END_S) == 1

    def test_many_chains_at_once(self, mesh: Mesh):
        ends = [echo.submit(square.submit(square.submit(x))) for x in range(1000)]

        assert [end.result(END_S) for end in ends] == [x**4 for x in range(1000)]
        assert held(mesh) == (0, 0)

    def test_the_calls_that_are_kept_count_until_the_last_dependent_has_ended(self, mesh: Mesh):
        table = mesh._client.table
        future = size_of.submit(echo.with_options(ignore_result=True).submit(bytes(LARGE)))

        assert future.result(END_S) == LARGE
        assert table.weight == 0

    def test_a_chain_goes_with_its_last_future(self, mesh: Mesh):
        first = square.submit(1)
        seen = weakref.ref(first)
        last = square.submit(square.submit(first))
        assert last.result(END_S) is None
        del first, last

        wait_until(lambda: gc.collect() >= 0 and seen() is None, END_S)  # the port's thread may be at it yet
        assert held(mesh) == (0, 0)


class TestOptions:
    @pytest.mark.parametrize("options", [{"keep": 10}, {"key": "k"}, {"key": str, "detach": True}])
    def test_nobody_can_ask_for_a_result_that_is_ignored(self, options: dict[str, object]):
        with pytest.raises(ConfigError, match="leave nobody to fetch the result"):
            task(ignore_result=True, **options)

    def test_a_detached_task_keeps_nothing(self):
        assert task(ignore_result=True, detach=True)(print).options.kept_for == 0
        assert task(ignore_result=True, keep=0)(print).options.kept_for == 0

    def test_what_may_not_run_twice_has_no_result_for_others(self, mesh: Mesh):
        once = square.with_options(acks="early").submit(2)
        with pytest.raises(ConfigError, match="wait for it with after="):
            echo.submit(once)

        assert echo.with_options(after=once).submit(1).result(END_S) == 1
