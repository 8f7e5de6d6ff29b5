"""Attachments over tcp: another program's tasks by their ids, with keys, encodings and restarts."""

import os
from pathlib import Path

import pytest

from taskmesh import Mesh, TaskFuture
from taskmesh.errors import ConfigError, DependencyError, SerializationError, UnknownTask
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

END_S = 30


@pytest.fixture
def cluster(programs: Programs) -> Cluster:
    cluster = Cluster(programs)
    cluster.start_hub()
    cluster.start_worker("first", slots=2)
    return cluster


def test_a_task_of_another_mesh(cluster: Cluster, tmp_path: Path):
    gate = str(tmp_path / "gate")
    with cluster.mesh() as mesh, cluster.mesh() as other:
        held = mesh.submit(workload.hold, str(tmp_path / "journal"), "word", gate)
        refused = mesh.with_options(after=held).submit(workload.refuse, "no")
        data = mesh.with_options(after=held).submit(os.urandom, 3_000_000)
        mesh.flush()
        attached = other.attach(held.task_id)
        assert attached.task_id == held.task_id
        echoed = other.submit(workload.echo, [attached])
        later = other.with_options(after=[held.task_id, attached]).submit(workload.add, 1, 2)
        blocked = other.with_options(after=refused.task_id).submit(workload.add, 1, 2)
        large = other.attach(data.task_id)
        other.flush()
        (tmp_path / "gate").touch()

        assert attached.result(END_S) == "word"
        assert echoed.result(END_S) == ["word"]
        assert later.result(END_S) == 3
        assert large.result(END_S) == data.result(END_S)
        with pytest.raises(DependencyError) as caught:
            blocked.result(END_S)
        assert isinstance(caught.value.__cause__, workload.Refusal)
        assert caught.value.path == (refused.task_id, blocked.task_id)
        with pytest.raises(UnknownTask, match="its outcome is not kept"):
            other.attach(held.task_id).result(END_S)


def held(mesh: Mesh, folder: Path, **options: object) -> TaskFuture[str]:
    """A task that the hub has, and that runs until its gate opens."""
    task = mesh.with_options(**options).submit(
        workload.hold, str(folder / "journal"), "word", str(folder / "gate")
    )
    mesh.flush()
    return task


def test_plain_results_reach_everybody_and_pickled_ones_those_who_unpickle(cluster: Cluster, tmp_path: Path):
    with cluster.mesh() as pickling, cluster.mesh(result_codec="safe") as plain:
        pickled, safe = held(pickling, tmp_path), held(plain, tmp_path)
        number = plain.with_options(after=safe).submit(workload.echo, [1, 2])
        listed = pickling.with_options(after=pickled).submit(workload.echo, [1, 2])
        plain.flush()
        pickling.flush()
        attached = pickling.attach(number.task_id)
        text, other = plain.attach(pickled.task_id), plain.attach(listed.task_id)
        after = plain.with_options(after=pickled.task_id).submit(workload.add, 1, 2)
        used = pickling.submit(workload.echo, attached)
        pickling.flush()
        plain.flush()
        (tmp_path / "gate").touch()

        assert attached.result(END_S) == [1, 2]
        assert used.result(END_S) == [1, 2]
        assert after.result(END_S) == 3
        assert text.result(END_S) == "word"
        assert listed.result(END_S) == [1, 2]
        with pytest.raises(SerializationError, match=r"no plain data.* nothing else is taken"):
            other.result(END_S)


def test_with_keys_it_is_the_same_users_task_whose_result_it_has_signed(
    programs: Programs, ring: Ring, tmp_path: Path
):
    keyed = Cluster.keyed(programs, ring)
    bob = ring.peer("client", "bob")

    with keyed.mesh() as mesh, keyed.mesh() as again, keyed.mesh(bob) as stranger:
        first = held(mesh, tmp_path)
        shared = mesh.with_options(key="k", after=first).submit(workload.add, 1, 2)
        mesh.flush()
        attached, keyed_one = again.attach(first.task_id), again.attach(shared.task_id)
        after = again.with_options(after=shared.task_id).submit(workload.add, 4, 5)
        with pytest.raises(UnknownTask, match="with another key"):
            stranger.attach(first.task_id).result(END_S)
        with pytest.raises(ConfigError, match="wait for it with after="):
            again.submit(workload.echo, attached)
        again.flush()
        (tmp_path / "gate").touch()

        assert attached.result(END_S) == "word"
        assert after.result(END_S) == 9
        assert keyed_one.result(END_S) == 3


@pytest.mark.smoke
def test_the_hub_is_restarted(cluster: Cluster, tmp_path: Path):
    with cluster.mesh() as mesh, cluster.mesh() as other:
        task = held(mesh, tmp_path)
        attached = other.attach(task.task_id)
        after = other.with_options(after=task.task_id).submit(workload.add, 1, 2)
        other.flush()
        cluster.hub.kill()
        cluster.start_hub()
        other.submit(workload.add, 1, 2).result(END_S)
        (tmp_path / "gate").touch()

        assert attached.result(END_S) == "word"
        assert after.result(END_S) == 3
        assert task.result(END_S) == "word"


def test_from_inside_a_task(cluster: Cluster, tmp_path: Path):
    with cluster.mesh() as mesh:
        task = held(mesh, tmp_path)
        parent = mesh.submit(workload.add_after, task.task_id, 1, 2)
        wait_until(lambda: mesh.status()["accepted"] == 3, END_S, "its own task waits")
        (tmp_path / "gate").touch()

        assert parent.result(END_S) == 3
