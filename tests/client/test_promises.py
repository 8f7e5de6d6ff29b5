"""Promises, values that a program puts into the mesh, and batches, as users write them."""

import signal
from collections.abc import Iterator

import pytest

from taskmesh import Mesh, TaskState, task
from taskmesh.errors import ConfigError, DependencyError, SerializationError, TaskExpired, TooLarge
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
    def test_it_holds_the_futures_of_its_block(self, mesh):
        with mesh.batch() as batch:
            one = same.submit(1)
            two = batch.submit(same, 2)
            three = batch.with_options(priority=1).submit(same, 3)
            bad = batch.submit(odd_only, 4)

        assert batch.done.result(END_S) is None
        assert list(batch) == [one, two, three, bad]
        assert batch.counts() == {TaskState.SUCCEEDED: 3, TaskState.FAILED: 1}
        assert repr(batch) == "<Batch: 3 succeeded, 1 failed>"

    def test_maps_and_pipes_are_not_in_it(self, mesh):
        with mesh.batch() as batch:
            assert list(mesh.map(same, range(10))) == list(range(10))
            assert list(batch.map(same, range(10))) == list(range(10))
            assert sorted(batch.pipe(range(10), same, same)) == list(range(10))

        assert batch.done.result(END_S) is None
        assert not batch.counts()

    def test_it_ends_after_its_block_and_its_tasks(self, mesh):
        with mesh.batch() as batch:
            batch.submit(same, 1).result(END_S)
            slow = linger.submit()
        assert not batch.done.done()

        slow.cancel()
        assert batch.done.result(END_S) is None

    def test_it_does_not_end_before_its_block(self, mesh):
        with mesh.batch() as batch:
            assert batch.submit(same, 1).result(END_S) == 1
            mesh._client.callbacks.flush()
            assert not batch.done.done()

        assert batch.done.result(END_S) is None

    def test_cancel(self, mesh):
        with mesh.batch() as batch:
            slow = [linger.submit() for _ in range(10)]

        assert batch.cancel() == 10
        assert all(one.cancelled() for one in slow)
        assert batch.done.result(END_S) is None
        assert batch.cancel() == 0
        assert batch.counts() == {TaskState.CANCELLED: 10}

    def test_an_error_in_the_block_cancels_it(self, mesh):
        batch = mesh.batch()
        slow = batch.submit(linger)

        with pytest.raises(KeyError), batch:
            raise KeyError
        assert slow.cancelled()
        assert batch.done.result(END_S) is None

    def test_tasks_depend_on_its_futures(self, mesh):
        with mesh.batch() as good:
            good.submit(same, 1)
        with mesh.batch() as bad:
            bad.submit(odd_only, 2)

        assert pair.submit(*good).result(END_S) == (1,)
        assert same.with_options(after=list(good)).submit(3).result(END_S) == 3
        assert same.with_options(after=list(bad), when="done").submit(3).result(END_S) == 3
        with pytest.raises(DependencyError):
            same.with_options(after=[*good, *bad]).submit(3).result(END_S)
        with pytest.raises(ConfigError, match=r"after=list\(batch\)"):
            same.with_options(after=good.done)

    def test_a_batch_in_a_batch_holds_its_own(self, mesh):
        with mesh.batch() as outer:
            one = same.submit(1)
            with mesh.batch() as inner:
                two = same.submit(2)
            three = same.submit(3)

        assert list(outer) == [one, three]
        assert list(inner) == [two]

    def test_a_block_that_was_left_takes_no_more(self, mesh):
        with mesh.batch() as batch:
            pass

        assert batch.done.result(END_S) is None
        with pytest.raises(ConfigError, match="has been left"):
            batch.submit(same, 2)

    def test_a_mesh_may_close_in_its_block(self, processes):
        mesh = Mesh(workers=1)
        with mesh.batch() as batch:
            batch.submit(same, 1)
            mesh.close()

        assert batch.done.result(END_S) is None
        assert batch.counts() == {TaskState.SUCCEEDED: 1}


def test_put_beyond_what_the_mesh_may_keep_is_refused_and_tasks_go_on():
    """The hub takes no task of a client whose values have no room: they would wait for ever."""
    with Mesh.inline(client__max_bytes=3_000_000) as mesh:
        first, second = mesh.put(b"x" * 1_400_000), mesh.put(b"y" * 1_400_000)
        with pytest.raises(TooLarge, match=r"4,2.*client\.max_bytes"):
            mesh.put(b"z" * 1_400_000)
        assert [mesh.submit(len, each).result(END_S) for each in (first, second)] == [1_400_000] * 2
        del first
        third = wait_until(lambda: _kept(mesh), END_S)
        assert [mesh.submit(len, third).result(END_S), mesh.submit(len, second).result(END_S)]


def _kept(mesh: Mesh) -> object:
    try:
        return mesh.put(b"z" * 1_400_000)
    except TooLarge:
        return None
