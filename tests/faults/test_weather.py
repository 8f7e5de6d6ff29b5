"""Faults of networks, made by a proxy before the hub: everybody lives, bytes do not pass."""

import os
import random

import psutil
import pytest

from tests.faults.chaos import DOWN, FAIR, UP, Chaos, Weather
from tests.faults.client import Client
from tests.faults.workload import answer, ordinary, produce
from tests.harness.cluster import LEASE, Cluster, pools_of
from tests.harness.program import Program
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

TASKS = 1500
RESETS = 20
FLIPS = 12
UNHURRIED = {"TASKMESH_HUB__LEASE": "10", "TASKMESH_HUB__BEAT": "1"}
"""The defaults, for networks where a message takes longer than these tests' beat."""


def left(cluster: Cluster) -> list[object]:
    """The pools that the hub has given up so far, in order."""
    return [event["pool"] for event in cluster.hub.events("stderr") if event["event"] == "pool.left"]


def near_and_far(cluster: Cluster, proxy: Chaos) -> tuple[Program, Program]:
    """A pool beside the hub, and one behind the proxy."""
    near = cluster.start_worker("near", slots=2)
    far = cluster.start_worker("far", slots=2, address=proxy.address)
    return near, far


def serves_again(client: Client, far: Program, seconds: float, name: str = "far") -> None:
    """The far pool is back and runs tasks."""
    client.wait_until_lane(name, "ready", seconds)
    slots = far.slots()

    def has_run() -> bool:
        client.submit_ordinary(50)
        client.wait_all(60)
        return bool(client.started_in(slots) - before)

    before = client.started_in(slots)
    wait_until(has_run, 30, f"{name} runs tasks again")


def test_F20_connections_reset_twenty_times_with_keys(cluster, connect, weather, ring):
    cluster.start_hub()
    proxy = weather()
    _, far = near_and_far(cluster, proxy)
    client = connect(address=proxy.address)
    for turn in range(RESETS):
        client.submit_ordinary(TASKS // RESETS)
        client.wait_ended(turn * TASKS // RESETS, 40)
        proxy.reset()
    client.wait_all(40)

    serves_again(client, far, 5)
    assert proxy.links >= RESETS
    client.assert_clean()


@pytest.mark.parametrize(
    "forgotten",
    [pytest.param(False, id="healed", marks=pytest.mark.smoke), pytest.param(True, id="forgotten")],
)
def test_F21_half_open(cluster, connect, weather, forgotten):
    """Nothing passes either way; afterwards the links live on, or the network has forgotten them."""
    cluster.start_hub()
    proxy = weather()
    _, far = near_and_far(cluster, proxy)
    client = connect()
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 5, 40)

    proxy.weather = Weather(blocked=frozenset({UP, DOWN}))
    client.wait_ended(TASKS, LEASE + 5 + 10)
    wait_until(lambda: "far" in left(cluster), LEASE + 5)
    proxy.weather = FAIR
    if forgotten:
        proxy.reset()

    serves_again(client, far, LEASE + 5)
    client.assert_clean()


@pytest.mark.parametrize("direction", [pytest.param(UP, marks=pytest.mark.smoke), DOWN])
def test_F22_one_way_partition(cluster, connect, weather, direction):
    cluster.start_hub()
    proxy = weather()
    _, far = near_and_far(cluster, proxy)
    client = connect()
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 5, 40)

    proxy.weather = Weather(blocked=frozenset({direction}))
    client.wait_ended(TASKS, LEASE + 5 + 10)
    proxy.weather = FAIR

    serves_again(client, far, LEASE + 5)
    client.assert_clean()


@pytest.mark.smoke
def test_F23_flapping_link(cluster, connect, weather):
    cluster.start_hub()
    proxy = weather()
    _, far = near_and_far(cluster, proxy)
    client, chance = connect(), random.Random(23)
    sessions = []
    for _ in range(8):
        client.submit_ordinary(100)
        proxy.weather = Weather(refusing=True)
        proxy.reset()
        client.watch_for(chance.uniform(0.1, 0.8))
        proxy.weather = FAIR
        client.watch_for(chance.uniform(0.1, 1.2))
        sessions.append(len(pools_of(client.mesh.status())))

    client.wait_all(40)
    serves_again(client, far, 10)
    assert max(sessions) <= 2, "a pool that comes back takes its own place"
    listening = psutil.Process(cluster.hub.pid).net_connections("tcp4")
    here = [one for one in listening if one.status == psutil.CONN_LISTEN and one.laddr.ip == "127.0.0.1"]
    assert len(here) == 3 + 2, "lanes of old sessions are closed"
    client.assert_clean()


@pytest.mark.smoke
def test_F25_latency_of_200_ms_and_links_that_overtake_each_other(cluster, connect, weather):
    cluster.start_hub(UNHURRIED)
    proxy = weather()
    proxy.weather = Weather(delay=0.2, jitter=0.1)
    far = cluster.start_worker("far", slots=4, address=proxy.address)
    client = connect(address=proxy.address)
    client.submit_ordinary(TASKS)

    client.wait_all(40)

    assert left(cluster) == [], "slow is not dead"
    assert client.started_in(far.slots()) == set(range(TASKS))
    client.assert_clean(repeated=[])


def test_F26_bandwidth_of_1_mbit_and_payloads_of_1_mb(cluster, connect, weather):
    """Each takes the line for eight seconds, four leases; beats have a link of their own."""
    cluster.start_hub()
    proxy = weather()
    far = cluster.start_worker("far", slots=2, address=proxy.address)
    client = connect(address=proxy.address)
    proxy.weather = Weather(rate=125_000)
    data = bytes(range(250)) * 4000
    indexes = [client.submit(ordinary, data, 0.0), client.submit(produce, 1_000_000)]
    indexes += [client.submit(ordinary, b"", 0.0) for _ in range(20)]

    client.wait_for_each(indexes, 120)

    assert left(cluster) == [], "busy is not dead"
    assert client.futures[0].result() == answer(0, data)
    assert set(client.verdict().executions) == client.started_in(far.slots())


@pytest.mark.smoke
def test_F27_a_client_that_reads_a_drip(cluster, connect, weather):
    hub = cluster.start_hub()
    proxy = weather()
    cluster.start_workers(2)
    slow, brisk = connect("slow", address=proxy.address), connect("brisk")
    before = hub.rss()
    proxy.weather = Weather(rate=4_000)
    large = [slow.submit(produce, 100_000) for _ in range(300)]

    brisk.submit_ordinary(TASKS)
    brisk.wait_all(40)
    assert not set(large) <= slow.ended
    assert hub.rss() - before < 100 << 20, "what it does not read is bounded"
    proxy.weather = FAIR

    slow.wait_for_each(large, 60)
    brisk.assert_clean(repeated=[])


@pytest.mark.parametrize(
    ("chance", "batch", "size"), [(1e-5, 200, 1024), pytest.param(1e-4, 20, 0, marks=pytest.mark.smoke)]
)
def test_F28_byte_flips(cluster, connect, weather, ring, chance, batch, size):
    """With keys no spoilt byte gets anywhere: its link is dropped, and what was under way goes again."""
    cluster.start_hub()
    proxy = weather()
    _, far = near_and_far(cluster, proxy)
    client = connect(address=proxy.address)
    data = os.urandom(size)

    proxy.weather = Weather(flips=chance)
    while proxy.flipped < FLIPS:
        indexes = client.submit_ordinary(batch, data)
        client.wait_for_each(indexes, 40)
    proxy.weather = FAIR

    client.submit_ordinary(batch, data)
    client.wait_all(40)
    client.wait_until_lane("far", "ready", 30)
    assert far.alive
    client.assert_clean(data=data)


@pytest.mark.parametrize("offset", [0, 1, 2], ids=["gateway", "collector", "control"])
def test_F28_links_that_libzmq_gives_up_are_dialled_anew(cluster, connect, weather, offset):
    """After a frame that cannot be one it closes the connection and does not dial again, nor says so."""
    cluster.start_hub()
    proxy = weather()
    _, far = near_and_far(cluster, proxy)
    client = connect(address=proxy.address)
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 5, 40)

    proxy.inject(offset, b"\xff" * 64)
    wait_until(lambda: proxy.took_injections, 10, "the links are gone")

    client.wait_all(60)
    serves_again(client, far, 20)
    client.assert_clean()


@pytest.mark.smoke
def test_F29_the_address_belongs_to_another_hub_for_a_while(cluster, connect, weather):
    """Its pool works there, with nothing of the one before; then it comes back to the first one."""
    first = cluster.start_hub()
    own = cluster.address
    proxy = weather()
    _, far = near_and_far(cluster, proxy)
    client = connect()
    cluster.address = ""
    other = cluster.start_hub()
    elsewhere = connect("elsewhere")
    client.submit_ordinary(TASKS)
    client.wait_ended(TASKS // 5, 40)

    proxy.hubs.append(other.pid)
    proxy.divert(cluster.address)
    proxy.reset()
    elsewhere.submit_ordinary(100)
    elsewhere.wait_all(40)
    client.wait_all(40)
    assert list(pools_of(elsewhere.mesh.status())) == ["far"]
    assert list(pools_of(client.mesh.status())) == ["near"]

    proxy.diverted = {}
    proxy.reset()
    cluster.address = own
    serves_again(client, far, LEASE + 5)
    assert first.alive
    client.assert_clean()
    elsewhere.assert_clean(repeated=[])
