"""Abuse list, A23: who half says much, or says it over many links, and the memory that a hub has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.link.endpoints import Endpoints
from taskmesh.messages.fragments import Cutter
from taskmesh.messages.runs import TOKEN
from taskmesh.sockets import Context, EventKind, Push
from tests.conformance.wire import WirePeer
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload
from tests.hosting.abuse.siege import GROWTH, Siege
from tests.hosting.intruder import Peer

pytestmark = pytest.mark.timeout(120)

LINKS = 6
LARGE = 60_000_000
MIB = 1 << 20


@contextmanager
def peak_bounded(pid: int, growth: int = GROWTH) -> Iterator[None]:
    """The most that a process has ever taken grows by less than this."""
    before = peak(pid)
    yield
    grown = peak(pid) - before
    assert grown < growth, f"the hub has grown by {grown >> 20} MiB"


def peak(pid: int) -> int:
    """Bytes that a process has taken at most."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(text.partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize("socket", ["DEALER", "PUSH"])
def test_A23_strangers_half_say_large_frames(programs: Programs, socket: str):
    program, address = programs.hub("tcp://127.0.0.1:0")
    programs.worker(address)
    hub = Endpoints.of(address)
    endpoint = {"DEALER": hub.gateway, "PUSH": hub.collector}[socket]
    with Mesh(address) as mesh, Siege(mesh, program) as siege, ExitStack() as closing:
        closing.enter_context(peak_bounded(program.pid))
        peers = [closing.enter_context(WirePeer(endpoint, socket)) for _ in range(LINKS)]
        for peer in peers:
            with suppress(OSError):  # it is cut off
                peer.announce(10 * LARGE)
                for _ in range(50):
                    peer.say(bytes(MIB))
            siege.work()
        list(mesh.map(int, range(500), chunksize=1, timeout=20))


def links_of(peer: Peer) -> list[Push]:
    """Links to the collector that are not made again once they are cut off."""
    links = [Push(peer.context, replace(peer.options, reconnect_interval_ms=-1)) for _ in range(LINKS)]
    peer.sockets += links
    return links


def test_A23_one_worker_s_key_says_one_large_frame_on_each_of_many_links(keyed: Cluster):
    data = bytes(LARGE)
    with (
        keyed.mesh() as mesh,
        Siege(mesh, keyed.hub) as siege,
        peak_bounded(keyed.hub.pid),
        Context() as context,
    ):
        peer = Peer(context, keyed, "worker", "mallory")
        watched = []
        for link in links_of(peer):
            watched.append(link.monitor())
            link.connect(peer.hub.collector)
            link.send_parts([bytes(TOKEN), data], timeout=5)
            siege.work()
        for monitor in watched:
            while monitor.recv(timeout=20).kind is not EventKind.DISCONNECTED:
                siege.work(1)
        peer.close()


def test_A23_one_worker_s_key_never_ends_what_it_says_on_many_links(programs: Programs, ring: Ring):
    """Of what comes in fragments each key has its share: here 16 MB, an eighth of `hub.max_bytes`."""
    programs.env |= {"TASKMESH_HUB__MAX_BYTES": "128MB"}
    keyed = Cluster.keyed(programs, ring)
    large = bytes(12_000_000)
    with (
        keyed.mesh() as mesh,
        Siege(mesh, keyed.hub) as siege,
        Context() as context,
    ):
        assert mesh.submit(workload.echo, large).result(30) == large
        with peak_bounded(keyed.hub.pid):
            peer = Peer(context, keyed, "worker", "mallory")
            for number, link in enumerate(links_of(peer)):
                link.connect(peer.hub.collector)
                for fragment in Cutter(number).cut([bytes(16_000_000)])[:-1]:
                    link.send_parts([bytes([number]) * TOKEN, *fragment], timeout=5)
                siege.work()
            wait_until(lambda: "bytes of large messages are under way" in keyed.hub.errors, 20)
            assert mesh.submit(workload.echo, large).result(30) == large
        peer.close()
