"""The probe of an address where no hub answers."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.errors import HubUnreachable
from taskmesh.net.client.probe import describe_listener
from taskmesh.sockets import Context, Rep


@contextlib.contextmanager
def listener(first: bytes) -> Iterator[str]:
    """The address of a program that says this to whoever connects, and then nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve() -> None:
            links = []
            while not over.is_set():
                link, _ = server.accept()
                link.sendall(first)
                links.append(link)
            for link in links:
                link.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            socket.create_connection(server.getsockname()).close()
            thread.join()


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (b"", "is another program's, which speaks no ZeroMQ, or a hub that stands still"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", r"it says b'SSH-2\.0-OpenSSH_9\.2"),
    ],
)
def test_another_program_at_the_address_is_told(first: bytes, told: str):
    with listener(first) as address, pytest.raises(HubUnreachable, match=told):
        Mesh(address, open_timeout=0.5).submit(abs, -1)


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:*", "ipc"])
def test_a_zeromq_socket_that_is_no_hubs_is_told(bind: str, tmp_path: Path):
    with Context() as context, Rep(context) as socket_of_others:
        address = socket_of_others.bind(f"ipc://{tmp_path}/rep" if bind == "ipc" else bind)

        with pytest.raises(HubUnreachable, match="a ZeroMQ socket, but no hub's gateway"):
            Mesh(address, open_timeout=0.5).submit(abs, -1)


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "ipc:///nowhere/hub", "tcp://no.such.host.invalid:1"]
)
def test_where_nothing_listens_nothing_is_told(address: str):
    assert describe_listener(address) == ""
