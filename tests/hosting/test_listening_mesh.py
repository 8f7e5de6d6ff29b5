"""A mesh that listens: hub and client in one program, pools and other clients that dial it."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.errors import ConfigError, HubUnreachable, InsecureBind, KeysUnusable, TaskMeshError
from taskmesh.link.socket_profiles import TO_GATEWAY
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.frames import encode, to_client
from taskmesh.sockets import Context, Dealer
from tests.harness.journal import words
from tests.harness.keys import Ring
from tests.harness.program import exists
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import nested, workload

WAIT_S = 20
TCP = "tcp://127.0.0.1:0"


@pytest.fixture(params=["thread", "process"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mesh(place: str) -> Iterator[Mesh]:
    """One that listens, and has no slots of its own."""
    with Mesh(bind=TCP, workers=0, hub=place) as mesh:
        yield mesh


@pytest.mark.smoke
def test_slots_here_and_pools_elsewhere_work_side_by_side(place: str, programs: Programs, tmp_path: Path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(bind=TCP, workers=1, hub=place) as mesh:
        programs.worker(mesh.address, "--name", "far")
        assert mesh.wait_for_workers(2, WAIT_S) == 2
        held = [mesh.submit(workload.hold, str(journal), str(word), str(gate)) for word in range(2)]
        wait_until(lambda: len(words(journal)) == 2, WAIT_S)
        gate.touch()
        assert {future.result(WAIT_S) for future in held} == {"0", "1"}
        assert {future.worker.partition("/")[0] for future in held} == {"local", "far"}
        wide = [mesh.submit(nested.squares, 4) for _ in range(4)]
        assert [future.result(WAIT_S) for future in wide] == [14] * 4


def test_queues_and_tags_may_be_those_of_a_pool_elsewhere(mesh: Mesh, programs: Programs):
    future = mesh.with_options(queue="gpu", tags=("a100",)).submit(workload.add, 1, 2)

    programs.worker(mesh.address, "--queues", "gpu", "--tags", "a100")

    assert future.result(WAIT_S) == 3


@pytest.mark.smoke
def test_other_clients_and_commands_dial_it_too(mesh: Mesh, programs: Programs):
    programs.worker(mesh.address, "--name", "far")
    with Mesh(mesh.address) as other:
        future = other.submit(workload.add, 2, 3)
        assert future.result(WAIT_S) == 5
        assert other.address == mesh.address
    status = json.loads(programs.run("status", "--address", mesh.address, "--json").stdout)
    assert status["finished"] == mesh.status()["finished"] == 1
    assert programs.run("drain", "far", "--address", mesh.address).returncode == 0
    wait_until(lambda: not mesh.status()["pools"], WAIT_S)


def test_its_address_is_in_its_repr(mesh: Mesh):
    assert repr(mesh) == f"<Mesh listening at {mesh.address}, 0 slots: open, 0 tasks under way>"
    assert mesh.address.startswith("tcp://127.0.0.1:")
    assert not mesh.address.endswith(":0")


def test_leaving_it_by_an_exception_kills_what_runs_elsewhere(place: str, programs: Programs, tmp_path: Path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"

    def leave() -> None:
        with Mesh(bind=TCP, workers=0, hub=place) as mesh:
            nonlocal worker
            worker = programs.worker(mesh.address, "--name", "far")
            mesh.submit(workload.hold, str(journal), "held", str(gate))
            wait_until(journal.exists, WAIT_S)
            nonlocal slots
            slots = worker.slots()
            raise KeyError("mine")

    worker, slots = None, []
    with pytest.raises(KeyError, match="mine"):
        leave()

    wait_until(lambda: not any(map(exists, slots)), 5, "the slot of the task is killed")


def test_what_waited_for_slots_ends_when_nobody_comes(mesh: Mesh):
    with pytest.raises(TimeoutError, match=r"2 slots.*there are 0 .*taskmesh worker --address tcp://127"):
        mesh.wait_for_workers(2, 0.05)
    with pytest.raises(ConfigError, match="slots="):
        mesh.wait_for_workers(0)


def test_beyond_loopback_it_needs_the_keys_of_a_hub(place: str, ring: Ring, programs: Programs):
    with pytest.raises(InsecureBind, match="taskmesh keys new hub"):
        Mesh(bind="tcp://0.0.0.0:0", workers=0, hub=place).status()
    with pytest.raises((KeysUnusable, HubUnreachable), match="hub"):
        Mesh(bind=TCP, workers=0, keys=ring.peer("client", "alice"), hub=place).status()

    shutil.copy(ring.mesh, ring.hub.path)
    with Mesh(bind="tcp://0.0.0.0:0", workers=1, keys=str(ring.hub.path), hub=place) as mesh:
        address = f"tcp://127.0.0.1:{mesh.address.rpartition(':')[2]}"
        assert mesh.submit(nested.squares, 4).result(WAIT_S) == 14
        programs.worker(address, "--name", "far", "--queues", "far", "--keys", ring.peer("worker", "far"))
        far = mesh.with_options(queue="far")
        assert far.submit(workload.add, 1, 2).result(WAIT_S) == 3
        with Mesh(address, keys=ring.peer("client", "bob")) as other:
            assert other.submit(workload.add, 2, 2).result(WAIT_S) == 4
        ring.hub.revoke("worker", "far")
        wait_until(lambda: len(mesh.status()["pools"]) == 1, WAIT_S)


def test_its_calls_are_signed_where_the_hub_s_folder_has_the_mesh_key(
    place: str, ring: Ring, programs: Programs
):
    """Without the key a pool that has it runs nothing, and the error says which file is missing."""
    worker = ring.peer("worker", "far")
    with Mesh(bind=TCP, workers=0, keys=str(ring.hub.path), hub=place) as mesh:
        programs.worker(mesh.address, "--keys", worker)
        with pytest.raises(TaskMeshError, match=r"not signed.*mesh\.secret"):
            mesh.submit(workload.add, 1, 2).result(WAIT_S)

    shutil.copy(ring.mesh, ring.hub.path)
    with Mesh(bind=TCP, workers=1, keys=str(ring.hub.path), hub=place) as mesh:
        programs.worker(mesh.address, "--queues", "far", "--keys", worker)
        futures = [mesh.submit(workload.add, 1, 2), mesh.with_options(queue="far").submit(workload.add, 3, 4)]
        assert [future.result(WAIT_S) for future in futures] == [3, 7]


def test_nobody_who_dials_takes_the_place_of_its_own_client(mesh: Mesh):
    """Its id is in every task's id, so others see it."""
    own = mesh._client.table.client
    with Context() as context, Dealer(context, TO_GATEWAY) as peer:
        peer.connect(mesh.address)
        peer.send_parts(encode(m.ClientHello(own, 0)))
        refusal = to_client.decode(peer.recv_parts())

    assert isinstance(refusal, m.ClientRefused)
    assert "another process" in refusal.reason
    assert len(mesh.status()["clients"]) == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"workers": 0}, "workers="),
        ({"address": "tcp://127.0.0.1:5550", "bind": TCP}, "an address or bind=, not both"),
        ({"bind": "127.0.0.1:5550"}, "tcp://HOST:PORT"),
        ({"bind": "tcp://127.0.0.1:65534", "workers": 0}, "the next two ports"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments: dict, error: str):
    with pytest.raises(ConfigError, match=error):
        Mesh(**arguments).status()


def test_an_address_that_is_taken_is_an_error_that_says_so(place: str):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(TaskMeshError, match="in use"):
            Mesh(bind=address, workers=0, hub=place).status()


def test_a_bind_of_the_environment_does_not_count(monkeypatch: pytest.MonkeyPatch):
    """A program that opens two meshes would listen twice."""
    monkeypatch.setenv("TASKMESH_MESH__BIND", TCP)
    with Mesh(workers=1) as mesh:
        assert mesh.address == ""
