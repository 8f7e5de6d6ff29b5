"""Abuse list, rows of those who have no key: A01 to A04 of docs/explanation/security.md."""

import random
import resource
import time
from pathlib import Path

import pytest

from taskmesh.link.endpoints import Endpoints, Target
from taskmesh.security.keys import credentials_of
from taskmesh.sockets import Context, Dealer, EventKind, Push, SocketOptions, Sub
from tests.harness.cluster import Cluster
from tests.harness.journal import words
from tests.harness.keys import Ring
from tests.harness.waiting import wait_until
from tests.hosting import workload
from tests.hosting.abuse.siege import CURVE_GREETING, Siege, garbage, is_closed, stranger, ticks

PARTS = ("gateway", "collector", "control")
DENIED_S = 5.0


def throw_garbage(siege: Siege, endpoints: Endpoints, connections: int) -> None:
    chance = random.Random(1)
    for number in range(connections):
        stranger(getattr(endpoints, PARTS[number % 3]), garbage(chance)).close()
        if number % (connections // 5) == 0:
            siege.work()


def test_A01_garbage_on_many_connections(keyed: Cluster):
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        throw_garbage(siege, Endpoints.of(keyed.address), 3000)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_A01_garbage_on_a_million_connections(keyed: Cluster):
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        throw_garbage(siege, Endpoints.of(keyed.address), 1_000_000)


@pytest.mark.smoke
@pytest.mark.timeout(120)
def test_A02_half_handshakes_at_the_limit_of_files(cluster: Cluster, ring: Ring):
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    cluster.ring = ring
    hub = cluster.start_hub(prepare=few_files)
    cluster.start_worker("pool", slots=1)
    attackers = [stranger(cluster.address, CURVE_GREETING, patience=0.01) for _ in range(600)]
    try:
        with cluster.mesh(open_timeout=30) as mesh:
            honest = mesh.submit(workload.add, 1, 2)
            began = time.monotonic()
            for left in ticks(0.2, attackers):
                if time.monotonic() - began > 4:
                    break
                for one in [each for each in attackers if each not in left]:
                    attackers.remove(one)  # who was cut off comes again
                    one.close()
                    attackers.append(stranger(cluster.address, CURVE_GREETING, patience=0.01))
            assert honest.result(20) == 3
            assert list(mesh.map(workload.add, range(50), range(50), timeout=20)) == list(range(0, 100, 2))
    finally:
        for one in attackers:
            one.close()
    assert hub.alive


@pytest.mark.timeout(120)
def test_A03_a_greeting_that_drips(keyed: Cluster):
    endpoint = Endpoints.of(keyed.address)
    with keyed.mesh() as mesh, Siege(mesh, keyed.hub) as siege:
        slow = [stranger(getattr(endpoint, PARTS[number % 3])) for number in range(500)]
        began = time.monotonic()
        for turn, left in enumerate(ticks(1.0, slow)):
            for one in left:
                if not is_closed(one):
                    one.setblocking(True)
                    one.send(CURVE_GREETING[turn : turn + 1])
            siege.work()
            assert time.monotonic() - began < 30, f"{len(left)} are still there"
        for one in slow:
            one.close()


KEYS = ("another hub's", "nobody's", "revoked")


def outsider(ring: Ring, role: str, what: str) -> str:
    """A directory of keys that opens nothing."""
    if what == "another hub's":
        return Ring(ring.folder / f"other-{role}").peer(role, "mallory")
    folder = ring.peer(role, f"mallory-{what}", authorized=what == "revoked")
    if what == "revoked":
        ring.hub.revoke(role, "mallory-revoked")
    return folder


@pytest.mark.smoke
@pytest.mark.parametrize("what", KEYS)
def test_A04_no_key_but_a_good_one_gets_a_task_or_an_answer(keyed: Cluster, tmp_path: Path, what: str):
    """Every socket denies it within five seconds, and no task ever reaches the worker that has it."""
    ring, hub = keyed.ring, Endpoints.of(keyed.address)
    keyed.pools["first"].end()
    worker = outsider(ring, "worker", what)
    with keyed.mesh() as mesh, Context() as context:
        future = mesh.submit(workload.note, str(tmp_path / "journal"), "ran")
        wait_until(lambda: future.accepted)
        for role, kind, endpoint in (
            ("worker", Push, hub.collector),
            ("worker", Sub, hub.control),
            ("client", Dealer, hub.gateway),
            ("operator", Dealer, hub.gateway),
        ):
            folder = worker if role == "worker" else outsider(ring, role, what)
            shown = credentials_of(folder, role)
            way = Target(hub, shown.hub_keys[0])
            with (
                kind(context, way.options(SocketOptions(), shown.pair)) as socket,
                socket.monitor() as monitor,
            ):
                began = time.monotonic()
                socket.connect(endpoint)
                seen = monitor.recv(timeout=DENIED_S)
                while seen.kind not in DENIALS:
                    assert seen.kind is not EventKind.HANDSHAKE_SUCCEEDED
                    seen = monitor.recv(timeout=DENIED_S)
                assert time.monotonic() - began < DENIED_S
        outcome = keyed.programs.run("worker", "--address", keyed.address, "--keys", worker)
        assert outcome.returncode == 1
        assert "the hub refuses this pool" in outcome.stderr
        assert words(tmp_path / "journal") == []
        keyed.start_worker("honest", slots=1)
        assert future.result(20) == "ran"
        assert words(tmp_path / "journal") == ["ran"]


DENIALS = (EventKind.HANDSHAKE_FAILED_AUTH, EventKind.HANDSHAKE_FAILED_NO_DETAIL)
