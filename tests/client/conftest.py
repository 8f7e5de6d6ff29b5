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


BOTH = {
    f"tests.client.{name}"
    for name in (
        "test_amap",
        "test_callbacks",
        "test_dependencies",
        "test_executor",
        "test_future",
        "test_map",
        "test_map_sharing",
        "test_mesh",
        "test_pipe",
        "test_progress",
        "test_promises",
        "test_submitting",
        "test_task",
        "test_unretrieved",
        "test_wait",
    )
}
"""Modules whose tests run on `Mesh.inline()`, too, unless they look at the port or need its thread."""
THREADED = {
    "test_as_completed_of_others_futures_is_the_stdlibs",
    "test_asyncio_wrap_future_raises_a_runtime_error_for_stop_iteration",
    "test_asyncio_wrap_future_works",
    "test_asyncios_own_wait_is_refused_with_the_cure_and_the_cure_works",
    "test_close_by_a_callback_does_not_hang",
    "test_executor_works_in_an_event_loop",
    "test_futures_are_told_by_whoever_waits_for_them",
    "test_map_goes_on_while_a_callback_waits",
    "test_map_in_a_callback_works_while_the_delivery_thread_is_busy_with_it",
    "test_map_is_waited_for_by_a_clean_exit",
    "test_mesh_is_current_in_its_own_callbacks",
    "test_result_is_rebuilt_once_for_two_threads",
    "test_result_whose_rebuilding_blocks_blocks_only_its_own_callers",
    "test_status_and_events_are_the_hubs",
    "test_stdlib_as_completed_yields_each_once",
    "test_stdlib_wait_never_returns_early",
    "test_wait_of_others_futures_is_the_stdlibs",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    test = metafunc.function.__name__
    if "make_mesh" in metafunc.fixturenames and metafunc.module.__name__ in BOTH and test not in THREADED:
        sees_port = "port" in metafunc.fixturenames or "opened" in argnames(metafunc)
        places = ["threads"] if sees_port else ["threads", "inline"]
        metafunc.parametrize("place", places, indirect=True)


def argnames(metafunc: pytest.Metafunc) -> tuple[str, ...]:
    return metafunc.definition._fixtureinfo.argnames


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "threads")


@pytest.fixture
def make_mesh(opened: Opened, place: str) -> Iterator[Callable[..., Mesh]]:
    """Makes meshes that the test need not close."""
    meshes: list[Mesh] = []

    def made(**settings: object) -> Mesh:
        served = {"queues": ["default", "slow", "fast", "inner"], "tags": ["gpu"]}
        make = Mesh.inline if place == "inline" else Mesh
        mesh = make(workers=2, config={"pool": served}, **settings)
        meshes.append(mesh)
        mesh.__enter__()
        return mesh

    yield made
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
