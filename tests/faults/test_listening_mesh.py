"""A mesh that listens keeps the promises of a hub program: the faults of pools, links and networks once more.

The tests are those of the hub program. Here its place is taken by the mesh that submits the tasks, in this
process, with no slots of its own. What it adds: the program itself is killed, and another one takes over.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from taskmesh import Mesh
from tests.faults.client import Client
from tests.faults.test_pools import (  # noqa: F401
    test_F02_supervisor_killed,
    test_F03_whole_pool_killed_and_restarted,
    test_F04_all_pools_killed_and_none_for_two_leases,
    test_F05_rolling_restart_by_sigterm,
    test_F06_drain_cut_short_by_sigkill,
    test_F07_supervisor_frozen_for_half_a_lease,
    test_F08_pool_frozen_for_two_leases,
)
from tests.faults.test_weather import (  # noqa: F401
    test_F20_connections_reset_twenty_times_with_keys,
    test_F21_half_open,
    test_F22_one_way_partition,
    test_F23_flapping_link,
    test_F25_latency_of_200_ms_and_links_that_overtake_each_other,
    test_F27_a_client_that_reads_a_drip,
    test_F28_byte_flips,
    test_F28_links_that_libzmq_gives_up_are_dialled_anew,
)
from tests.harness.cluster import ENVIRONMENT, OVERRIDES, Cluster
from tests.harness.ports import lasting_address
from tests.harness.program import Program
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]


DRIVER = """
import sys
from taskmesh import Mesh
from tests.faults.workload import span_after
mesh = Mesh(bind=sys.argv[1], workers=0)
mesh.wait_for_workers(2, 30)
futures = [mesh.submit(span_after, sys.argv[2]) for _ in range(20)]
mesh.flush(30)
print("submitted", flush=True)
futures[0].result()
"""
"""A program that listens, submits tasks that wait at a gate, and is killed."""


class HubHere:
    """The hub in this process, as tests look at that of a program."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.pid = os.getpid()

    def events(self, stream: str) -> list[Mapping[str, Any]]:
        return [{**event, "event": event["kind"]} for event in self.mesh.events(limit=10_000)]

    def rss(self) -> int:
        return int(psutil.Process().memory_info().rss)


class ListeningCluster(Cluster):
    """Pools as processes; the hub is a mesh in this one, which is closed at the end."""

    mesh: Mesh | None = None

    def start_hub(self, env: Mapping[str, str] | None = None, **_: object) -> Any:
        keys = str(self.ring.hub.path) if self.ring is not None else ""
        asked = {name.removeprefix("TASKMESH_").lower(): float(value) for name, value in (env or {}).items()}
        self.mesh = Mesh(
            bind=self.address or lasting_address(),
            workers=0,
            keys=keys,
            **cast("dict[str, Any]", {**OVERRIDES, **asked}),
        )
        self.mesh.status()
        self.address = self.mesh.address
        self.hub = cast(Program, HubHere(self.mesh))
        return self.hub


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ListeningCluster]:
    cluster = ListeningCluster(Programs(tmp_path, ENVIRONMENT))
    try:
        yield cluster
    finally:
        if cluster.mesh is not None:
            cluster.mesh.close(cancel=True)
        cluster.programs.close()


@pytest.fixture
def connect(cluster: ListeningCluster, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """The mesh that listens as a client; with an address, another one elsewhere."""
    with contextlib.ExitStack() as others:

        def open_one(name: str = "client", address: str = "") -> Client:
            assert cluster.mesh is not None
            if not address:
                return Client(cluster.mesh, tmp_path, name)
            other = Mesh(address, keys=cluster.keys("client", name), **cast("dict[str, Any]", OVERRIDES))
            others.callback(other.close, cancel=True)
            return Client(other, tmp_path, name)

        yield open_one


@pytest.mark.smoke
def test_a_program_that_is_killed_takes_nothing_down_and_its_pools_serve_the_next_one(
    cluster, connect, tmp_path
):
    """Two pools run its tasks to their ends; what they return is nobody's any more."""
    cluster.address = lasting_address()
    gate = tmp_path / "gate"
    driver = cluster.programs.launch("driver", ["-c", DRIVER, cluster.address, str(gate)])
    pools = cluster.start_workers(2, slots=1)
    wait_until(lambda: "submitted" in driver.text(), 30)

    driver.kill()
    gate.touch()
    cluster.start_hub()
    client = connect()

    assert cluster.mesh.wait_for_workers(2, 30) == 2
    client.submit_ordinary(200)
    client.wait_all()
    client.assert_clean(repeated=[])
    assert all(pool.alive for pool in pools)
