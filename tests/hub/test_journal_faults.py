"""The place of a hub's journal fails while its clients submit, and hub and clients are gone soon after.

What was accepted before, meanwhile and afterwards is reached by its id at the next hub, whatever the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from taskmesh import Mesh
from taskmesh.config import HubConfig
from taskmesh.errors import ConfigError
from taskmesh.hub.journal.entries import changes_of
from taskmesh.hub.journal.file import FileJournal
from taskmesh.hub.journal.journal import hub_journal
from taskmesh.messages.journal_entries import CHUNK, JournalChunk, key_of
from taskmesh.messages.runs import Run
from tests.harness.cluster import SETTINGS, Cluster
from tests.harness.programs import Programs
from tests.harness.redis_server import RedisServer, serving
from tests.harness.waiting import wait_until
from tests.hosting import workload

END_S = 30
TASKS = 30
LIVES = 4

Fault = Callable[[RedisServer], AbstractContextManager[None]]


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    """F31."""
    server.kill()
    yield
    server.start()


@contextmanager
def frozen(server: RedisServer) -> Iterator[None]:
    """F32."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@contextmanager
def emptied(server: RedisServer) -> Iterator[None]:
    """F34: somebody takes it for a cache."""
    with server.client() as client:
        client.flushall()
    yield


@contextmanager
def out_of_memory(server: RedisServer) -> Iterator[None]:
    """F35."""
    with server.client() as client:
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


def has_settled(mesh: Mesh) -> bool:
    """Return True once the journal has all that it is to have."""
    journal = mesh.status()["journal"]
    return bool(journal["state"] == "connected" and journal["waiting"] == 0)


def assert_the_next_hub_has(cluster: Cluster, settings: dict[str, str], expected: dict[str, int]) -> None:
    """Kill the hub, start another one with a pool, and fetch these results by their tasks' ids."""
    cluster.hub.kill()
    cluster.start_hub(settings)
    cluster.start_worker("first")
    with cluster.mesh() as mesh:
        found = {task_id: mesh.attach(task_id) for task_id in expected}
        assert {task_id: task.result(END_S) for task_id, task in found.items()} == expected


@pytest.mark.fault
@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", [killed, frozen, emptied, out_of_memory])
def test_what_was_accepted_before_and_during_a_fault_of_redis_outlives_hub_and_client(
    programs: Programs, tmp_path: Path, fault: Fault
):
    for server in serving(tmp_path, "--appendonly", "yes"):
        settings = {**SETTINGS, "TASKMESH_JOURNAL": server.url}
        cluster = Cluster(programs)
        cluster.start_hub(settings)
        with cluster.mesh() as mesh:
            before = [mesh.submit(workload.add, number, 1) for number in range(TASKS)]
            mesh.flush()
            with fault(server):
                during = [mesh.submit(workload.add, number, 2) for number in range(TASKS)]
                if fault is not emptied:
                    wait_until(lambda: not has_settled(mesh), END_S, "the hub notices")
                    assert not any(task.accepted for task in during)
            mesh.flush()
            wait_until(lambda: has_settled(mesh), END_S, "all is written")
            expected = {task.task_id: number + 1 for number, task in enumerate(before)}
            expected |= {task.task_id: number + 2 for number, task in enumerate(during)}
            mesh.close(detach=True)
        assert_the_next_hub_has(cluster, settings, expected)


@pytest.mark.fault
@pytest.mark.timeout(60)
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("kind", ["file", "redis"])
def test_a_graph_goes_on_through_deaths_of_hub_and_client(programs: Programs, tmp_path: Path, kind: str):
    """F12: at any point, several times; each node has its outcome, by its id, in another client."""
    chance = Random(kind)
    servers = serving(tmp_path, "--appendonly", "yes") if kind == "redis" else iter([None])
    for server in servers:
        journal = server.url if server is not None else str(tmp_path / "tasks.journal")
        settings = {**SETTINGS, "TASKMESH_JOURNAL": journal}
        cluster = Cluster(programs)
        cluster.start_hub(settings)
        cluster.start_worker("first")
        expected: dict[str, int] = {}
        for _ in range(LIVES):
            with cluster.mesh() as mesh:
                kept = mesh.with_options(keep=600.0)
                layer = [kept.submit(workload.add, number, 1) for number in range(TASKS)]
                for depth in range(3):
                    layer = [kept.submit(workload.add, task, 1) for task in layer]
                    expected |= {task.task_id: number + depth + 2 for number, task in enumerate(layer)}
                mesh.flush()
                one = chance.choice(layer)
                wait_until(one.done, END_S, "some have ended")
                mesh.close(detach=True)
            cluster.hub.kill()
            cluster.start_hub(settings)
        with cluster.mesh() as mesh:
            found = {task_id: mesh.attach(task_id) for task_id in expected}
            assert {task_id: task.result(END_S) for task_id, task in found.items()} == expected


def test_a_journal_whose_tasks_lack_their_specs_is_refused_with_the_cure(tmp_path: Path):
    path = tmp_path / "tasks.journal"
    with closing(FileJournal(path)) as store:
        store.open()
        chunk = JournalChunk(1, "", "", 0.0, [Run(7, 0, [1], [b""])])
        store.write(1, changes_of({key_of(CHUNK, 1): chunk}))

    with pytest.raises(ConfigError, match=r"(?s)1 of its entries are missing.*move it away"):
        hub_journal(HubConfig(journal=str(path))).__enter__()
