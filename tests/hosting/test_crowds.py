"""Crowds: a thousand pools with keys at one hub; ten thousand that come and go.

Pools are light: sessions, lanes and beats over sockets of their own with CURVE, five hundred in a process,
without slots. What is measured is the hub. `make soak` runs them in full, every run with fewer.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from taskmesh.link.endpoints import Endpoints, Target
from taskmesh.messages import mesh_messages as m
from taskmesh.security.keys import credentials_of
from taskmesh.sockets import Context
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.program import environment
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload
from tests.hosting.crowd import LightPool
from tests.hosting.intruder import Peer

LEASE = 10.0
STORM_S = 10.0
BEATS_CPU = 0.15
MEMORY = 200 << 20
WATCHED_S = 10.0

size = pytest.mark.parametrize(
    "count", [40, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(170)])]
)
times = pytest.mark.parametrize(
    "count", [200, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)


class Crowd:
    """A process with many pools."""

    def __init__(self, folder: Path, address: str, keys: str, prefix: str, count: int, what: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hosting.crowd", address, keys, prefix, str(count), what],
            env=environment(),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.communicate("end\n", timeout=60)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def hub(programs: Programs, ring: Ring) -> Cluster:
    """A hub with keys, and no pool."""
    keyed = Cluster.keyed(programs, ring)
    keyed.pools["first"].end()
    (Path(keyed.client) / "mesh.secret").unlink()  # light pools sign nothing
    return keyed


@pytest.fixture
def crowds(hub: Cluster, tmp_path: Path, count: int) -> Iterator[list[Crowd]]:
    """Half of them keep their tasks, half of them answer."""
    keys = hub.ring.peer("worker", "crowd")
    found = [Crowd(tmp_path, hub.address, keys, what, count // 2, what) for what in ("hold", "answer")]
    yield found
    for crowd in found:
        crowd.end()


def pools(mesh) -> int:
    return len(mesh.status(timeout=20)["pools"])


@size
def test_many_pools_join_beat_and_half_of_them_die(
    hub: Cluster, crowds: list[Crowd], count: int, record_property
):
    process = psutil.Process(hub.hub.pid)
    assert [crowd.line() for crowd in crowds] == ["made", "made"]
    with hub.mesh() as mesh:
        for crowd in crowds:
            crowd.go()
        storm = max(float(crowd.line().removeprefix("joined ")) for crowd in crowds)
        assert pools(mesh) == count
        record_property("storm_s", storm)

        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        wait_until(lambda: time.monotonic() - began > WATCHED_S, WATCHED_S + 1, "ten seconds of beats")
        cpu = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        record_property("beats_cpu", cpu)
        assert pools(mesh) == count, "nobody was given up"

        futures = [mesh.submit(workload.note, "never", "run") for _ in range(count)]
        kept = count // 2
        wait_until(lambda: sum(future.done() for future in futures) >= count - kept, 20)
        memory = process.memory_info().rss
        record_property("memory_mb", memory >> 20)
        killed = time.monotonic()
        crowds[0].process.kill()
        assert [future.result(LEASE + 5) for future in futures] == [None] * count
        again = time.monotonic() - killed
        record_property("requeued_s", again)
        wait_until(lambda: pools(mesh) == count - kept, LEASE)

    figures = f"storm {storm:.1f} s, beats {cpu:.1%} of a core, {memory >> 20} MB, requeued in {again:.1f} s"
    print(figures)  # noqa: T201  pytest shows it with -s or a failure
    assert storm <= STORM_S, figures
    assert cpu < BEATS_CPU, figures
    assert memory < MEMORY, figures
    assert again <= LEASE + 5, figures


@times
def test_clients_and_pools_that_come_and_go_leave_nothing(hub: Cluster, count: int):
    """Half of each say goodbye, half of each just go."""
    process = psutil.Process(hub.hub.pid)
    worker = credentials_of(hub.ring.peer("worker", "guest"), "worker")
    assert worker is not None
    way = Target(Endpoints.of(hub.address), worker.hub_keys[0])
    folder = hub.ring.peer("client", "guest")
    with hub.mesh() as mesh, Context(max_sockets=4096) as context:
        mesh.status()
        files, most = process.num_fds(), 0
        for number in range(count // 2):
            leaves = number % 2 == 0
            pool = LightPool(context, way, worker, f"guest-{number % 50}", answers=True)
            pool._number = number + 1
            pool.dial()
            client = Peer(context, hub, "client", "guest", folder)
            assert isinstance(client.ask(m.ClientHello(1000 + number, 0)), m.ClientWelcome)

            def welcomed(pool: LightPool = pool) -> bool:
                pool.step(time.monotonic())
                return bool(pool.session)

            wait_until(welcomed, 20)
            if leaves:
                client.say(m.ClientBye())
                pool.say(m.Bye(pool.epoch, pool.session))
            client.close()
            pool.close()
            most = max(most, process.num_fds())
        wait_until(lambda: process.num_fds() <= files + 3, 30, "files back to what they were")
        wait_until(lambda: not pools(mesh), LEASE + 10)
        status = mesh.status()
        assert len(status["clients"]) <= 1 + count // 4, "who said goodbye is forgotten at once"
        if count > 1000:
            wait_until(lambda: len(mesh.status()["clients"]) == 1, 90, "who just went is forgotten too")
        assert most < files + 400, "while they come and go, files go back all the time"
