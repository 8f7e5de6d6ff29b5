"""A hub with a journal, as a program of its own: killed with its clients, and started again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmesh.config import load
from taskmesh.hub.journal.journal import journal_store
from tests.harness.cluster import SETTINGS, Cluster
from tests.harness.programs import Programs
from tests.harness.redis_server import serving
from tests.harness.waiting import wait_until
from tests.hosting import workload

END_S = 30
TASKS = 50

DYING_CLIENT = """
import os, sys
from taskmesh import Mesh
from tests.hosting import workload
with Mesh(address=sys.argv[1]) as mesh:
    first = mesh.submit(workload.add, 1, 1)
    tasks = [mesh.submit(workload.add, number, first) for number in range(int(sys.argv[2]))]
    large = mesh.submit(workload.echo, b"x" * 5_000_000)
    mesh.flush()
    print(*[task.task_id for task in (*tasks, large)], flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(
    params=[pytest.param("file", marks=pytest.mark.smoke), "file strict", "redis", "redis strict"]
)
def settings(tmp_path: Path, request: pytest.FixtureRequest, processes: None) -> Iterator[dict[str, str]]:
    """The hub's settings, in the environment."""
    kind, _, strict = request.param.partition(" ")
    env = {**SETTINGS, "TASKMESH_HUB__STRICT": "true" if strict else "false"}
    if kind == "file":
        yield {**env, "TASKMESH_JOURNAL": str(tmp_path / "tasks.journal")}
        return
    sync = "always" if strict else "everysec"
    for server in serving(tmp_path, "--appendonly", "yes", "--appendfsync", sync):
        yield {**env, "TASKMESH_JOURNAL": server.url}


@pytest.fixture
def cluster(programs: Programs, settings: dict[str, str]) -> Cluster:
    cluster = Cluster(programs)
    cluster.start_hub(settings)
    return cluster


def entries(settings: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """All that the journal has."""
    hub = load(environ={name: value for name, value in settings.items() if "JOURNAL" in name}).hub
    store = journal_store(hub)
    try:
        return [entry for portion in store.load() for entry in portion]
    finally:
        store.close()


def killed_with_their_client(cluster: Cluster, settings: dict[str, str], count: int) -> list[str]:
    """Have a client submit tasks, kill it and the hub, and start a hub and a pool; return the tasks' ids."""
    client = cluster.programs.launch("client", ("-c", DYING_CLIENT, cluster.address, str(count)))
    client.wait(END_S)
    cluster.hub.kill()
    cluster.start_hub(settings)
    cluster.start_worker("first")
    return client.text().split()


def test_hub_and_client_are_killed_and_every_accepted_task_is_reached_by_its_id(cluster, settings):
    ids = killed_with_their_client(cluster, settings, TASKS)
    with cluster.mesh() as mesh:
        found = [mesh.attach(task_id) for task_id in ids]
        *sums, large = [future.result(END_S) for future in found]

    assert sums == [number + 2 for number in range(TASKS)]
    assert large == b"x" * 5_000_000


def test_a_client_that_lives_notices_nothing(cluster, programs, settings):
    cluster.start_worker("first")
    with cluster.mesh() as mesh:
        tasks = [mesh.submit(workload.add, number, 1) for number in range(TASKS)]
        mesh.flush()
        cluster.hub.kill()
        cluster.start_hub(settings)
        more = [mesh.submit(workload.add, number, 2) for number in range(TASKS)]

        assert [task.result(END_S) for task in tasks] == [number + 1 for number in range(TASKS)]
        assert [task.result(END_S) for task in more] == [number + 2 for number in range(TASKS)]
        assert mesh.status()["journal"]["state"] == "connected"
    told = programs.run("status", "--address", cluster.address)
    assert "journal:  connected: 0 changes (0 bytes) wait to be written" in told.stdout
    cluster.hub.terminate()
    cluster.hub.wait()
    assert entries(settings) == []


def test_a_second_hub_takes_the_journal_and_the_first_stops(cluster, programs, settings):
    first = cluster.hub
    second = Cluster(programs)
    second.start_hub(settings)

    assert first.wait(END_S) == 1
    assert "another hub has opened" in first.text("stderr") + first.text("stdout")


def test_a_journal_that_cannot_be_written_is_told_and_what_was_accepted_goes_on(programs, tmp_path):
    for server in serving(tmp_path, "--appendonly", "yes"):
        cluster = Cluster(programs)
        cluster.start_hub({**SETTINGS, "TASKMESH_JOURNAL": server.url})
        cluster.start_worker("first")
        with cluster.mesh() as mesh:
            server.kill()
            tasks = [mesh.submit(workload.add, number, 1) for number in range(TASKS)]
            assert [task.result(END_S) for task in tasks] == [number + 1 for number in range(TASKS)]
            wait_until(lambda: mesh.status()["journal"]["waiting"], END_S, "the hub tells what waits")
            held = mesh.with_options(delay=END_S).submit(workload.add, 1, 1)
            with pytest.raises(TimeoutError):
                mesh.flush(timeout=1.0)
            assert not held.accepted

            server.start()
            mesh.flush()
            assert held.accepted
            assert held.cancel()
            wait_until(lambda: mesh.status()["journal"]["waiting"] == 0, END_S, "all is written")


def test_a_result_is_printed_by_its_id_on_the_command_line(programs, tmp_path):
    cluster = Cluster(programs)
    settings = {**SETTINGS, "TASKMESH_JOURNAL": str(tmp_path / "tasks.journal")}
    cluster.start_hub(settings)
    with cluster.mesh() as mesh:
        added, refused = mesh.submit(workload.add, 1, 2), mesh.submit(workload.refuse, "because")
        mesh.close(detach=True)
    at = ("--address", cluster.address)
    waiting = programs.run("result", added.task_id, *at)
    cluster.hub.kill()
    cluster.start_hub(settings)
    cluster.start_worker("first")
    outcome = programs.run("result", added.task_id, "--wait", "20", *at)
    failed = programs.run("result", refused.task_id, "--wait", "20", *at)
    unknown = programs.run("result", f"{1:032x}", "--wait", "20", *at)

    assert (waiting.returncode, "it goes on" in waiting.stderr) == (4, True)
    assert (outcome.returncode, outcome.stdout) == (0, "3\n")
    assert (failed.returncode, "because" in failed.stderr) == (1, True)
    assert (unknown.returncode, "nothing is known of it" in unknown.stderr) == (1, True)
    assert programs.run("result", "x", *at).returncode == 2


def test_what_a_client_leaves_to_the_hub_has_its_outcome_there_or_with_the_client(programs, tmp_path):
    cluster = Cluster(programs)
    cluster.start_hub({**SETTINGS, "TASKMESH_JOURNAL": str(tmp_path / "tasks.journal")})
    cluster.start_worker("first")
    for _ in range(5):
        with cluster.mesh() as mesh:
            tasks = [mesh.submit(workload.add, number, 1) for number in range(2_000)]
            tasks[100].result(END_S)
            mesh.close(detach=True)
        with cluster.mesh() as mesh:
            left = [task for task in tasks if task.exception(0) is not None]
            found = [mesh.attach(task.task_id) for task in left]
            assert [type(future.exception(END_S)) for future in found] == [type(None)] * len(left)
