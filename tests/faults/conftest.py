"""Fixtures of the fault tests: a cluster of real processes, and clients that keep logs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from taskmesh import Mesh
from tests.faults.chaos import Chaos
from tests.faults.client import Client
from tests.harness.cluster import ENVIRONMENT, OVERRIDES, Cluster
from tests.harness.keys import Ring
from tests.harness.programs import Programs

Embedded = Callable[..., Client]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session", autouse=True)
def zero_copy_collector() -> None:
    """Starts what pyzmq keeps for the life of the process from the first zero-copy message on."""
    zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Hub and pools as processes; what they wrote is printed when the test fails."""
    cluster = Cluster(Programs(tmp_path, ENVIRONMENT))
    try:
        yield cluster
    finally:
        failed = request.node.stash.get(_FAILED, False)
        cluster.programs.close(tell=failed)
        if failed:
            print(cluster.programs.report())  # noqa: T201  pytest shows it with the failure


@pytest.fixture
def ring(cluster: Cluster, tmp_path: Path) -> Ring:
    """Keys, in use from now on."""
    cluster.ring = Ring(tmp_path / "keys")
    return cluster.ring


@pytest.fixture
def weather(cluster: Cluster) -> Iterator[Callable[[], Chaos]]:
    """Make proxies before the cluster's hub."""
    made: list[Chaos] = []

    def make() -> Chaos:
        made.append(Chaos(cluster.hub.pid, cluster.address))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def connect(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Open meshes to the cluster's hub; closed at the end, cancelling what is left."""
    meshes: list[Mesh] = []

    def open_one(name: str = "client", address: str = "", **overrides: Any) -> Client:
        keys = cluster.keys("client", name)
        meshes.append(Mesh(address or cluster.address, keys=keys, **{**OVERRIDES, **overrides}))
        return Client(meshes[-1], tmp_path, name)

    yield open_one
    for mesh in meshes:
        mesh.close(cancel=True)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    """Open embedded meshes; closed at the end, cancelling what is left."""
    meshes: list[Mesh] = []

    def open_one(workers: int = 2, **overrides: Any) -> Client:
        meshes.append(Mesh(workers=workers, **{**OVERRIDES, **overrides}))
        return Client(meshes[-1], tmp_path, f"client-{len(meshes)}")

    yield open_one
    for mesh in meshes:
        mesh.close(cancel=True)
