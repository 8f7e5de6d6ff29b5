"""Hubs and workers for tests: of one test, or shared by those that leave them as they were."""

from collections.abc import Iterator

import pytest

from taskmesh import Mesh
from taskmesh.sockets import Context
from tests.harness.cluster import Cluster
from tests.harness.programs import Programs, shared
from tests.harness.pyzmq_collector import pyzmq_collector  # noqa: F401  a fixture of all tests here
from tests.hosting.intruder import FalsePool, Meet, Peer


@pytest.fixture(scope="module")
def shared_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    yield from shared(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module", params=["tcp", "ipc"])
def shared_address(request: pytest.FixtureRequest, shared_programs: Programs) -> str:
    """The gateway of a hub with one worker of two slots, shared by the tests of a module."""
    bind = "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{shared_programs.folder}/hub"
    address = shared_programs.hub(bind)[1]
    shared_programs.worker(address, "--name", "first", slots=2)
    return address


@pytest.fixture
def mesh(shared_address: str) -> Iterator[Mesh]:
    """A client of the shared hub."""
    with Mesh(shared_address) as mesh:
        yield mesh


@pytest.fixture
def meet(keyed: Cluster) -> Iterator[Meet]:
    """Makes holders of keys who say what they like."""
    peers: list[Peer] = []
    with Context() as context:

        def made(role: str, name: str, folder: str = "") -> Peer:
            peers.append(Peer(context, keyed, role, name, folder))
            return peers[-1]

        yield made
        for peer in peers:
            peer.close()


@pytest.fixture
def false_pool(meet: Meet) -> FalsePool:
    """A worker with a key of its own that is no pool."""
    return FalsePool(meet("worker", "mallory"))
