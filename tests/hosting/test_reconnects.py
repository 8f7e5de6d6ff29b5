"""Who is not let in does not hammer: handshakes that a hub is asked for, and how soon peers are back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.errors import HubUnreachable
from tests.faults.chaos import Chaos
from tests.harness.cluster import Cluster
from tests.harness.keys import Ring, tells_of_revocation
from tests.harness.programs import Programs
from tests.harness.side_port import samples
from tests.harness.waiting import wait_until
from tests.hosting import workload

pytestmark = pytest.mark.timeout(100)

WATCHED_S = 5.0
BACK_S = 10.0
DENIED = 'taskmesh_peer_errors_total{kind="keys.denied"}'


def watch(count: Callable[[], float], seconds: float = WATCHED_S) -> float:
    """By how much a count rises in so many seconds."""
    before, began = count(), time.monotonic()
    wait_until(lambda: time.monotonic() - began > seconds, seconds + 5, tick=0.1)
    return count() - before


@pytest.fixture
def keyed(programs: Programs, ring: Ring) -> Cluster:
    """A hub with keys and a side port, and a worker."""
    programs.env["TASKMESH_HTTP"] = "127.0.0.1:0"
    return Cluster.keyed(programs, ring)


@pytest.fixture
def denied(keyed: Cluster) -> Callable[[], float]:
    """How many handshakes the hub has denied."""
    found = re.search(r"http://[\d.:]+", keyed.hub.errors)
    assert found, keyed.hub.errors
    return lambda: samples(found.group()).get(DENIED, 0.0)


@pytest.fixture
def proxy(keyed: Cluster) -> Iterator[Chaos]:
    """On the way to the hub: it counts links, and can lead to another hub."""
    chaos = Chaos(keyed.hub.pid, keyed.address)
    yield chaos
    chaos.close()


@pytest.fixture
def other(programs: Programs, tmp_path: Path) -> str:
    """The gateway of a hub with other keys."""
    other = Cluster(programs, Ring(tmp_path / "other"))
    other.start_hub()
    return other.address


def test_a_pool_that_nobody_authorized_asks_once_with_each_link_and_ends(
    programs: Programs, keyed: Cluster, denied: Callable[[], float]
):
    keys = keyed.ring.peer("worker", "mallory", authorized=False)
    pool = programs.start("worker", "--address", keyed.address, "--keys", keys, "--json")

    assert pool.wait(20) == 1
    assert 1 <= denied() <= 3 * 2, "three links, and perhaps once more before it ends"


def test_a_client_whose_key_is_revoked_is_told_and_asks_no_more(
    keyed: Cluster, denied: Callable[[], float], tmp_path: Path
):
    with keyed.mesh() as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        future = mesh.submit(workload.hold, str(tmp_path / "journal"), "held", str(tmp_path / "gate"))
        wait_until((tmp_path / "journal").exists)
        keyed.ring.hub.revoke("client", "alice")
        with pytest.raises(HubUnreachable) as told:
            future.result(20)
        assert tells_of_revocation(told.value)
        wait_until(lambda: denied() >= 1)  # the link that it has may say it first
        assert denied() <= 3
        assert watch(denied) == 0
    (tmp_path / "gate").touch()


def test_a_client_that_meets_another_hub_rests_and_is_back_soon(keyed: Cluster, proxy: Chaos, other: str):
    """It does not stop: the hub that let it in may be back at this address any time."""
    with Mesh(proxy.address, keys=keyed.client, open_timeout=20) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        proxy.divert(other)
        proxy.reset()
        wait_until(lambda: watch(lambda: proxy.links, 2.0) <= 4, 15, "it rests")
        assert watch(lambda: proxy.links) <= 2 * WATCHED_S

        proxy.diverted = {}
        began = time.monotonic()
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        assert time.monotonic() - began < BACK_S


def test_a_pool_that_meets_another_hub_rests_and_is_back_soon(keyed: Cluster, proxy: Chaos, other: str):
    keys = keyed.ring.peer("worker", "far")
    with keyed.mesh() as mesh:

        def there() -> bool:
            return "far" in [pool["pool"] for pool in mesh.status()["pools"]]

        keyed.programs.worker(proxy.address, "--name", "far", "--keys", keys)
        assert there()
        proxy.divert(other)
        proxy.reset()
        wait_until(lambda: not there(), 20)
        assert watch(lambda: proxy.links) <= 3 * 2 * WATCHED_S, "three links, twice a second at the most"

        proxy.diverted = {}
        wait_until(there, BACK_S)


def test_a_hub_that_was_away_for_seconds_has_its_peers_back_at_once(
    programs: Programs, ring: Ring, keyed: Cluster
):
    with keyed.mesh() as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        keyed.hub.kill()
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > WATCHED_S, WATCHED_S + 5, tick=0.1)
        keyed.start_hub()
        wait_until(lambda: [pool["pool"] for pool in mesh.status()["pools"]] == ["first"], BACK_S)
