"""Hub, pools and clients on hosts of their own, with keys: the network between them fails, they do not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.checker import check
from tests.faults.client import Client
from tests.faults.hosts import NAME, Host, Lan, can_make_hosts
from tests.faults.test_weather import TASKS, UNHURRIED, left, serves_again
from tests.faults.workload import answer
from tests.harness.cluster import LEASE, Cluster
from tests.harness.journal import Journal
from tests.harness.keys import Ring
from tests.harness.program import Program
from tests.harness.requirement import require
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

PORT = 5550


class Site:
    """Three hosts: `hub` with a hub and the pool `near`, `pool` with the pool `far`, `client`."""

    def __init__(self, lan: Lan, cluster: Cluster, connect: Callable[..., Client]) -> None:
        self.lan, self.cluster, self._connect = lan, cluster, connect
        self.hub, self.pool, self.client = (lan.host(name) for name in ("hub", "pool", "client"))
        self.far: Program

    def open(self, environ: dict[str, str] | None = None, *, address: str = "") -> None:
        """Starts the programs; `address`: another way to say where the hub is."""
        self.start_hub(environ)
        self.start_worker("near", self.hub, address)
        self.far = self.start_worker("far", self.pool, address)

    def start_hub(self, environ: dict[str, str] | None = None) -> Program:
        self.cluster.address = f"tcp://{self.hub.address}:{PORT}"
        return self.cluster.start_hub(environ, prepare=self.hub.enter)

    def start_worker(self, name: str, host: Host, address: str = "") -> Program:
        return self.cluster.start_worker(name, slots=2, prepare=host.enter, address=address)

    def connect(self) -> Client:
        """A client on its host, in this process."""
        with self.client.entered():
            client = self._connect()
            client.mesh.status()
        return client


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    require(can_make_hosts(), "network namespaces: root, and the Debian packages iproute2 and nftables")
    lan = Lan(tmp_path)
    yield lan
    lan.close()


@pytest.fixture
def site(lan: Lan, cluster: Cluster, connect: Callable[..., Client], ring: Ring) -> Site:
    return Site(lan, cluster, connect)


def test_hosts_work_together(site):
    site.open()
    client = site.connect()
    client.submit_ordinary(TASKS)
    client.wait_all(40)

    assert client.started_in(site.far.slots())
    client.assert_clean(repeated=[])


def under_way(site: Site) -> Client:
    """A client in the middle of its tasks."""
    client = site.connect()
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 5, 40)
    return client


@pytest.mark.parametrize("seconds", [0.5, 2 * LEASE])
def test_F23_the_pools_plug_is_pulled_and_put_back(site, seconds):
    site.open()
    client = under_way(site)
    for _ in range(3):
        site.pool.plug(into=False)
        client.watch_for(seconds)
        site.pool.plug(into=True)
        client.submit_ordinary(100)
        client.watch_for(0.5)

    client.wait_all(60)
    serves_again(client, site.far, LEASE + 10)
    client.assert_clean()


def test_F23_the_clients_plug_is_pulled_and_put_back(site):
    site.open()
    client = under_way(site)
    site.client.plug(into=False)
    client.watch_for(2 * LEASE)
    site.client.plug(into=True)

    client.wait_all(60)
    client.assert_clean(repeated=[])


@pytest.mark.parametrize("ways", [("input",), ("output",), ("input", "output")], ids="+".join)
def test_F21_F22_packets_to_or_from_the_pool_vanish(site, ways):
    site.open()
    client = under_way(site)
    site.pool.drop(*ways)
    client.wait_all(LEASE + 15)
    wait_until(lambda: "far" in left(site.cluster), LEASE + 5)
    site.pool.drop()

    serves_again(client, site.far, LEASE + 15)
    client.assert_clean()


@pytest.mark.parametrize("percent", [5, 20])
def test_F24_packets_are_lost(site, percent):
    site.open(UNHURRIED)
    site.pool.drop("input", "output", percent=percent)
    site.client.drop("input", percent=percent)
    client = under_way(site)
    client.wait_all(60)

    assert left(site.cluster) == [], "lossy is not dead"
    client.assert_clean()


def test_F29_the_pools_address_is_given_to_another_host(site, lan):
    """The one before comes back under a new address; each runs what was sent to itself."""
    site.open()
    client, former = under_way(site), site.pool.address
    site.pool.plug(into=False)
    site.pool.move_to("10.77.0.99")
    other = lan.host("other")
    other.move_to(former)
    heir = site.start_worker("heir", other)
    site.pool.plug(into=True)

    serves_again(client, site.far, LEASE + 10)
    serves_again(client, heir, 5, "heir")
    client.assert_clean()


def test_the_hub_moves_to_another_address_and_keeps_its_name(site, tmp_path):
    """Its name is looked up at each attempt to connect: neither pools nor clients are started anew.

    The lease is the usual one: packets to an address that nobody has are given up after three seconds.
    """
    everybody = (site.hub, site.pool, site.client)
    for host in everybody:
        host.know(site.hub.address)
    named = f"tcp://{NAME}:{PORT}"
    site.open(UNHURRIED, address=named)
    log, executions = (Journal(tmp_path / f"named{end}.log") for end in ("", "-executions"))
    client = site.cluster.start_client(
        "named", tmp_path, "named", "run", TASKS, prepare=site.client.enter, address=named
    )
    wait_until(lambda: log.count("outcome") > TASKS // 5, 20)

    site.cluster.hub.kill_all()
    site.hub.move_to("10.77.0.88")
    site.start_hub(UNHURRIED)
    for host in everybody:
        host.know(site.hub.address)

    assert client.wait(60) == 0
    verdict = check(log, executions, answer, hubs=2)
    assert verdict.violations == []
    assert verdict.succeeded == verdict.submitted == TASKS
    assert len(verdict.repeated) < TASKS // 20, "only what ended, and was lost on its way from the dying hub"
    wait_until(lambda: {"near", "far"} <= joined(site.cluster), 15)


def joined(cluster: Cluster) -> set[object]:
    return {event["pool"] for event in cluster.hub.events("stderr") if event["event"] == "pool.joined"}
