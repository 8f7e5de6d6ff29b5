"""Limits of a hub's sockets: what is too large for it, too many for it, and what it says of that."""

import resource
import time

import psutil
import pytest

from taskmesh import Mesh
from taskmesh.config import load
from taskmesh.errors import ConfigError, HubUnreachable, TooLarge
from taskmesh.hosting.local_pool import LocalPool
from taskmesh.hub import file_limit as file_limit_module
from taskmesh.hub.embedded_hub import EmbeddedHub, LocalLinks
from taskmesh.hub.file_limit import FileBudget, file_budget
from taskmesh.hub.listening_hub import affordable
from taskmesh.hub.machine.settings import HubSettings
from taskmesh.link import socket_profiles as profiles
from taskmesh.link.endpoints import Endpoints
from taskmesh.pool.program import run_pool
from taskmesh.sockets import Context, Dealer
from taskmesh.system.loop import Loop
from tests.conformance.wire import WirePeer
from tests.harness.cluster import Cluster
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until
from tests.hosting import workload

TCP = "tcp://127.0.0.1:0"
SMALL = {"TASKMESH_MAX_PAYLOAD": "100kB"}
LARGEST = profiles.FRAME


def unused(*_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize("wrong", ["a\nb", "\x1b[0m", "\ud800", "q" * 1025])
@pytest.mark.parametrize("what", ["queues", "tags"])
def test_names_of_queues_and_tags_that_would_not_print_are_refused(what: str, wrong: str):
    config, loop = load({"pool": {what: [wrong]}}, environ={}), Loop()

    with pytest.raises(ConfigError, match="take up to 1024 printable characters"):
        run_pool(config, ready=unused, news=unused)
    with pytest.raises(ConfigError, match="take up to 1024 printable characters"):
        LocalPool(
            config,
            loop,
            EmbeddedHub(loop, LocalLinks(loop, lambda kind, fields: None), HubSettings(epoch=1), None),
        )


@pytest.mark.parametrize(
    ("part", "socket_type", "largest"),
    [
        ("gateway", "DEALER", LARGEST),
        ("collector", "PUSH", LARGEST),
        ("control", "SUB", profiles.NOTHING),
    ],
)
def test_who_announces_a_frame_above_the_wall_is_cut_off_at_once(
    programs: Programs, part: str, socket_type: str, largest: int
):
    hub, address = programs.hub(TCP, **SMALL)
    programs.worker(address)
    process, endpoint = psutil.Process(hub.pid), getattr(Endpoints.of(address), part)
    with Mesh(address) as mesh, WirePeer(endpoint, socket_type) as stranger:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        before = process.memory_info().rss

        stranger.announce(largest + 1)

        with pytest.raises(OSError, match=r"closed|reset"):
            stranger.drain()
        for _ in range(20):
            with WirePeer(endpoint, socket_type) as another:
                another.announce(largest)  # just allowed: nothing is set aside before it has come
        assert [mesh.submit(workload.add, n, 1).result(20) for n in range(50)] == list(range(1, 51))
        assert process.memory_info().rss - before < 32 << 20


def test_a_hub_that_takes_less_than_its_client_says_so_task_by_task(programs: Programs):
    address = programs.hub(TCP, **SMALL)[1]
    programs.worker(address)
    with Mesh(address) as mesh:
        fits, above = (mesh.submit(workload.size_of, bytes(size)) for size in (90_000, 200_000))
        later = mesh.submit(workload.size_of, bytes(150_000))

        assert fits.result(20) == 90_000
        for future in (above, later):
            assert isinstance(future.exception(20), TooLarge)
            assert "its hub takes max_payload = 100,000 only" in str(future.exception())


def test_more_pools_than_the_hub_may_have_wait_and_status_says_so(programs: Programs):
    address = programs.hub(TCP, TASKMESH_MAX_POOLS="1")[1]
    first = programs.worker(address, "--name", "first")
    second = programs.start("worker", "--address", address, "--name", "second", "--json")

    def refused() -> str:
        return rows(programs.run("status", "--address", address, "--json"))["refused"].get("second", "")

    assert "may have no more (hub.max_pools)" in wait_until(refused, 20)
    assert "gives this pool no session" in wait_until(lambda: second.errors, 20)
    assert second.process.poll() is None
    first.end()
    assert second.ready()["pool"] == "second"


def test_few_open_files_make_fewer_pools_and_the_hub_says_so(cluster: Cluster):
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    hub = cluster.start_hub(prepare=few_files)
    cluster.start_worker("pool", slots=1)

    told, memory = [event for event in hub.events("stderr") if event["event"] in ("limits", "memory")]
    assert 2 * memory["calls"] <= memory["max_bytes"] <= memory["limit"] // 2
    assert (told["open_files"], told["max_pools"]) == (200, 18)
    with Mesh(cluster.address) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3


@pytest.mark.parametrize(("files", "pools"), [(132, 1), (200, 18), (1 << 20, 1000)])
def test_files_bound_pools(monkeypatch, files, pools):
    monkeypatch.setattr(file_limit_module, "raise_file_limit", lambda: files)

    assert file_budget(1000) == FileBudget(files, pools)


def test_too_few_files_for_one_pool_are_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(file_limit_module, "raise_file_limit", lambda: 131)

    with pytest.raises(ConfigError, match="ulimit -n"):
        file_budget(1000)


@pytest.mark.parametrize(
    "options",
    [profiles.GATEWAY, profiles.COLLECTOR, profiles.CONTROL, profiles.LANE],
)
def test_every_socket_that_listens_has_its_limits(options):
    assert 0 < options.max_message_bytes <= LARGEST
    assert options.handshake_interval_ms == 2000
    assert options.backlog_connections == 1024
    assert options.heartbeat_interval_ms == 0  # libzmq 4.3.5 aborts if a ping meets a peer's death
    assert 0 < 2 * options.keepalive_s <= profiles.DATA_S  # a connection that its peer forgot ends by itself


@pytest.mark.parametrize(
    "options",
    [profiles.TO_GATEWAY, profiles.TO_COLLECTOR, profiles.TO_CONTROL, profiles.TO_LANE, profiles.BEATS],
)
def test_who_dials_pings_and_says_for_how_long_it_is_believed(options):
    assert 0 < options.heartbeat_interval_ms <= 10_000
    assert options.heartbeat_interval_ms < options.heartbeat_ttl_ms <= 1000 * profiles.DATA_S


@pytest.mark.parametrize("options", [profiles.TO_GATEWAY, profiles.TO_COLLECTOR, profiles.TO_CONTROL])
def test_who_dials_again_waits_longer_each_time(options):
    """From 0.1 to 1 s; libzmq adds some by chance, so that hundreds of pools do not come at once."""
    assert (options.reconnect_interval_ms, options.reconnect_max_ms) == (100, 1000)


@pytest.mark.parametrize("options", [profiles.GATEWAY, profiles.COLLECTOR, profiles.CONTROL])
def test_what_one_peer_may_have_waiting_is_bounded(options):
    assert 0 < options.recv_hwm_messages <= profiles.QUEUED
    assert options.send_hwm_messages in (
        0,
        profiles.QUEUED,
    )  # 0: pools are sent what the ledger's caps allow


def test_a_cap_above_the_memory_that_there_is_is_refused_with_the_cure(programs: Programs):
    outcome = programs.run("hub", "--bind", TCP, env={"TASKMESH_HUB__MAX_BYTES": "900000GiB"})

    assert outcome.returncode == 2
    assert "hub.max_bytes = 966,367,641,600,000" in outcome.stderr
    assert "Leave it out, for half of the memory" in outcome.stderr


def test_a_hub_at_its_limit_of_files_says_so_and_sleeps(cluster: Cluster):
    """J: idle clients until no more get in."""

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))

    cluster.start_hub(prepare=few_files)
    cluster.start_worker("pool", slots=1)
    hub = cluster.hub
    with Mesh(cluster.address, config={}) as mesh, Context(max_sockets=2000) as context:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3
        idle = [Dealer(context) for _ in range(500)]
        for one in idle:
            one.connect(cluster.address)
        warning = str(wait_until(lambda: mesh.status()["warnings"].get("hub"), 40))
        assert "ulimit -n" in warning
        assert "files.short" in hub.text("stderr")
        used, began = hub.cpu(), time.monotonic()
        with pytest.raises(HubUnreachable, match=r"limit of open files"):
            Mesh(cluster.address, config={}, open_timeout=2.0).status()
        assert hub.cpu() - used < 0.2 * (time.monotonic() - began), "it does not spin"
        assert mesh.submit(workload.add, 1, 2).result(20) == 3

        for one in idle:
            one.close()
        wait_until(lambda: not mesh.status()["warnings"], 20)
        with Mesh(cluster.address, config={}, open_timeout=20.0) as another:
            assert another.submit(workload.add, 1, 2).result(20) == 3


@pytest.mark.parametrize(("asked", "warned"), [("2GiB", True), ("16MiB", False), (None, False)])
def test_a_client_s_cap_above_what_its_hub_allows_is_told_with_the_cure(monkeypatch, asked, warned):
    """It was cut down without a word. So is the default on a small hub: `memory` tells to how much."""
    monkeypatch.setattr(file_limit_module, "raise_file_limit", lambda: 1 << 20)
    sections = {"hub": {"max_bytes": "64MiB"}, "client": {"max_bytes": asked} if asked else {}}
    told: list[tuple[str, dict[str, object]]] = []

    settled = affordable(load(sections, environ={}), lambda kind, fields: told.append((kind, fields)))

    memory, limits = ([fields for what, fields in told if what == kind] for kind in ("memory", "limits"))
    assert [fields["each_client"] for fields in memory] == [settled.client_max_bytes]
    assert [fields["client_max_bytes"] for fields in limits] == ([32 << 20] if warned else [])
    assert all("raise hub.max_bytes" in str(fields["text"]) for fields in limits)
