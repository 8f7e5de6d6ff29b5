"""Runs each conformance test over the transports and against the peers that it names, else over all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

for module in ("synchrony", "rig"):
    pytest.register_assert_rewrite(f"tests.conformance.{module}")

from taskmesh.sockets import Context  # noqa: E402
from tests.conformance.rig import Rig  # noqa: E402

TRANSPORTS = ("tcp", "ipc", "inproc")
PEERS = ("typed", "raw")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "transports(*names): the transports that a clause applies to")
    config.addinivalue_line("markers", "clauses(*ids): the clauses that a test of several roles proves")
    config.addinivalue_line("markers", "peers(*names): what stands at the other end, `typed` or `raw`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rig" not in metafunc.fixturenames:
        return
    transports = metafunc.definition.get_closest_marker("transports")
    peers = metafunc.definition.get_closest_marker("peers")
    metafunc.parametrize("transport", transports.args if transports else TRANSPORTS)
    metafunc.parametrize("peer", peers.args if peers else PEERS)


@pytest.fixture(scope="session", autouse=True)
def zero_copy_collector() -> None:
    """Starts what pyzmq keeps for the life of the process from the first zero-copy message on."""
    zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)


@pytest.fixture
def rig(transport: str, peer: str, tmp_path: Path) -> Iterator[Rig]:
    with Context() as context:
        rig = Rig(context, transport, tmp_path, raw_peers=peer == "raw")
        try:
            yield rig
        finally:
            rig.close()
