from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import zmq

from taskmesh.sockets import Context

TRANSPORTS = ("tcp", "ipc", "inproc")


@pytest.fixture(scope="session", autouse=True)
def zero_copy_collector() -> None:
    """Starts what pyzmq keeps for the life of the process from the first zero-copy message on."""
    zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)


@pytest.fixture
def context() -> Iterator[Context]:
    """A context that ends with the test, which fails if it cannot end."""
    with Context() as context:
        yield context


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address(tmp_path: Path) -> Callable[[str], str]:
    """Endpoints to bind, never used before; ephemeral ports for tcp."""

    def make(transport: str) -> str:
        if transport == "tcp":
            return "tcp://127.0.0.1:*"
        if transport == "ipc":
            return f"ipc://{tmp_path}/{uuid4().hex[:8]}"
        return f"inproc://{uuid4().hex}"

    return make
