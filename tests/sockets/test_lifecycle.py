from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from taskmesh.errors import TaskMeshError
from taskmesh.sockets import (
    Context,
    EndpointError,
    Pub,
    Pull,
    Push,
    SocketClosed,
    Sub,
    UnsupportedLibrary,
)
from taskmesh.sockets import errors as socket_errors
from taskmesh.sockets.libzmq import check_library
from tests.harness import obstacles
from tests.harness.waiting import wait_until

Address = Callable[[str], str]


def test_bind_tells_the_port_that_a_wildcard_became(context: Context) -> None:
    with Push(context) as push:
        endpoint = push.bind("tcp://127.0.0.1:*")

        assert endpoint == push.endpoint
        assert int(endpoint.rpartition(":")[2]) > 0


def test_endpoint_before_bind_is_an_error_that_names_the_cure(context: Context) -> None:
    with Push(context) as push, pytest.raises(EndpointError, match=r"bind\(\) or connect\(\)"):
        push.endpoint  # noqa: B018


@pytest.mark.parametrize("verb", ["bind", "connect", "unbind", "disconnect"])
@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:5555", "tcp://127.0.0.1", "smoke://x", "tcp://127.0.0.1:port"]
)
def test_malformed_endpoints_are_refused_with_the_form_they_need(
    context: Context, verb: str, endpoint: str
) -> None:
    with Push(context) as push, pytest.raises(EndpointError, match=f"cannot {verb} '{endpoint}'"):
        getattr(push, verb)(endpoint)


@pytest.mark.parametrize("verb", ["bind", "connect"])
def test_a_port_beyond_the_highest_is_refused(context: Context, verb: str) -> None:
    with Push(context) as push, pytest.raises(EndpointError, match="no tcp port 65536; the highest is 65535"):
        getattr(push, verb)("tcp://127.0.0.1:65536")


def test_a_taken_endpoint_is_refused(context: Context, transport: str, address: Address) -> None:
    with Push(context) as push, Push(context) as second:
        endpoint = push.bind(address(transport))
        if transport == "ipc":  # libzmq takes the path over: the newest binder gets new connections
            assert second.bind(endpoint) == endpoint
        else:
            with pytest.raises(EndpointError, match="somebody listens there"):
                second.bind(endpoint)


@pytest.mark.parametrize("kind", obstacles.KINDS)
def test_what_is_at_a_path_and_is_no_socket_is_left_alone(
    context: Context, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "precious"
    obstacles.put(kind, path)
    before = os.lstat(path)

    with (
        Push(context) as push,
        pytest.raises(EndpointError, match=f"is {kind} and no socket; choose another"),
    ):
        push.bind(f"ipc://{path}")

    assert os.path.samestat(before, os.lstat(path))


def test_a_path_that_libzmq_would_cut_off_is_refused(context: Context, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with Push(context) as push, pytest.raises(EndpointError, match="no file can have that name"):
        push.bind(f"ipc://{tmp_path}/precious\0")

    assert (tmp_path / "precious").is_file()


def test_a_path_whose_socket_was_killed_is_bound_again(context: Context, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{tmp_path}/left")
    with Push(context) as push:
        assert push.bind(f"ipc://{tmp_path}/left") == f"ipc://{tmp_path}/left"


def test_unbind_and_disconnect_end_the_link(context: Context, transport: str, address: Address) -> None:
    with Push(context) as push, Pull(context) as pull:
        endpoint = push.bind(address(transport))
        pull.connect(endpoint)
        push.send(b"x", timeout=5)
        assert pull.recv(5) == b"x"

        pull.disconnect(endpoint)
        with pytest.raises(EndpointError):
            pull.disconnect(endpoint)
        push.unbind(endpoint)
        wait_until(lambda: not push.try_send(b"y"))
        with pytest.raises(EndpointError):
            push.unbind(endpoint)


def test_the_file_of_an_ipc_endpoint_is_its_owner_s_alone_whatever_the_umask(
    context: Context, tmp_path: Path
) -> None:
    former = os.umask(0)
    try:
        with Push(context) as push:
            push.bind(f"ipc://{tmp_path}/mine")
            mode = (tmp_path / "mine").stat().st_mode
        assert os.umask(0) == 0  # the program's own is back
    finally:
        os.umask(former)

    assert stat.S_IMODE(mode) == 0o700


@pytest.mark.parametrize("leave", ["close", "unbind", "context"])
def test_the_file_of_an_ipc_endpoint_goes_with_the_socket_that_made_it(tmp_path: Path, leave: str) -> None:
    context = Context()
    push = Push(context)
    endpoint = push.bind(f"ipc://{tmp_path}/mine")
    assert os.listdir(tmp_path) == ["mine"]
    if leave == "unbind":
        push.unbind(endpoint)
        assert os.listdir(tmp_path) == []
    elif leave == "close":
        push.close()

    context.close(force=True)

    assert os.listdir(tmp_path) == []


def test_a_file_that_another_socket_has_put_in_its_place_stays(context: Context, tmp_path: Path) -> None:
    with Push(context) as successor, Pull(context) as pull:
        with Push(context) as push:
            endpoint = push.bind(f"ipc://{tmp_path}/shared")
            assert successor.bind(endpoint) == endpoint

        pull.connect(endpoint)
        successor.send(b"x", timeout=5)
        assert pull.recv(5) == b"x"
    assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from 3.12 on: there are threads
def test_a_forked_child_leaves_the_file_of_its_parent(context: Context, tmp_path: Path) -> None:
    with Push(context) as push:
        push.bind(f"ipc://{tmp_path}/parent")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                push.close()
            os._exit(0)  # noqa: TID251  a child that never returns
        _, status = os.waitpid(child, 0)

        assert status == 0
        assert os.listdir(tmp_path) == ["parent"]


def test_the_folder_that_a_wildcard_made_goes_too(context: Context) -> None:
    with Push(context) as push:
        path = Path(push.bind("ipc://*").removeprefix("ipc://"))
        assert path.is_socket()
    wait_until(lambda: not path.parent.exists())  # libzmq's own work, in its thread


def test_inproc_name_can_be_used_by_another_role_after_close(context: Context) -> None:
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind("inproc://again"))
    with Pub(context) as pub:
        assert pub.bind("inproc://again") == "inproc://again"


def test_a_bind_that_fails_leaves_no_trace(context: Context) -> None:
    with context.raw.socket(zmq.PULL) as foreign, Push(context) as push, Pull(context) as pull:
        foreign.bind("inproc://foreign")
        with pytest.raises(EndpointError, match="somebody listens there"):
            pull.bind("inproc://foreign")

        push.connect("inproc://foreign")
        push.send(b"x", timeout=5)
        assert foreign.recv() == b"x"


def test_a_closed_socket_says_so(context: Context) -> None:
    push, pull, sub = Push(context), Pull(context), Sub(context)
    pull.connect(push.bind("inproc://closed"))
    push.close()
    push.close()
    pull.close()
    sub.close()

    assert push.closed
    for call in (
        lambda: push.send(b"x"),
        lambda: push.send(b"x", 1),
        lambda: push.try_send(b"x"),
        lambda: push.send_parts([b"x", b"y"]),
        lambda: pull.recv(1),
        pull.recv,
        pull.recv_many,
        pull.recv_parts,
        lambda: push.bind("inproc://other"),
        lambda: push.connect("inproc://other"),
        push.fileno,
        lambda: push.endpoint,
        lambda: sub.subscribe(b""),
    ):
        with pytest.raises(SocketClosed):
            call()


def test_an_old_libzmq_is_refused_with_the_cure() -> None:
    check_library((4, 3, 5))
    check_library((5, 0, 0))
    with pytest.raises(UnsupportedLibrary, match=r"libzmq >= 4\.3\.5.*4\.3\.4; install pyzmq 27"):
        check_library((4, 3, 4))
    assert issubclass(UnsupportedLibrary, ImportError)


def test_every_socket_error_is_a_taskmesh_error() -> None:
    values = vars(socket_errors).values()
    errors = [
        value for value in values if isinstance(value, type) and value.__module__ == socket_errors.__name__
    ]

    assert len(errors) > 10
    assert all(issubclass(error, TaskMeshError) for error in errors)
