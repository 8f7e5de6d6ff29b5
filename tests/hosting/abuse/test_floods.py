"""Too much of one key: floods cost no other key its tasks or its patience."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from taskmesh import Mesh
from taskmesh.messages import mesh_messages as m
from taskmesh.messages.runs import Run
from taskmesh.sockets import Context, NoPeerWithinTimeout
from tests.harness.cluster import Cluster
from tests.harness.waiting import wait_until
from tests.hosting import workload
from tests.hosting.abuse.siege import Siege
from tests.hosting.intruder import FalsePool, Peer

pytestmark = pytest.mark.timeout(150)

FLOOD_S = 2.0
PACE_S = 0.02
PATIENCE_S = 5.0
"""Seconds that another key's task may take meanwhile; without a flood it takes milliseconds."""


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


def test_A13_a_client_s_flood_stops_nobody_else(keyed: Cluster):
    with Context() as context, keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        peer = Peer(context, keyed, "client", "mallory")
        assert isinstance(peer.ask(m.ClientHello(7, 0)), m.ClientWelcome)
        with flooding(lambda: peer.say(m.ClientBeat())):
            assert honest(mesh, FLOOD_S) < PATIENCE_S
        peer.close()


def test_A13_a_flood_of_bytes_stops_nobody_else(keyed: Cluster):
    submit = m.Submit(9, [], [Run(7, 0, [1], [bytes(1 << 20)])])
    with Context() as context, keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        peer = Peer(context, keyed, "client", "mallory")
        assert isinstance(peer.ask(m.ClientHello(7, 0)), m.ClientWelcome)
        with flooding(lambda: peer.say(submit)):
            assert honest(mesh, FLOOD_S) < PATIENCE_S
        peer.close()


def test_A13_a_worker_s_flood_stops_no_other_pool(keyed: Cluster):
    with Context() as context, keyed.mesh() as mesh, Siege(mesh, keyed.hub):
        peer = Peer(context, keyed, "worker", "mallory")
        pool = FalsePool(peer)
        welcome, _ = pool.join("false")
        beat = m.Beat(welcome.epoch, welcome.session, "false", 0, 0, 0, [])
        with flooding(lambda: pool.say(beat)):
            assert honest(mesh, FLOOD_S) < PATIENCE_S
        peer.close()
