"""Promises, values that a program puts into the mesh, and batches, as users write them."""

import signal
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from taskmesh import Mesh, task
from taskmesh.errors import BatchError, ConfigError, DependencyError, SerializationError, Tally, TaskExpired
from tests.harness.waiting import wait_until

END_S = 30


@task
def pair(*values: object) -> tuple[object, ...]:
    return values


@task
def same(x: int) -> int:
    return x


@task
def odd_only(x: int) -> int:
    if x % 2 == 0:
        raise ValueError(x)
    return x


@task
def linger() -> None:
    signal.pause()


@task
def length(data: bytes, more: int) -> int:
    return len(data) + more


@task
def end_of(end: object) -> tuple[str, str]:
    return str(end.state), type(end.exception()).__name__  # type: ignore[attr-defined]


@pytest.fixture
def mesh(processes: None) -> Iterator[Mesh]:
    with Mesh(workers=2) as mesh:
        yield mesh


class TestPromises:
    def test_fulfilled_while_a_task_waits(self, mesh):
        approval = mesh.promise("approve")
        shipped = pair.submit("order", approval)
        assert not shipped.done()

        assert mesh.fulfil("approve", {"by": "ann"}) is True
        assert mesh.fulfil("approve", "late") is False
        assert shipped.result(END_S) == ("order", {"by": "ann"})
        assert approval.result(END_S) == {"by": "ann"}

    def test_fulfilled_before_and_after(self, mesh):
        assert mesh.fulfil("early", 1) is True

        assert mesh.promise("early").result(END_S) == 1
        assert pair.submit(mesh.promise("early")).result(END_S) == (1,)

    def test_an_error(self, mesh):
        denied = mesh.promise("deny")
        shipped = pair.submit(denied)

        assert mesh.fulfil("deny", error=PermissionError("not today"))
        with pytest.raises(DependencyError, match="not today") as caught:
            shipped.result(END_S)
        assert isinstance(caught.value.__cause__, PermissionError)
        with pytest.raises(PermissionError):
            denied.result(END_S)

    def test_it_expires(self, mesh):
        with pytest.raises(TaskExpired, match=r"nobody had fulfilled it 0\.2 s after"):
            mesh.promise("never", expires=0.2).result(END_S)

    @pytest.mark.parametrize("key", ["", 5, None, "x" * 2000, "\ud800"])
    def test_a_key_is_text(self, mesh, key):
        with pytest.raises(ConfigError, match="key of a promise"):
            mesh.promise(key)
        with pytest.raises(ConfigError, match="key of a promise"):
            mesh.fulfil(key)

    def test_what_cannot_travel_is_refused(self, mesh):
        with pytest.raises(SerializationError):
            mesh.fulfil("k", (x for x in ()))
        with pytest.raises(TypeError, match="exception"):
            mesh.fulfil("k", error="text")
        with pytest.raises(ConfigError, match="expires"):
            mesh.promise("k", expires=-1)

    def test_cancelled(self, mesh):
        promise = mesh.promise("k")
        assert promise.cancel()
        assert mesh.fulfil("k") is True


class TestPut:
    def test_many_tasks_use_one_value(self, mesh):
        data = mesh.put(b"x" * 2_000_000)

        assert data.done()
        assert [one.result(END_S) for one in [length.submit(data, i) for i in range(50)]] == [
            2_000_000 + i for i in range(50)
        ]
        assert data.result() == b"x" * 2_000_000
        assert length.submit(data, 1).result(END_S) == 2_000_001

    def test_it_goes_when_its_future_does(self, mesh):
        data = mesh.put(b"x" * 2_000_000)
        assert length.submit(data, 1).result(END_S) == 2_000_001
        assert mesh.status()["bytes"] >= 2_000_000

        del data
        wait_until(lambda: mesh.status()["bytes"] == 0)

    def test_of_nothing_that_travels(self, mesh):
        with pytest.raises(SerializationError, match="put"):
            mesh.put(x for x in ())

    def test_an_unused_value_costs_the_hub_nothing(self, mesh):
        data = [mesh.put(i) for i in range(100)]
        assert same.submit(1).result(END_S) == 1

        assert mesh.status()["accepted"] == 1
        assert sum(one.result() for one in data) == 4950


class TestBatches:
    def test_tasks_and_maps_are_counted(self, mesh):
        with mesh.batch("import") as batch:
            one = same.submit(1)
            two = batch.submit(same, 2)
            assert list(batch.map(same, range(500))) == list(range(500))

        assert batch.done.result(END_S) == Tally(502, 0, 502, 0, 0) == batch.tally()
        assert one.result() + two.result() == 3
        assert batch.id == batch.done.task_id
        assert "import" in repr(batch)

    def test_failures(self, mesh):
        with mesh.batch() as batch:
            results = batch.map(odd_only, range(100), return_exceptions=True)
            assert sum(isinstance(one, ValueError) for one in results) == 50
            batch.submit(odd_only, 4)
            batch.submit(odd_only, 5)

        with pytest.raises(BatchError, match=r"of 102 tasks of the batch .* 51 failed and 0 were") as caught:
            batch.done.result(END_S)
        assert caught.value.tally == Tally(102, 0, 51, 51, 0)

    def test_retried_items_count_once(self, mesh):
        with mesh.batch(retries=1) as batch:
            results = list(batch.map(odd_only, range(20), return_exceptions=True))

        assert sum(isinstance(one, ValueError) for one in results) == 10
        assert batch.done.exception(END_S) is not None
        assert batch.tally() == Tally(20, 0, 10, 10, 0)

    def test_empty_it_succeeds_at_once(self, mesh):
        with mesh.batch() as batch:
            pass

        assert batch.done.result(END_S) == Tally()

    def test_fail_fast_cancels_the_rest(self, mesh):
        with mesh.batch(fail_fast=True) as batch:
            slow = [linger.submit() for _ in range(20)]
            batch.submit(odd_only.with_options(priority=5), 2)
        slow[0].cancel()

        with pytest.raises(BatchError):
            batch.done.result(END_S)
        assert all(one.cancelled() for one in slow)
        assert batch.tally() == Tally(21, 0, 0, 1, 20)

    def test_fail_fast_of_a_map(self, mesh):
        with mesh.batch(fail_fast=True) as batch:
            results = batch.map(odd_only, range(1_000_000_000), buffersize=100)
            with pytest.raises((ValueError, CancelledError)):
                list(results)

        assert isinstance(batch.done.exception(END_S), BatchError)
        assert batch.tally().pending == 0

    def test_cancel(self, mesh):
        with mesh.batch() as batch:
            slow = [linger.submit() for _ in range(10)]

        assert batch.cancel() == 10
        assert all(one.cancelled() for one in slow)
        assert batch.done.exception(END_S).tally == Tally(10, 0, 0, 0, 10)

    def test_an_error_in_the_block_cancels_it(self, mesh):
        batch = mesh.batch()
        slow = batch.submit(linger)

        with pytest.raises(KeyError), batch:
            raise KeyError
        assert slow.cancelled()

    def test_tasks_depend_on_its_end(self, mesh):
        with mesh.batch() as good:
            good.submit(same, 1)
        with mesh.batch() as bad:
            bad.submit(odd_only, 2)

        assert pair.submit(good.done).result(END_S) == (Tally(1, 0, 1, 0, 0),)
        assert same.with_options(after=good).submit(3).result(END_S) == 3
        assert end_of.with_options(when="done").submit(bad.done).result(END_S) == ("failed", "BatchError")
        with pytest.raises(DependencyError):
            same.with_options(after=[good, bad]).submit(3).result(END_S)

    def test_a_batch_in_a_batch_counts_its_own(self, mesh):
        with mesh.batch() as outer:
            same.submit(1)
            with mesh.batch() as inner:
                same.submit(2)
            same.submit(3)

        assert outer.done.result(END_S).total == 2
        assert inner.done.result(END_S).total == 1

    def test_sealed_it_takes_no_more(self, mesh):
        batch = mesh.batch()
        batch.submit(same, 1)
        batch.seal()

        with pytest.raises(ConfigError, match="is sealed"):
            batch.submit(same, 2)
        with pytest.raises(ConfigError, match="is sealed"):
            batch.map(same, [1])
        assert batch.done.result(END_S).total == 1

    def test_a_mesh_that_closes_seals_it(self, processes):
        with Mesh(workers=1) as mesh:
            batch = mesh.batch()
            batch.submit(same, 1)

        assert batch.done.result(0) == Tally(1, 0, 1, 0, 0)

    def test_the_end_follows_the_last_task_of_a_large_map(self, mesh):
        with mesh.batch() as batch:
            assert sum(batch.map(same, range(100_000))) == sum(range(100_000))

        assert batch.done.result(END_S) == Tally(100_000, 0, 100_000, 0, 0)
