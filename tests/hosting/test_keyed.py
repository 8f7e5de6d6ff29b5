"""A mesh with keys, of real processes: who gets in, who does not and learns why, and what revocation ends."""

import contextlib
import json
import os
import socket
import time
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.errors import HubUnreachable, KeysUnusable
from taskmesh.messages import mesh_messages as m
from taskmesh.security.key_files import keys_in
from taskmesh.security.keys import KeyFolder
from taskmesh.sockets import EventKind, Socket
from tests.harness.cluster import Cluster
from tests.harness.journal import words
from tests.harness.keys import Ring, tells_of_revocation
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import nested, workload
from tests.hosting.intruder import FalsePool, Meet

REVOKED_S = 5.0


@pytest.fixture(params=["tcp", "ipc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_tasks_run_over_encrypted_links(programs: Programs, ring: Ring, transport: str):
    bind = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{programs.folder}/hub"
    keyed = Cluster.keyed(programs, ring, bind)

    with keyed.mesh() as mesh:
        assert list(mesh.map(workload.add, range(500), range(500), timeout=20)) == list(range(0, 1000, 2))
        data = os.urandom(300_000)
        assert mesh.submit(workload.echo, data).result(20) == data
        assert mesh.status()["finished"] >= 2


def test_a_hub_beyond_loopback_runs_with_keys(programs: Programs, ring: Ring):
    lanes = free_range()
    program = programs.start(
        "hub", "--bind", "tcp://0.0.0.0:0", "--keys", str(ring.hub.path), "--lanes", lanes, "--json"
    )
    port = program.ready()["gateway"].rpartition(":")[2]
    address = f"tcp://127.0.0.1:{port}"
    programs.worker(address, "--keys", ring.peer("worker", "gpu-1"))

    with Mesh(address, keys=ring.peer("client", "alice"), open_timeout=20) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3


def free_range() -> str:
    """A range of ports whose first one is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = min(probe.getsockname()[1], 65_500)
    return f"{first}-{first + 20}"


@pytest.mark.smoke
def test_beyond_loopback_without_keys_nothing_listens(programs: Programs):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    outcome = programs.run("hub", "--bind", f"tcp://0.0.0.0:{port}")

    assert outcome.returncode == 2
    assert "taskmesh keys new hub" in outcome.stderr
    assert "taskmesh keys authorize" in outcome.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


# --- who does not get in ----------------------------------------------------------------------------------


def refusal(address: str, **settings: object) -> str:
    """Why the hub at the address refuses a mesh; it has to say so long before the time is up."""
    begin = time.monotonic()
    with pytest.raises(HubUnreachable) as caught:
        Mesh(address, open_timeout=20, **settings).submit(workload.add, 1, 2)
    assert time.monotonic() - begin < 5
    return str(caught.value)


def test_a_client_without_keys_is_told_that_keys_are_asked_for(keyed: Cluster):
    assert "it asks for keys" in refusal(keyed.address)
    assert still_works(keyed)


def test_a_client_with_a_key_that_nobody_authorized_is_told_how_that_is_done(keyed: Cluster):
    stranger = keyed.ring.peer("client", "mallory", authorized=False)

    assert "taskmesh keys authorize client" in refusal(keyed.address, keys=stranger)
    assert still_works(keyed)


def test_a_worker_key_is_no_client_s(keyed: Cluster):
    folder = Path(keyed.ring.peer("worker", "other"))
    (folder / "worker.secret").rename(folder / "client.secret")

    with Mesh(keyed.address, keys=str(folder)) as mesh, pytest.raises(HubUnreachable) as caught:
        mesh.submit(workload.add, 1, 2).result(20)
    assert "`taskmesh keys new client`" in str(caught.value)
    assert still_works(keyed)


def test_a_client_that_expects_another_hub_does_not_talk_to_this_one(keyed: Cluster, tmp_path: Path):
    other = Ring(tmp_path / "other")
    folder = other.peer("client", "alice")

    assert "not the one in hub.public" in refusal(keyed.address, keys=folder)
    assert still_works(keyed)


def test_keys_at_a_hub_without_them_are_not_passed_over(programs: Programs, ring: Ring):
    address = programs.hub()[1]

    assert "it uses no keys" in refusal(address, keys=ring.peer("client", "alice"))


def test_a_mesh_whose_keys_are_missing_does_not_dial(keyed: Cluster, tmp_path: Path):
    with pytest.raises(KeysUnusable, match="taskmesh keys new"):
        Mesh(keyed.address, keys=tmp_path / "nowhere").submit(workload.add, 1, 2)


@pytest.mark.parametrize("how", ["none", "stranger", "client"])
def test_a_worker_that_may_not_serve_ends_and_says_why(keyed: Cluster, how: str):
    keys = {"none": "", "stranger": keyed.ring.peer("worker", "x", authorized=False), "client": ""}[how]
    if how == "client":
        folder = Path(keyed.ring.peer("client", "disguised"))
        (folder / "client.secret").rename(folder / "worker.secret")
        keys = str(folder)
    options = ["--keys", keys] if keys else []

    outcome = keyed.programs.run("worker", "--address", keyed.address, *options)

    assert outcome.returncode == 1
    assert "the hub refuses this pool" in outcome.stderr
    assert ("it asks for keys" if how == "none" else "taskmesh keys authorize worker") in outcome.stderr
    assert still_works(keyed)


def still_works(keyed: Cluster) -> bool:
    with keyed.mesh() as mesh:
        return bool(mesh.submit(workload.add, 1, 2).result(20) == 3)


# --- what a role may do -----------------------------------------------------------------------------------


def test_only_operators_command(keyed: Cluster):
    line = ("pool", "pause", "first", "--address", keyed.address, "--keys")
    disguised = Path(keyed.client)
    (disguised / "operator.secret").write_bytes((disguised / "client.secret").read_bytes())
    (disguised / "operator.secret").chmod(0o600)

    refused = keyed.programs.run(*line, keyed.client)
    obeyed = keyed.programs.run(*line, keyed.ring.peer("operator", "boss"), "--json")

    assert refused.returncode == 1
    assert "does not entitle it to a Command" in refused.stderr
    assert obeyed.returncode == 0, obeyed.stderr
    assert [row["pool"] for row in json.loads(obeyed.stdout)] == ["first"]


def test_operators_do_not_submit(keyed: Cluster):
    folder = Path(keyed.ring.peer("operator", "boss"))
    (folder / "operator.secret").rename(folder / "client.secret")
    mesh = keyed.mesh(str(folder))

    error = mesh.submit(workload.add, 1, 2).exception(20)

    mesh.close(cancel=True)
    assert isinstance(error, HubUnreachable)
    assert "does not entitle it to a Submit" in str(error)
    assert still_works(keyed)


# --- revocation -------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_revoked_client_is_cut_off_and_others_go_on(keyed: Cluster, tmp_path: Path):
    """Nor does anything of it start any more that waits at the hub."""
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    bad = keyed.ring.peer("client", "mallory")
    with keyed.mesh() as honest, keyed.mesh(bad) as revoked:
        kept = honest.submit(workload.hold, str(journal), "kept", str(gate))
        wait_until(journal.exists)
        lost = revoked.submit(workload.hold, str(journal), "lost", str(gate))
        wait_until(lambda: lost.accepted)

        keyed.ring.hub.revoke("client", "mallory")
        error = lost.exception(REVOKED_S)

        assert isinstance(error, HubUnreachable)
        assert tells_of_revocation(error)
        gate.touch()
        assert kept.result(20) == "kept"
        assert honest.submit(workload.add, 2, 2).result(20) == 4
        assert words(journal) == ["kept"]
        revoked.close(cancel=True)


@pytest.mark.smoke
def test_a_revoked_worker_is_cut_off_and_its_task_goes_to_another(keyed: Cluster, tmp_path: Path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with keyed.mesh() as mesh:
        future = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(journal.exists)
        keyed.start_worker("second", slots=1)

        keyed.ring.hub.revoke("worker", "first")

        assert keyed.pools["first"].wait(REVOKED_S + 5) == 1
        assert "the hub refuses this pool" in keyed.pools["first"].text()
        wait_until(lambda: words(journal) == ["held", "held"], REVOKED_S + 5)
        gate.touch()
        assert future.result(20) == "held"
        assert future.worker.startswith("second/")
        assert [pool["pool"] for pool in mesh.status()["pools"]] == ["second"]


@pytest.mark.parametrize("role", ["client", "worker", "operator"])
def test_a_revoked_key_s_live_links_end_within_five_seconds(keyed: Cluster, meet: Meet, role: str):
    """Each link is cut, and the next handshake is refused; those of others work on."""
    peer = meet(role, "mallory")
    sockets: list[Socket] = [peer.gateway]
    if role == "worker":
        pool = FalsePool(peer)
        pool.join("false")
        sockets = [pool.collector, pool.control]
    else:
        assert isinstance(peer.ask(m.ClientHello(7, 0)), m.ClientWelcome)
        assert isinstance(peer.ask(m.Query(1, "status")), m.Answer)
    with keyed.mesh() as mesh, contextlib.ExitStack() as watched:
        monitors = [watched.enter_context(socket.monitor()) for socket in sockets]
        began = time.monotonic()
        keyed.ring.hub.revoke(role, "mallory")

        for monitor in monitors:
            monitor.wait_for(EventKind.DISCONNECTED, REVOKED_S)
        for monitor in monitors:
            monitor.wait_for(EventKind.HANDSHAKE_FAILED_AUTH, REVOKED_S)
        assert time.monotonic() - began < REVOKED_S
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        wait_until(lambda: [pool["pool"] for pool in mesh.status()["pools"]] == ["first"], REVOKED_S)


def test_over_ipc_too_a_revoked_client_is_cut_off(programs: Programs, ring: Ring):
    keyed = Cluster.keyed(programs, ring, f"ipc://{programs.folder}/hub")
    bad = ring.peer("client", "mallory")
    with keyed.mesh() as honest, keyed.mesh(bad) as revoked:
        assert revoked.submit(workload.add, 1, 2).result(20) == 3

        ring.hub.revoke("client", "mallory")

        wait_until(lambda: tells_of_revocation(outcome(revoked)), REVOKED_S)
        assert honest.submit(workload.add, 2, 2).result(20) == 4
        revoked.close(cancel=True)


def outcome(mesh: Mesh) -> BaseException | None:
    """What becomes of a task now: an error at once, where the hub refuses the mesh."""
    try:
        return mesh.submit(workload.add, 1, 2).exception(REVOKED_S)
    except HubUnreachable as error:
        return error


def test_a_key_that_was_replaced_is_cut_off_and_its_successor_is_let_in(keyed: Cluster):
    folder = KeyFolder(keyed.ring.folder / "worker-first")
    folder.rotate("worker")

    keyed.ring.hub.authorize("worker", "first", keys_in(folder.retire("worker")))

    assert keyed.pools["first"].wait(REVOKED_S + 5) == 1
    keyed.programs.worker(keyed.address, "--name", "first", "--keys", str(folder.path))
    assert still_works(keyed)


def test_a_launched_mesh_needs_no_keys_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TASKMESH_KEYS", "nowhere")

    with Mesh(hub="process", workers=1) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3


def test_somebody_authorized_later_gets_in_without_a_restart(keyed: Cluster):
    late = keyed.ring.peer("client", "late", authorized=False)
    assert "taskmesh keys authorize" in refusal(keyed.address, keys=late)

    keyed.ring.hub.authorize("client", "late", keys_in(Path(late) / "client.public"))

    def comes_in() -> bool:
        try:
            with keyed.mesh(late) as mesh:
                return bool(mesh.submit(workload.add, 1, 2).result(20) == 3)
        except HubUnreachable:
            return False

    assert wait_until(comes_in, 5)


def test_a_hub_that_changes_its_key_is_followed_by_those_who_know_both(keyed: Cluster, tmp_path: Path):
    both = keyed.ring.hub.rotate("hub")
    for folder in (keyed.client, keyed.ring.peer("worker", "follower")):
        (Path(folder) / "hub.public").write_bytes(both.read_bytes())

    with keyed.mesh() as mesh:  # the hub that runs has the former key, which is the second one
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        keyed.hub.kill()
        keyed.start_hub()
        keyed.programs.worker(keyed.address, "--keys", str(tmp_path / "worker-follower"))
        assert mesh.submit(workload.add, 2, 2).result(20) == 4


def test_tasks_that_submit_tasks_show_their_worker_s_key(keyed: Cluster):
    with keyed.mesh() as mesh:
        assert mesh.submit(nested.squares, 5).result(20) == 30
