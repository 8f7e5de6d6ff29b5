"""A mesh elsewhere: hub, worker and client are processes of their own, over tcp and over ipc."""

import os

import pytest

from taskmesh import Mesh
from taskmesh.errors import HubUnreachable, InsecureBind
from tests.harness.waiting import wait_until
from tests.hosting import waiting, workload


@pytest.mark.parametrize("size", [60_000, 70_000, 200_000, 3_000_000])
def test_large_payloads_go_there_and_back(mesh, size):
    data = os.urandom(size)

    assert mesh.submit(workload.size_of, data).result(20) == size
    assert mesh.submit(workload.echo, data).result(20) == data


def test_arrays_come_back_writable(mesh):
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(100_000, dtype="f8")

    found = mesh.submit(workload.echo, array).result(20)

    assert numpy.array_equal(found, array)
    assert found.flags.writeable


def test_no_hub_is_an_error_within_the_time_given(tmp_path):
    mesh = Mesh(f"ipc://{tmp_path}/nobody", open_timeout=0.3)

    with pytest.raises(HubUnreachable, match="taskmesh hub --bind"):
        mesh.submit(workload.add, 1, 2)


def test_an_address_beyond_this_machine_is_refused():
    mesh = Mesh("tcp://192.0.2.1:5550")

    with pytest.raises(InsecureBind, match="without keys"):
        mesh.submit(workload.add, 1, 2)


def test_what_a_client_cancels_last_is_cancelled(programs, tmp_path):
    """Its socket was closed with a message unread: that reset the connection, 1 time in 100 or so."""
    address = programs.hub()[1]
    programs.worker(address, "--mode", "async", slots=4)
    for number in range(300):
        with Mesh(address) as mesh:
            files = [tmp_path / f"{number}-{slot}" for slot in range(4)]
            futures = [mesh.submit(waiting.waits, str(file)) for file in files]
            wait_until(lambda files=files: all(map(waiting.begun, files)))
            for future in futures:
                future.cancel()

    with Mesh(address) as observer:
        wait_until(lambda: not any(observer.status()["tasks"].values()))
