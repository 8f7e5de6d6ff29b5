"""Meshes over the inline port: real pending table, real payloads, no processes."""

from collections.abc import Callable, Iterator

import pytest

import taskmesh.executor as executor_module
import taskmesh.mesh as mesh_module
from taskmesh.client.pending_table import PendingTable
from taskmesh.mesh import Mesh
from taskmesh.messages.runs import DoneRun, Failed
from tests.client.inline_port import InlinePort


class Opened:
    """Ports in the order they were opened."""

    def __init__(self) -> None:
        self.ports: list[InlinePort] = []

    def __call__(self, open_tasks: object, config: object, role: str = "", slot: str = "") -> InlinePort:
        port = InlinePort(open_tasks, config)  # type: ignore[arg-type]
        self.ports.append(port)
        return port

    @property
    def last(self) -> InlinePort:
        return self.ports[-1]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Makes every mesh of the test open an inline port."""
    ports = Opened()
    monkeypatch.setattr(mesh_module, "open_port", ports)
    monkeypatch.setattr(executor_module, "open_port", ports)
    return ports


@pytest.fixture
def make_mesh(opened: Opened) -> Iterator[Callable[..., Mesh]]:
    """Makes meshes that the test need not close."""
    meshes: list[Mesh] = []

    def make(**settings: object) -> Mesh:
        served = {"queues": ["default", "slow", "fast", "inner"], "tags": ["gpu"]}
        mesh = Mesh(workers=2, config={"pool": served}, **settings)
        meshes.append(mesh)
        mesh.__enter__()
        return mesh

    yield make
    for mesh in reversed(meshes):
        mesh.close(cancel=True)


@pytest.fixture
def mesh(make_mesh: Callable[..., Mesh]) -> Mesh:
    return make_mesh()


@pytest.fixture
def port(mesh: Mesh, opened: Opened) -> InlinePort:
    return opened.last


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each result that a client is handed."""
    sizes: list[int] = []
    resolve = PendingTable.resolve

    def count(self: PendingTable, done: list[DoneRun], failed: list[Failed]) -> None:
        sizes.extend(len(payload) for run in done for payload in run.payloads)
        resolve(self, done, failed)

    monkeypatch.setattr(PendingTable, "resolve", count)
    return sizes
