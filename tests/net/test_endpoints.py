"""Where hubs listen, and which addresses are refused."""

import socket

import pytest

from taskmesh.errors import ConfigError, InsecureBind
from taskmesh.net.endpoints import Endpoints, check_local, refuse_taken, tcp_parts
from taskmesh.sockets import EndpointError


def test_collector_and_control_are_on_the_next_two_ports():
    found = Endpoints.of("tcp://127.0.0.1:5550")

    assert (found.collector, found.control) == ("tcp://127.0.0.1:5551", "tcp://127.0.0.1:5552")
    assert found.lane("40000") == "tcp://127.0.0.1:40000"


def test_over_ipc_they_are_beside_the_gateway():
    found = Endpoints.of("ipc:///run/mesh/hub")

    assert (found.collector, found.control) == (
        "ipc:///run/mesh/hub.collector",
        "ipc:///run/mesh/hub.control",
    )
    assert found.lane("ipc:///run/mesh/hub.lane-7") == "ipc:///run/mesh/hub.lane-7"


def test_an_address_of_version_6_keeps_its_brackets():
    assert Endpoints.of("tcp://[::1]:5550").control == "tcp://[::1]:5552"


@pytest.mark.parametrize(
    "wrong", ["127.0.0.1:5550", "tcp://127.0.0.1", "http://127.0.0.1:1", "tcp://h:x", "ipc://"]
)
def test_what_is_no_address_is_told_what_one_looks_like(wrong):
    with pytest.raises(ConfigError, match="tcp://HOST:PORT"):
        Endpoints.of(wrong)


@pytest.mark.parametrize("wrong", ["tcp://127.0.0.1:65534", "ipc://" + "x" * 91])
def test_addresses_without_room_for_the_others_are_refused(wrong):
    with pytest.raises(ConfigError, match="take"):
        Endpoints.of(wrong)


@pytest.mark.parametrize(
    "local",
    ["tcp://127.0.0.1:1", "tcp://127.8.9.10:1", "tcp://localhost:1", "tcp://[::1]:1", "ipc://anywhere"],
)
def test_addresses_of_this_machine_are_allowed(local):
    check_local(local, "binding")

    assert Endpoints.of(local).gateway == local


@pytest.mark.parametrize(
    "far",
    ["tcp://0.0.0.0:1", "tcp://*:1", "tcp://example.org:1", "tcp://[::]:1", "tcp://127.0.0.1.example.org:1"],
)
def test_addresses_beyond_this_machine_are_refused(far):
    with pytest.raises(InsecureBind, match="without keys"):
        check_local(far, "binding")
    check_local(far, "binding", keys=True)


def test_host_and_port_of_a_tcp_endpoint():
    assert tcp_parts("tcp://[::1]:80") == ("[::1]", 80)


def test_an_ipc_path_where_somebody_listens_is_not_taken_over(tmp_path):
    path = tmp_path / "hub"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        taken.bind(str(path))
        taken.listen()
        with pytest.raises(EndpointError, match="somebody listens there"):
            refuse_taken(f"ipc://{path}")

    refuse_taken(f"ipc://{path}")  # what a killed hub has left behind is no obstacle
    assert path.exists()
