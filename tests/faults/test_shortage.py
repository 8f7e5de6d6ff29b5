"""Too little of something: memory (the kernel kills), processes (no slot can be forked)."""

import os
import signal
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.errors import HubUnreachable
from tests.conformance.wire import WirePeer
from tests.faults.workload import misbehave_by_turns, misbehave_once, wait_for
from tests.harness.cluster import OVERRIDES, pools_of
from tests.harness.program import Program
from tests.harness.requirement import require
from tests.harness.waiting import wait_until
from tests.pool.slots.cgroup import group_of, is_available

pytestmark = pytest.mark.fault

MEMORY = 256 << 20


def test_F37_slot_out_of_memory(cluster, connect):
    require(is_available("memory"), "a memory cgroup that we may write to: run as root")
    with group_of("memory") as group, closing(cluster.programs):
        group.set_memory(MEMORY)
        cluster.start_hub()
        worker = cluster.start_worker("pool", prepare=lambda: group.add(os.getpid()))
        client = connect()
        client.submit_ordinary(100)
        once = client.submit(misbehave_once, "use_memory", 2 * MEMORY)
        turns = [["use_memory", 2 * MEMORY], ["kill_self"], ["kill_self"]]
        both = client.submit(misbehave_by_turns, turns)
        began = time.monotonic()
        client.submit_ordinary(300)
        client.wait_ended(400, 10)

        client.wait_all(20)
        verdict = client.assert_clean(repeated=[once, both])
        assert client.futures[once].attempt == 2
        assert client.futures[both].attempt == 4, "memory kills and crashes are counted apart"
        assert verdict.ended == {"ok": 402}
        assert client.restarted(once) - began >= 1.0, "memory is asked for again only after a second"
        assert worker.alive

        always = client.submit(misbehave_by_turns, [["use_memory", 2 * MEMORY]] * 3)
        client.wait_all(20)
        error = client.futures[always].exception()
        assert type(error).__name__ == "WorkerCrashed"
        assert "lack of memory" in str(error)
        assert [note[:9] for note in error.__notes__[2:]] == ["attempt 1", "attempt 2", "attempt 3"]
        assert "pool.left" not in cluster.hub.text("stderr")


def test_a_pool_kills_its_largest_slot_before_the_kernel_kills_them_all(cluster, connect, gates, tmp_path):
    """The kernel would kill the whole container (memory.oom.group); the pool is faster."""
    require(is_available("memory"), "a memory cgroup that we may write to: run as root")
    with group_of("memory") as group, closing(cluster.programs):
        group.set_memory(MEMORY)
        cluster.start_hub()
        worker = cluster.start_worker("pool", prepare=lambda: group.add(os.getpid()))
        client, gate = connect(), gates()
        innocent = client.submit(wait_for, gate.path)
        client.wait_started(innocent)
        cached = client.submit(misbehave_once, "fill_page_cache", str(tmp_path / "file"), 2 * MEMORY)
        client.wait_ended(1, 20)
        assert client.futures[cached].result()
        assert client.futures[cached].attempt == 1, "files in the page cache are no reason"
        assert group.memory() > MEMORY // 2, "they still fill it"

        once = client.submit(misbehave_once, "grow", 2 * MEMORY)
        always = client.submit(misbehave_by_turns, [["grow", 2 * MEMORY]] * 3)
        client.wait_ended(3, 40)
        gate.open()
        client.wait_all(10)

        assert client.futures[once].result()
        assert client.futures[once].attempt == 2
        assert client.futures[innocent].attempt == 1
        error = client.futures[always].exception()
        assert type(error).__name__ == "WorkerCrashed"
        assert "its pool killed it before the kernel" in str(error)
        assert [note[:9] for note in error.__notes__[2:]] == ["attempt 1", "attempt 2", "attempt 3"]
        assert group.kills() == 0
        assert worker.alive


@pytest.mark.smoke
def test_F40_no_process_for_a_slot(cluster, connect, gates):
    require(is_available("pids"), "a pids cgroup that we may write to: run as root")
    with group_of("pids") as group, closing(cluster.programs):
        cluster.start_hub()
        worker = cluster.start_worker("pool", slots=2, prepare=lambda: group.add(os.getpid()))
        client, gate = connect(), gates()
        client.submit_ordinary(100)
        held = client.submit(wait_for, gate.path)
        client.wait_ended(100)
        client.wait_started(held)
        idle = next(pid for pid in worker.slots() if pid != client.pid_of(held))

        group.set_pids(int((group.folder / "pids.current").read_text()) - 1)
        os.kill(idle, signal.SIGKILL)
        wait_until(lambda: "no process for the slot" in worker.text("stderr"), 5)
        used = worker.cpu()
        client.watch_for(2.0)
        assert worker.cpu() - used < 0.4, "it does not spin"
        assert len(worker.text("stderr").splitlines()) < 10, "nor does it repeat itself"
        gate.open()
        client.submit_ordinary(100)
        client.wait_all(10)
        assert pools_of(client.mesh.status())["pool"]["state"] == "ready"

        (group.folder / "pids.max").write_text("max")
        wait_until(lambda: len(worker.slots()) == 2, 10)
        client.submit_ordinary(100)
        client.wait_all(10)
        client.assert_clean(repeated=[])
        assert Path(f"/proc/{worker.pid}").exists()


@pytest.mark.smoke
def test_a_hub_stays_within_its_memory_whatever_its_clients_submit(cluster):
    """Arguments of more bytes than its container has; a hub that is killed gets them all again."""
    require(is_available("memory"), "a memory cgroup that we may write to: run as root")
    count, size = 60, 2 << 20
    with group_of("memory") as group, closing(cluster.programs), ExitStack() as meshes:
        group.set_memory(MEMORY)

        def start() -> Program:
            return cluster.start_hub(prepare=lambda: group.add(os.getpid()))

        hub = start()
        (told,) = [event for event in hub.events("stderr") if event["event"] == "memory"]
        assert (told["limit"], told["max_bytes"]) == (MEMORY, MEMORY // 2)
        clients = [meshes.enter_context(Mesh(cluster.address, config={}, **OVERRIDES)) for _ in range(3)]
        futures = [client.submit(len, bytes(size)) for _ in range(count) for client in clients]

        def is_full() -> bool:
            with suppress(HubUnreachable):
                return MEMORY // 4 - size < clients[0].status()["bytes"] <= MEMORY // 4
            return False

        wait_until(is_full, 30, "the hub has taken in as much as it may")
        used = hub.cpu()
        pause = threading.Event()
        pause.wait(2.0)
        assert hub.cpu() - used < 0.5, "clients that wait for room leave it alone"
        hub.kill()
        hub = start()
        wait_until(is_full, 30, "and another hub as well")
        cluster.start_workers(2)

        assert [future.result(60) for future in futures] == [size] * len(futures)
        assert hub.alive
        assert group.kills() == 0


def test_strangers_with_half_messages_take_no_more_than_a_hub_s_memory(cluster):
    """Each of six says frames without end in one message, which libzmq gathers."""
    require(is_available("memory"), "a memory cgroup that we may write to: run as root")
    with group_of("memory") as group, closing(cluster.programs), ExitStack() as strangers:
        group.set_memory(MEMORY)
        hub = cluster.start_hub(prepare=lambda: group.add(os.getpid()))
        cluster.start_worker("pool")
        mesh = strangers.enter_context(Mesh(cluster.address, config={}, **OVERRIDES))
        assert mesh.submit(abs, -1).result(20) == 1
        peers = [strangers.enter_context(WirePeer(cluster.address, "DEALER")) for _ in range(6)]
        for peer in peers:
            with suppress(OSError):  # it is cut off
                for _ in range(60):
                    peer.send_unfinished(bytes(1_000_000))

        wait_until(lambda: "memory.short" in hub.text("stderr"), 20)
        assert mesh.submit(abs, -2).result(20) == 2
        assert hub.alive
        assert group.kills() == 0
