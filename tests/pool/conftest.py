"""Meshes whose slots have options that only programs take."""

from collections.abc import Callable
from functools import partial

import pytest

import taskmesh.mesh as mesh_module
from taskmesh import Mesh
from taskmesh.hosting.transport import open_port
from taskmesh.pool.slots.fork_server_client import SlotOptions


@pytest.fixture
def mesh_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mesh]:
    """Make meshes of so many slots with options."""

    def make(workers: int, **options: object) -> Mesh:
        port = partial(open_port, options=SlotOptions(**options))
        monkeypatch.setattr(mesh_module, "open_port", port)
        return Mesh(workers=workers)

    return make
