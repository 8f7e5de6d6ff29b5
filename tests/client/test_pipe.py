"""Pipes in an embedded mesh, and how they end."""

import gc
import itertools
from collections.abc import Callable, Iterator

import pytest

from taskmesh import Limit, Mesh, task
from taskmesh.errors import ConfigError, MeshClosed, SerializationError
from tests.harness.waiting import wait_until

END_S = 30
LARGE = 100_000


@task
def add(x: int) -> int:
    return x + 1


@task
def grow(x: int) -> tuple[int, bytes]:
    return x, bytes(LARGE)


@task
def double(pair: tuple[int, bytes]) -> tuple[int, bytes]:
    return 2 * pair[0], pair[1]


@task
def first(pair: tuple[int, bytes]) -> int:
    return pair[0]


@task
def odd(x: int) -> int:
    if x % 2 == 0:
        raise ValueError(x)
    return x


@task
def stop(x: int) -> int:
    raise StopIteration(x)


@pytest.fixture
def mesh(processes: None) -> Iterator[Mesh]:
    with Mesh(workers=2) as mesh:
        yield mesh


class Counted:
    """A source that counts what is drawn, and what its taker has had."""

    def __init__(self, items: Iterator[int]) -> None:
        self.drawn = self.taken = self.most = 0
        self._items = items

    def __iter__(self) -> Iterator[int]:
        for item in self._items:
            self.drawn += 1
            self.most = max(self.most, self.drawn - self.taken)
            yield item


def is_at_rest(mesh: Mesh) -> bool:
    """Return True if the mesh's client holds nothing of any task."""
    table = mesh._client.table
    return not (table.unresolved or table._upstream._futures or table.weight)


@pytest.mark.parametrize("ordered", [True, False])
class TestResults:
    def test_each_item_goes_through_all_tasks(self, mesh: Mesh, ordered: bool):
        results = list(mesh.pipe(range(700), add, grow, double, first, ordered=ordered))

        assert sorted(results) == [2 * (x + 1) for x in range(700)]
        assert not ordered or results == sorted(results)
        assert is_at_rest(mesh)

    def test_an_endless_source_is_drawn_as_there_is_room(self, mesh: Mesh, ordered: bool):
        source = Counted(itertools.count())
        pipe = mesh.pipe(source, add, add, add, buffersize=40, ordered=ordered)
        results = []
        for result in itertools.islice(pipe, 500):
            results.append(result)
            source.taken += 1
            assert len(mesh._client.table._upstream._futures) <= 3 * 40
        pipe.close()

        assert len(set(results)) == 500
        assert source.most <= 40
        assert not ordered or results == list(range(3, 503))
        wait_until(lambda: is_at_rest(mesh), END_S)

    def test_results_between_the_tasks_do_not_come_to_the_client(
        self, mesh: Mesh, ordered: bool, received: list[int]
    ):
        assert sorted(mesh.pipe(range(50), grow, double, first, ordered=ordered)) == list(range(0, 100, 2))

        assert sum(received) < 50 * 100

    def test_an_error_comes_in_its_place_as_that_of_the_task_that_failed(self, mesh: Mesh, ordered: bool):
        found = list(mesh.pipe(range(6), add, odd, add, ordered=ordered, return_exceptions=True))
        errors = [end for end in found if isinstance(end, BaseException)]

        assert sorted(str(error) for error in errors) == ["2", "4", "6"]
        assert {type(error) for error in errors} == {ValueError}
        assert sorted(end for end in found if isinstance(end, int)) == [2, 4, 6]
        assert not ordered or [type(end) for end in found] == [int, ValueError] * 3

    def test_an_item_that_cannot_travel_is_an_error_in_its_place(self, mesh: Mesh, ordered: bool):
        items = [1, (x for x in ()), 3]
        found = list(mesh.pipe(items, add, add, ordered=ordered, return_exceptions=True))

        assert sorted(end for end in found if isinstance(end, int)) == [3, 5]
        assert [type(end) for end in found if not isinstance(end, int)] == [SerializationError]

    def test_what_is_under_way_comes_before_the_error_of_the_source(self, mesh: Mesh, ordered: bool):
        def source() -> Iterator[int]:
            yield from range(5)
            raise OSError("the disk is gone")

        pipe = mesh.pipe(source(), add, add, ordered=ordered)

        assert sorted(itertools.islice(pipe, 5)) == [2, 3, 4, 5, 6]
        with pytest.raises(OSError, match="the disk is gone"):
            next(pipe)
        with pytest.raises(StopIteration):
            next(pipe)

    def test_items_may_hold_futures(self, mesh: Mesh, ordered: bool):
        futures = [mesh.submit(add, x) for x in range(3)]

        assert sorted(mesh.pipe(futures, add, add, ordered=ordered)) == [3, 4, 5]

    def test_a_single_task(self, mesh: Mesh, ordered: bool):
        assert sorted(mesh.pipe(range(3), add, ordered=ordered)) == [1, 2, 3]
        assert list(mesh.pipe([], add, ordered=ordered)) == []


class TestEnd:
    def test_the_loop_goes_on_after_an_error(self, mesh: Mesh):
        pipe = mesh.pipe(range(3), odd, add, ordered=True)

        with pytest.raises(ValueError, match="0"):
            next(pipe)
        assert next(pipe) == 2

    def test_a_stop_iteration_of_a_task_does_not_end_the_loop(self, mesh: Mesh):
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(mesh.pipe([1], add, stop, add))

    @pytest.mark.parametrize("how", ["close", "drop"])
    def test_leaving_it_cancels_the_rest(self, mesh: Mesh, how: str):
        source = Counted(itertools.count())
        pipe = mesh.pipe(source, add, add, buffersize=20)
        next(pipe)
        if how == "close":
            pipe.close()
            with pytest.raises(StopIteration):
                next(pipe)
        else:
            del pipe
            gc.collect()

        wait_until(lambda: is_at_rest(mesh), END_S)
        assert source.drawn <= 21

    def test_a_source_that_asks_for_a_result(self, mesh: Mesh):
        def source() -> Iterator[int]:
            yield next(pipe)

        pipe: Iterator[int] = mesh.pipe(source(), add, add)
        with pytest.raises(ValueError, match="by their own input"):
            next(pipe)

    def test_a_result_that_does_not_come_in_time(self, mesh: Mesh):
        late = mesh.with_options(delay=60).submit(add, 1)

        with pytest.raises(TimeoutError, match="not all results of the pipe"):
            next(mesh.pipe([late], add, add, timeout=0.1))
        late.cancel()

    def test_a_mesh_that_is_closed(self, processes: None):
        with Mesh(workers=1) as mesh:
            pipe = mesh.pipe(itertools.count(), add, add, buffersize=4, ordered=True)
            assert next(pipe) == 2

        with pytest.raises(MeshClosed):
            list(pipe)

    def test_bytes_are_bounded_too(self, processes: None):
        with Mesh(workers=2, config={"client": {"max_bytes": 10 * LARGE}}) as mesh:
            seen = []
            for size in mesh.pipe((bytes(LARGE) for _ in range(60)), len, add, buffersize=50):
                seen.append(size)
                assert mesh._client.table.weight <= 11 * LARGE
            assert seen == [LARGE + 1] * 60


@pytest.mark.parametrize(
    ("tasks", "options", "match"),
    [
        ((add.with_options(key="k"), add), {}, "key= cannot be a stage"),
        ((add.with_options(acks="early"), add), {}, "only the last stage can have it"),
        ((add.with_options(keep=5), add), {}, "choose one"),
        ((add.with_options(delay=5), add), {}, "belong to single calls"),
        ((add, add.with_options(limit=Limit("l", concurrency=1, by=str))), {}, "only the first stage"),
        ((add,), {"buffersize": 0}, "buffersize has to be"),
        ((add,), {"timeout": "soon"}, "timeout has to be"),
    ],
)
def test_what_does_not_fit_a_pipe_is_refused(
    make_mesh: Callable[..., Mesh], tasks: tuple[object, ...], options: dict[str, object], match: str
):
    with pytest.raises(ConfigError, match=match):
        make_mesh().pipe([1], *tasks, **options)


def test_a_pipe_has_a_task(make_mesh: Callable[..., Mesh]):
    with pytest.raises(TypeError, match="at least one task"):
        make_mesh().pipe([1])
