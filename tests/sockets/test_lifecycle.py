from __future__ import annotations

from collections.abc import Callable

import pytest
import zmq

from taskmesh.errors import TaskMeshError
from taskmesh.sockets import (
    Context,
    EndpointError,
    InvalidCombination,
    Pub,
    Pull,
    Push,
    SocketClosed,
    UnsupportedLibrary,
)
from taskmesh.sockets import errors as socket_errors
from taskmesh.sockets.library import check_library
from tests.waiting import wait_until

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


def test_inproc_name_can_be_used_by_another_role_after_close(context: Context) -> None:
    with Push(context) as push, Pull(context) as pull:
        pull.connect(push.bind("inproc://again"))
    with Pub(context) as pub:
        assert pub.bind("inproc://again") == "inproc://again"


def test_wrong_pair_is_refused_over_inproc_whoever_comes_first(context: Context) -> None:
    with Push(context) as push, Pub(context) as pub, Push(context) as other:
        push.bind("inproc://first")
        with pytest.raises(
            InvalidCombination, match="PUB cannot be connected to PUSH at inproc://first; it can to SUB, XSUB"
        ):
            pub.connect("inproc://first")
        other.connect("inproc://later")
        with pytest.raises(InvalidCombination):
            pub.bind("inproc://later")


def test_a_bind_that_fails_leaves_no_trace(context: Context) -> None:
    with context.raw.socket(zmq.PULL) as foreign, Push(context) as push, Pull(context) as pull:
        foreign.bind("inproc://foreign")
        with pytest.raises(EndpointError, match="somebody listens there"):
            pull.bind("inproc://foreign")

        push.connect("inproc://foreign")
        push.send(b"x", timeout=5)
        assert foreign.recv() == b"x"


def test_a_closed_socket_says_so(context: Context) -> None:
    push, pull = Push(context), Pull(context)
    pull.connect(push.bind("inproc://closed"))
    push.close()
    push.close()
    pull.close()

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
