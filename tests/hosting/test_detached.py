"""Detached tasks: they do not end with their client, and their outcomes can be had by their ids."""

import os
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.errors import ConfigError, MeshClosed, NotDurable, UnknownTask
from tests.harness.cluster import SETTINGS, Cluster
from tests.harness.journal import words
from tests.harness.waiting import wait_until
from tests.hosting import workload

END_S = 30

LEAVING = """
import os, sys
from taskmesh import Mesh
from tests.hosting import workload
mesh = Mesh(sys.argv[1])
future = mesh.with_options(detach=True, keep=float(sys.argv[2])).submit(workload.add, 1, 2)
mesh.flush(20)
print(future.task_id, flush=True)
os._exit(0)
"""


@pytest.fixture
def cluster(programs) -> Cluster:
    cluster = Cluster(programs)
    cluster.start_hub(SETTINGS)
    return cluster


def left_behind(cluster: Cluster, keep: float = 60.0) -> str:
    """Have a client submit a detached task and exit at once; return the task's id."""
    client = cluster.programs.launch("client", ("-c", LEAVING, cluster.address, str(keep)))
    client.wait(END_S)
    return client.text().strip()


@pytest.mark.smoke
def test_the_client_exits_and_others_fetch_the_outcome_as_often_as_they_like(cluster):
    task_id = left_behind(cluster)
    cluster.start_worker("first")
    for _ in range(2):
        with cluster.mesh() as mesh:
            assert mesh.attach(task_id).result(END_S) == 3
            assert mesh.attach(task_id).result(END_S) == 3


@pytest.mark.parametrize("how", [{}, {"cancel": True}])
def test_close_leaves_them_to_the_hub(cluster, how):
    with cluster.mesh() as mesh:
        attached = mesh.submit(workload.add, 1, 1) if how else None
        detached = mesh.with_options(detach=True).submit(workload.add, 1, 2)
        mesh.close(**how)
        with pytest.raises(MeshClosed, match="left to the hub"):
            detached.result(0)
        assert attached is None or attached.cancelled()
    cluster.start_worker("first")
    with cluster.mesh() as mesh:
        assert mesh.attach(detached.task_id).result(END_S) == 3


@pytest.mark.parametrize("how", ["returns", "fails"])
def test_a_task_leaves_them_to_the_hub(cluster, tmp_path: Path, how):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    cluster.start_worker("first", slots=3)
    with cluster.mesh() as mesh:
        parent = mesh.submit(workload.leave_behind, str(journal), str(gate), how)
        assert (parent.exception(END_S) is None) == (how == "returns")
        if how == "fails":
            wait_until(lambda: mesh.status()["tasks"]["running"] == 1, END_S, "the attached one is cancelled")
        gate.touch()
        [task_id] = words(f"{journal}.ids")
        assert mesh.attach(task_id).result(END_S) == "word"


def test_without_a_journal_durable_tasks_are_refused_with_the_cure(cluster):
    with cluster.mesh() as mesh:
        error = mesh.with_options(durable=True).submit(workload.add, 1, 2).exception(END_S)

    assert isinstance(error, NotDurable)
    assert "start that with --journal" in str(error)


@pytest.mark.smoke
def test_an_embedded_mesh_leaves_tasks_to_the_next_one_with_its_journal(tmp_path: Path):
    journal, log, gate = (str(tmp_path / name) for name in ("tasks.journal", "log", "gate"))
    with Mesh(workers=1, journal=journal) as mesh:
        held = mesh.with_options(detach=True).submit(workload.hold, log, "word", gate)
        task = mesh.with_options(detach=True, keep=60).submit(workload.add, 1, 2)
        undurable = mesh.with_options(detach=True, durable=False).submit(workload.add, 1, 4)
    Path(gate).touch()
    with Mesh(workers=1, journal=journal) as mesh:
        assert mesh.attach(held.task_id).result(END_S) == "word"
        assert mesh.attach(task.task_id).result(END_S) == 3
        with pytest.raises(UnknownTask):
            mesh.attach(undurable.task_id).result(END_S)
    with Mesh(workers=1, journal=journal) as mesh:
        assert mesh.attach(task.task_id).result(END_S) == 3


def test_an_embedded_mesh_without_a_journal_refuses_them_with_the_cure():
    with Mesh(workers=1) as mesh, pytest.raises(ConfigError, match=r"Mesh\(journal=FILE\)"):
        mesh.with_options(detach=True).submit(os.getpid)


def test_the_command_line_prints_the_id_of_one_and_fetches_its_result(cluster, programs):
    told = programs.run(
        "submit", "operator:add", "1", "2", "--detach", "--keep", "60", "--address", cluster.address
    )
    cluster.start_worker("first")
    for _ in range(2):
        found = programs.run("result", told.stdout.strip(), "--wait", "20", "--address", cluster.address)
        assert found.stdout == "3\n"
