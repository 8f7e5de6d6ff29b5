"""Large payloads: in memory files between a mesh and its own slots, copied over sockets."""

import os
import resource
from contextlib import suppress
from pathlib import Path

import numpy
import pytest

from taskmesh import Mesh, Retry, task
from tests.harness.journal import words
from tests.harness.program import command
from tests.harness.waiting import wait_until
from tests.hosting import workload

SIZES = [1 << 20, 20 << 20]
"""Below and above what is mapped where it is read."""
MEMFD = "/memfd:taskmesh (deleted)"


def payload_files(pid):
    """The inodes of a process's memory files."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.readlink(link) == MEMFD:
                found.add(link.stat().st_ino)
    return found


def payload_descriptors():
    """This process's descriptors of memory files."""
    links = Path("/proc/self/fd")
    return [int(link.name) for link in links.iterdir() if link.is_symlink() and os.readlink(link) == MEMFD]


def only_hub_and_worker(programs, bind="tcp://127.0.0.1:0", **env):
    hub, address = programs.hub(bind, **env)
    return hub, programs.worker(address, slots=2, **env), address


def test_a_mesh_that_listens_shares_its_files_with_its_own_slots(tmp_path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(bind="tcp://127.0.0.1:0", workers=1) as mesh:
        slot = mesh.submit(os.getpid).result(20)
        data = numpy.ones(SIZES[1], numpy.uint8)
        future = mesh.submit(workload.held_sum, data, str(journal), "held", str(gate))
        wait_until(lambda: words(journal) == ["held"])

        assert len(payload_files(os.getpid()) & payload_files(slot)) == 1
        gate.touch()
        assert future.result(20) == SIZES[1]
        assert int(mesh.submit(workload.filled, SIZES[1], 7).result(20)[-1]) == 7


def test_a_sender_may_change_its_array_at_once(mesh):
    data = numpy.ones(SIZES[0], numpy.uint8)
    futures = [mesh.submit(workload.echo, data)]
    data[:] = 2
    futures.append(mesh.submit(workload.echo, data))
    data[:] = 3

    assert [int(future.result(20)[-1]) for future in futures] == [1, 2]


def test_files_are_used_again_and_no_payload_shows_another(mesh):
    for size in SIZES:
        for turn in range(8):
            sent = numpy.full(size, turn, numpy.uint8)
            assert bytes(mesh.submit(workload.echo, sent).result(20)) == bytes(sent)
        content = [bytes([turn]) * size for turn in range(4)]
        assert list(mesh.map(workload.echo, content)) == content

    assert len(payload_files(os.getpid())) <= 16


def test_an_array_that_a_task_keeps_never_changes():
    with Mesh(workers=1) as mesh:
        for turn in range(20):
            kept = mesh.submit(workload.keep, numpy.full(SIZES[0], turn, numpy.uint8)).result(20)
            assert kept == list(range(turn + 1))

        assert len(payload_files(os.getpid())) <= 3, "its file was used again"


def test_a_slot_maps_a_file_once_and_gives_it_back_when_it_is_idle():
    with Mesh(workers=1) as mesh:
        slot = mesh.submit(workload.forget_files_after, 0.05).result(20)
        for turn in range(20):
            sent = numpy.full(SIZES[0], turn, numpy.uint8)
            assert mesh.submit(workload.total, sent).result(20) == turn * SIZES[0]
        wait_until(lambda: not payload_files(slot))


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_file_may_be_used_again_while_the_task_that_it_brought_runs(tmp_path, timeout):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(workers=1) as mesh:
        data = numpy.ones(SIZES[0], numpy.uint8)
        held = task(workload.held_sum).with_options(timeout=timeout)
        future = mesh.submit(held, data, str(journal), "held", str(gate))
        wait_until(lambda: words(journal) == ["held"])

        assert [os.pread(fd, 1, 0) for fd in payload_descriptors()] == [b"\1"]
        gate.touch()
        assert future.result(20) == SIZES[0]


def test_more_payloads_than_a_process_may_have_open_arrive(mesh):
    sent = [bytes([turn % 251]) * (150 << 10) for turn in range(600)]
    futures = [mesh.submit(workload.echo, each) for each in sent]

    assert [future.result(30) for future in futures] == sent


@pytest.mark.fault
@pytest.mark.parametrize("size", SIZES)
def test_a_killed_pool_leaves_the_argument_to_the_next(programs, tmp_path, size):
    hub, doomed, address = only_hub_and_worker(programs)
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        data = numpy.ones(size, numpy.uint8)
        future = mesh.submit(workload.held_sum, data, str(journal), "held", str(gate))
        wait_until(lambda: words(journal) == ["held"])
        doomed.kill()
        programs.worker(address)
        gate.touch()

        assert future.result(30) == size
    assert not payload_files(hub.pid)


def test_a_task_that_is_tried_again_gets_what_it_got_at_first(mesh, tmp_path):
    data = numpy.ones(SIZES[0], numpy.uint8)
    journal = tmp_path / "journal"
    summed = task(workload.sum_at_third).with_options(retries=Retry(max=2, backoff=0.01))
    others = [mesh.submit(workload.echo, numpy.full(SIZES[0], 9, numpy.uint8)) for _ in range(4)]

    assert summed.submit(data, str(journal)).result(20) == SIZES[0]
    assert all(int(other.result(20)[0]) == 9 for other in others)


def test_payloads_leave_a_hub_the_descriptors_that_it_needs(programs):
    few = (300, 300)
    line = command("hub", "--bind", "tcp://127.0.0.1:0", "--json")[1:]
    hub = programs.launch("hub", line, prepare=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few))
    address = hub.ready()["gateway"]
    programs.worker(address, slots=2)
    with Mesh(address) as mesh:
        sent = [bytes([turn % 251]) * (150 << 10) for turn in range(400)]
        futures = [mesh.submit(workload.echo, each) for each in sent]

        assert [future.result(30) for future in futures] == sent
    assert "files.short" not in hub.text() + hub.errors
