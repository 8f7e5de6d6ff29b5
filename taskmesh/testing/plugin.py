"""Fixtures and a marker for pytest, which finds them by itself where taskmesh is installed.

Nothing of taskmesh is imported until a test asks for a fixture: most tests of most programs have no tasks.
`-p no:taskmesh` leaves the plugin out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from taskmesh.mesh import InlineMesh, Mesh

MARK = "taskmesh"
WORKERS = 2
"""Slots of a mesh, if its test's marker does not say how many."""


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker."""
    config.addinivalue_line(
        "markers", f"{MARK}(workers={WORKERS}, **settings): settings of the meshes of taskmesh's fixtures"
    )


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of a test's marker; those nearest to the test go first."""
    settings: dict[str, Any] = {"workers": WORKERS}
    for mark in reversed(list(request.node.iter_markers(MARK))):
        settings |= mark.kwargs
    return settings


@pytest.fixture
def taskmesh_inline(request: pytest.FixtureRequest) -> Iterator[InlineMesh]:
    """An open inline mesh, which is the test's own: see `Mesh.inline`."""
    from taskmesh.mesh import Mesh

    mesh = Mesh.inline(**_settings(request))
    with mesh:
        try:
            yield mesh
        finally:
            mesh.close(cancel=True)  # a test that has failed may have left what never ends


@pytest.fixture(scope="session")
def _taskmesh_hubs() -> Iterator[Callable[[dict[str, Any]], str]]:
    """Return the address of a hub with workers by their settings; there is one of each in a session."""
    from taskmesh.mesh import Mesh

    addresses: dict[str, str] = {}
    with ExitStack() as open_hubs:

        def address_of(settings: dict[str, Any]) -> str:
            known = repr(sorted(settings.items()))
            if known not in addresses:
                folder = open_hubs.enter_context(tempfile.TemporaryDirectory(prefix="taskmesh-"))
                hub = Mesh(bind=f"ipc://{folder}/hub", **settings)
                open_hubs.callback(hub.close, cancel=True)
                hub.wait_for_workers()
                addresses[known] = hub.address
            return addresses[known]

        yield address_of


@pytest.fixture
def taskmesh_local(
    request: pytest.FixtureRequest, _taskmesh_hubs: Callable[[dict[str, Any]], str]
) -> Iterator[Mesh]:
    """An open mesh, which is the test's own, over processes that all tests with the same settings share.

    What the test has left running is cancelled at its end. What tasks have left in their processes is there
    in the next test.
    """
    from taskmesh.mesh import Mesh

    mesh = Mesh(_taskmesh_hubs(_settings(request)))
    with mesh:
        try:
            yield mesh
        finally:
            mesh.close(cancel=True)
