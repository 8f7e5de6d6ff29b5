"""Too much of one key: floods are dropped and counted, and cost no other key its tasks or its patience.

What a good peer loses by its key's caps it says again: low caps make a mesh slow, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from taskmesh import Mesh
from taskmesh.errors import HubUnreachable
from taskmesh.sockets import Context, NoPeerWithinTimeout
from taskmesh.wire import messages as m
from taskmesh.wire.runs import Run
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.net import workload
from tests.net.abuse.siege import Siege
from tests.net.intruder import FalsePool, Peer

pytestmark = pytest.mark.timeout(150)

FLOOD_S = 2.0
PACE_S = 0.02
PATIENCE_S = 5.0
"""Seconds that another key's task may take meanwhile; without a flood it takes milliseconds."""


def dropped(mesh: Mesh, user: str) -> int:
    """How many messages of who shows this key the hub has dropped."""
    over = mesh.status(timeout=10)["over_rate"]
    return int(over[user]["dropped"]) if user in over else 0


@contextlib.contextmanager
def flooding(say: Callable[[], None]) -> Iterator[None]:
    """Says something without end in a thread of its own."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with contextlib.suppress(NoPeerWithinTimeout):
                say()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def honest(mesh: Mesh, seconds: float) -> float:
    """Runs task after task for so long, not too many; returns how long the slowest took."""
    slowest, began = 0.0, time.monotonic()
    while (start := time.monotonic()) - began < seconds:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        slowest = max(slowest, time.monotonic() - start)
        wait_until(lambda start=start: time.monotonic() > start + PACE_S)
    return slowest


def test_a_client_s_flood_is_dropped_and_others_are_served(programs: Programs, ring: Ring):
    programs.env |= {"TASKMESH_KEY_MESSAGES_PER_S": "1000"}
    keyed = Cluster.keyed(programs, ring)
    with Context() as context, keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        peer = Peer(context, keyed, "client", "mallory")
        assert isinstance(peer.ask(m.ClientHello(7, 0)), m.ClientWelcome)
        with flooding(lambda: peer.say(m.ClientBeat())):
            assert honest(mesh, FLOOD_S) < PATIENCE_S
            wait_until(lambda: dropped(mesh, "client:mallory") > 2000, 30, tick=0.1)
        peer.close()
        assert dropped(mesh, "client:alice") == 0
    assert '"event": "rate.exceeded"' in keyed.hub.errors
    status = programs.run("status", "--address", keyed.address, "--keys", ring.peer("operator", "olga"))
    assert "over rate: client:mallory" in status.stdout, status.stderr
    assert "hub.key_messages_per_s = 1000" in status.stdout


def test_a_flood_of_bytes_is_dropped_unread(programs: Programs, ring: Ring):
    programs.env |= {"TASKMESH_KEY_BYTES_PER_S": "4MiB"}
    keyed = Cluster.keyed(programs, ring)
    submit = m.Submit(9, [], [Run(7, 0, [1], [bytes(1 << 20)])])
    with Context() as context, keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        peer = Peer(context, keyed, "client", "mallory")
        assert isinstance(peer.ask(m.ClientHello(7, 0)), m.ClientWelcome)
        with flooding(lambda: peer.say(submit)):
            assert honest(mesh, FLOOD_S) < PATIENCE_S
            wait_until(lambda: dropped(mesh, "client:mallory") > 10, 30, tick=0.1)
        peer.close()
        assert dropped(mesh, "client:alice") == 0


def test_a_worker_s_flood_is_dropped_and_other_pools_work(programs: Programs, ring: Ring):
    programs.env |= {"TASKMESH_KEY_MESSAGES_PER_S": "1000"}
    keyed = Cluster.keyed(programs, ring)
    with Context() as context, keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        peer = Peer(context, keyed, "worker", "mallory")
        pool = FalsePool(peer)
        welcome, _ = pool.join("false")
        beat = m.Beat(welcome.epoch, welcome.session, "false", 0, 0, 0, [])
        with flooding(lambda: pool.say(beat)):
            assert honest(mesh, FLOOD_S) < PATIENCE_S
            wait_until(lambda: dropped(mesh, "worker:mallory") > 2000, 30, tick=0.1)
        told = [pool.heard(m.BeatReply, 10)]
        while not told[-1].wait:  # type: ignore[attr-defined]
            told.append(pool.heard(m.BeatReply, 10))
        peer.close()
        assert dropped(mesh, "worker:first") == 0


def test_a_client_and_a_pool_at_full_speed_with_low_caps_lose_nothing(programs: Programs, ring: Ring):
    """Submits, acknowledgements, results and beats are dropped all the time, and said again."""
    programs.env |= {"TASKMESH_KEY_MESSAGES_PER_S": "40"}
    keyed = Cluster.keyed(programs, ring)
    with keyed.mesh() as mesh:
        futures = []
        for number in range(3000):
            futures.append(mesh.submit(workload.add, number, 1))
            if number % 50 == 0:
                mesh.status(timeout=20)  # a message by itself: what is queued goes along
        assert [future.result(60) for future in futures] == list(range(1, 3001))
        assert dropped(mesh, "client:alice") > 0
        status = mesh.status(timeout=10)
        assert status["accepted"] == 3000
        assert status["finished"] == 3000
        assert [pool["pool"] for pool in status["pools"]] == ["first"]


def test_bytes_above_a_low_cap_arrive_later_and_whole(programs: Programs, ring: Ring):
    """Calls and results of 1 MB each, with a cap of 4 MB a second for either key.

    A client that has little of a busy machine sends calls by the eight megabytes, and a message that comes
    within the cap is taken whatever its size: there have to be so many that the last message cannot.
    """
    programs.env |= {"TASKMESH_KEY_BYTES_PER_S": "4MB"}
    keyed = Cluster.keyed(programs, ring)
    data = [os.urandom(1_000_000) for _ in range(20)]
    with keyed.mesh() as mesh:
        futures = [mesh.submit(workload.echo, each) for each in data]
        assert [future.result(100) for future in futures] == data
        assert dropped(mesh, "client:alice") > 0
        assert mesh.status(timeout=10)["finished"] == 20


def test_a_message_of_more_bytes_than_a_key_may_say_at_once_arrives_whole(programs: Programs, ring: Ring):
    """It comes in fragments: what was begun within the cap ends, and what is said after it waits longer."""
    programs.env |= {"TASKMESH_KEY_BYTES_PER_S": "4MB"}
    keyed = Cluster.keyed(programs, ring)
    data = [os.urandom(11_000_000) for _ in range(2)]
    with keyed.mesh() as mesh:
        began = time.monotonic()
        futures = [mesh.submit(workload.echo, each) for each in data]
        assert [future.result(60) for future in futures] == data
        assert time.monotonic() - began > 1.5, "and the second waits until the first is paid for"
        assert dropped(mesh, "client:alice") > 0


def test_the_usual_caps_are_never_met_by_a_client_at_full_speed(programs: Programs, ring: Ring):
    keyed = Cluster.keyed(programs, ring)
    data = os.urandom(1_000_000)
    with keyed.mesh() as mesh:
        futures = [mesh.submit(workload.add, number, 1) for number in range(5000)]
        echoes = [mesh.submit(workload.echo, data) for _ in range(20)]
        assert [future.result(60) for future in futures] == list(range(1, 5001))
        assert all(future.result(60) == data for future in echoes)
        assert mesh.status(timeout=10)["over_rate"] == {}


def test_a_key_has_so_many_sessions_and_the_next_is_told_why(programs: Programs, ring: Ring):
    programs.env |= {"TASKMESH_KEY_SESSIONS": "1"}
    keyed = Cluster.keyed(programs, ring)
    with keyed.mesh() as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        with pytest.raises(HubUnreachable, match=r"hub\.key_sessions.*taskmesh keys new client"):
            keyed.mesh().submit(workload.add, 1, 2)
        folder = ring.folder / "worker-first"
        line = ("worker", "--address", keyed.address, "--keys", str(folder), "--name", "second", "--json")
        second = programs.start(*line)
        assert second.wait(60) == 1
        assert "hub.key_sessions" in second.text()
        assert "second" in mesh.status()["refused"]
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
    with keyed.mesh() as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
