"""Where hubs listen, and which addresses are refused."""

import contextlib
import socket
import tempfile

import pytest

from taskmesh.config import Config, MeshConfig
from taskmesh.errors import ConfigError, InsecureBind
from taskmesh.hub.embedded_hub import LocalLinks
from taskmesh.hub.lanes import bind_path
from taskmesh.hub.listening_hub import listen
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.link.endpoints import (
    Endpoints,
    check_dialled,
    check_local,
    private_folder,
    refuse_taken,
    tcp_parts,
)
from taskmesh.mesh import Mesh
from taskmesh.pool.sockets import PoolSockets
from taskmesh.sockets import Context, EndpointError, Pull, Push
from taskmesh.system.loop import Loop
from tests.harness import obstacles


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


def test_without_a_folder_for_sockets_the_cure_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="set TMPDIR"):
        private_folder()

    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="set TMPDIR"):
        private_folder()
    assert list(deep.iterdir()) == []


def test_an_address_of_version_6_keeps_its_brackets():
    assert Endpoints.of("tcp://[::1]:5550").control == "tcp://[::1]:5552"


@pytest.mark.parametrize(
    "wrong", ["127.0.0.1:5550", "tcp://127.0.0.1", "http://127.0.0.1:1", "tcp://h:x", "ipc://", "tcp://h$t:1"]
)
def test_what_is_no_address_is_told_what_one_looks_like(wrong):
    with pytest.raises(ConfigError, match="tcp://HOST:PORT"):
        Endpoints.of(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "TCP://127.0.0.1:41000",
        "tcp://127.0.0.1:41000/",
        "tcp://127.0.0.1:41000?x=1",
        "tcp://127.0.0.1:41000#x",
        "tcp://127.0.0.1:41000#",
        "tcp://user:secret@127.0.0.1:41000",
        "tcp://127.0.0.1:041000",
        "tcp://127.0.0.1:41000\n",
    ],
)
def test_more_than_an_address_is_told_what_the_address_is(wrong):
    with pytest.raises(ConfigError, match=r"is not an address: write tcp://127\.0\.0\.1:41000\n"):
        Endpoints.of(wrong)
    with pytest.raises(ConfigError):
        check_local(wrong, "binding")


@pytest.mark.parametrize("wrong", ["ipc://a\0b", "ipc://\udc80"])
def test_a_path_that_is_no_text_is_refused(wrong):
    with pytest.raises(ConfigError, match="must be text"):
        Endpoints.of(wrong)


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [("tcp://127.0.0.1:0", "its ready line names"), ("tcp://*:1", "name its machine")],
)
def test_addresses_for_hubs_alone_are_not_dialled(wrong, cure):
    assert Endpoints.of(wrong).gateway == wrong
    with pytest.raises(ConfigError, match=cure):
        check_dialled(wrong, keys=True)


@pytest.mark.parametrize("good", ["tcp://127.0.0.1:1", "tcp://LocalHost:1", "tcp://[::1]:1", "ipc://@x y"])
def test_addresses_of_hubs_are_dialled(good):
    check_dialled(good)


@pytest.mark.parametrize("several", ["tcp://a:1,tcp://b:1", "tcp://a:1, ", "ipc:///a,ipc:///b"])
def test_a_list_of_addresses_is_refused_with_the_cure(several):
    with pytest.raises(ConfigError, match=r"a mesh has one hub.*several meshes"):
        Endpoints.of(several)
    with pytest.raises(ConfigError, match="a mesh has one hub"):
        Mesh(several).status()
    assert Endpoints.of("ipc:///a,b").gateway == "ipc:///a,b", "a path may have a comma"


def test_who_dials_checks_the_address_first():
    config = Config(mesh=MeshConfig(address="tcp://127.0.0.1:0", open_timeout=0.1))

    with pytest.raises(ConfigError, match="cannot be dialled"):
        Mesh(config=config).status()
    with Context() as context, pytest.raises(ConfigError, match="cannot be dialled"):
        PoolSockets(context, Loop(), config, "pool")


def test_who_finds_a_port_taken_is_told_how_to_get_any():
    with Context() as context, Pull(context) as first, Pull(context) as second:
        first.bind("tcp://127.0.0.1:0")
        with pytest.raises(EndpointError, match="port 0 for any"):
            second.bind(first.endpoint)


@pytest.mark.parametrize("wrong", ["tcp://127.0.0.1:65534", "ipc://" + "x" * 91])
def test_addresses_without_room_for_the_others_are_refused(wrong):
    with pytest.raises(ConfigError, match="choose"):
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


@pytest.mark.parametrize("kind", obstacles.KINDS)
def test_what_is_no_socket_is_left_alone(tmp_path, kind):
    path = tmp_path / "hub"
    obstacles.put(kind, path)

    with pytest.raises(EndpointError, match=f"is {kind} and no socket; choose another path"):
        refuse_taken(f"ipc://{path}")


def test_a_socket_of_another_kind_is_left_alone(tmp_path):
    path = tmp_path / "hub"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(EndpointError, match=r"no hub's is there .*choose another path"):
            refuse_taken(f"ipc://{path}")


def test_a_listener_whose_queue_is_full_is_one_that_listens(tmp_path):
    path = tmp_path / "hub"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken, contextlib.ExitStack() as waiting:
        taken.bind(str(path))
        taken.listen(0)
        link = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        link.connect(str(path))
        with pytest.raises(EndpointError, match="somebody listens there"):
            refuse_taken(f"ipc://{path}")


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(EndpointError, match="Not a directory; choose another path"):
        refuse_taken(f"ipc://{tmp_path}/file/hub")
    refuse_taken(f"ipc://{tmp_path}/hub")
    refuse_taken(f"ipc://@{tmp_path}/hub")


@pytest.mark.parametrize("suffix", ["", ".collector", ".control"])
def test_a_hub_leaves_a_file_alone_that_is_where_it_would_listen(tmp_path, suffix):
    file = tmp_path / f"hub{suffix}"
    file.write_text("precious")
    loop = Loop()
    with Context() as context, pytest.raises(EndpointError, match="is a file and no socket"):
        listen(
            context,
            loop,
            LocalLinks(loop, lambda kind, fields: None),
            Config(),
            HubSettings(epoch=1),
            f"ipc://{tmp_path}/hub",
        )

    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


def test_a_lane_leaves_a_file_alone(tmp_path):
    file = tmp_path / "hub.lane-1"
    file.write_text("precious")
    with Context() as context, Push(context) as lane:
        with pytest.raises(EndpointError, match="is a file and no socket"):
            bind_path(lane, f"ipc://{file}")
        assert bind_path(lane, f"ipc://{file}2") == f"ipc://{file}2"

    assert file.read_text() == "precious"
