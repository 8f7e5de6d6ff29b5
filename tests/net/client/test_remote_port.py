"""A mesh elsewhere: hub, worker and client are processes of their own, over tcp and over ipc."""

import os
import subprocess
import sys

import pytest

from taskmesh import Mesh, Retry
from taskmesh.errors import HubUnreachable, InsecureBind
from tests.harness.journal import words
from tests.harness.program import environment
from tests.harness.waiting import wait_until
from tests.net import workload


def test_a_thousand_tasks_come_back_each_with_its_own_result(mesh):
    before = mesh.status()["finished"]

    futures = [mesh.submit(workload.add, number, 1) for number in range(1000)]

    assert [future.result(20) for future in futures] == list(range(1, 1001))
    assert mesh.status()["finished"] == before + 1000


def test_map_comes_back_in_order(mesh):
    assert list(mesh.map(workload.add, range(2000), range(2000), timeout=20)) == list(range(0, 4000, 2))


def test_an_exception_comes_back_as_itself_with_its_remote_traceback(mesh):
    future = mesh.submit(workload.refuse, "not like this")

    error = future.exception(20)

    assert type(error) is workload.Refusal
    assert error.args == ("not like this",)
    assert "raise Refusal(text)" in future.traceback_text
    assert any("attempt 1, worker first/" in note for note in error.__notes__)


def test_a_function_that_no_module_has_travels_by_value(mesh):
    step = 3

    assert mesh.submit(lambda value: value + step, 4).result(20) == 7


@pytest.mark.parametrize("size", [60_000, 70_000, 200_000, 3_000_000])
def test_large_payloads_go_there_and_back(mesh, size):
    data = os.urandom(size)

    assert mesh.submit(workload.size_of, data).result(20) == size
    assert mesh.submit(workload.echo, data).result(20) == data


def test_many_large_payloads_are_under_way_at_once(mesh):
    values = [os.urandom(100_000 + number) for number in range(40)]

    futures = [mesh.submit(workload.echo, [number, value]) for number, value in enumerate(values)]

    assert [future.result(20) for future in futures] == [[n, value] for n, value in enumerate(values)]


def test_arrays_come_back_writable(mesh):
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(100_000, dtype="f8")

    found = mesh.submit(workload.echo, array).result(20)

    assert numpy.array_equal(found, array)
    assert found.flags.writeable


def test_retries_run_the_task_again(mesh, tmp_path):
    journal = tmp_path / "journal"
    steady = mesh.with_options(retries=Retry(max=5, backoff=0.01))

    assert steady.submit(workload.fail_first, str(journal)).result(20) == 3
    assert words(journal) == ["try"] * 3


def test_a_running_task_can_be_cancelled_and_its_slot_works_on(mesh, tmp_path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    held = mesh.submit(workload.hold, str(journal), "held", str(gate))
    wait_until(lambda: words(journal) == ["held"])

    assert held.cancel()

    assert held.cancelled()
    wait_until(lambda: not any(mesh.status()["tasks"].values()))
    futures = [mesh.submit(workload.add, number, 1) for number in range(10)]
    assert [future.result(20) for future in futures] == list(range(1, 11))


def test_tasks_that_wait_can_be_cancelled(mesh, tmp_path):
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    held = [mesh.submit(workload.hold, str(journal), f"h{n}", str(gate)) for n in range(2)]
    waiting = [mesh.submit(workload.note, str(journal), f"w{n}") for n in range(20)]
    wait_until(lambda: len(words(journal)) == 2)

    assert mesh.cancel(waiting) == 20
    # A slot comes free only once the pool has heard of this cancellation, and so of those before it.
    assert mesh.cancel(held[1:]) == 1
    assert mesh.submit(workload.note, str(journal), "after").result(20) == "after"
    gate.touch()

    assert held[0].result(20) == "h0"
    assert sorted(words(journal)) == ["after", "h0", "h1"]


def test_several_clients_share_a_hub(mesh, shared_address):
    with Mesh(shared_address) as other:
        futures = [each.submit(workload.add, number, 1) for number in range(200) for each in (mesh, other)]

        assert sum(future.result(20) for future in futures) == 2 * sum(range(1, 201))
        assert present(mesh) == 2


def test_a_client_that_leaves_is_not_there_any_more(mesh, shared_address):
    with Mesh(shared_address) as leaving:
        assert leaving.submit(workload.add, 1, 1).result(20) == 2
        assert present(mesh) == 2

    wait_until(lambda: present(mesh) == 1)


def present(mesh: Mesh) -> int:
    return sum(client["present"] for client in mesh.status()["clients"])


FORKS = """
import os, sys
from taskmesh import Mesh
from taskmesh.errors import ForkedMeshError
with Mesh(sys.argv[1]) as mesh:
    assert mesh.submit(abs, -1).result(20) == 1
    child = os.fork()
    if not child:
        try:
            mesh.submit(abs, -2)
        except ForkedMeshError:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert mesh.submit(abs, -3).result(20) == 3
print("done")
"""


def test_a_caller_that_forks_keeps_the_mesh_for_itself(shared_address):
    outcome = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, shared_address],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )

    assert (outcome.stdout, outcome.stderr) == ("done\n", "")


def test_no_hub_is_an_error_within_the_time_given(tmp_path):
    mesh = Mesh(f"ipc://{tmp_path}/nobody", open_timeout=0.3)

    with pytest.raises(HubUnreachable, match="taskmesh hub --bind"):
        mesh.submit(workload.add, 1, 2)


def test_an_address_beyond_this_machine_is_refused():
    mesh = Mesh("tcp://192.0.2.1:5550")

    with pytest.raises(InsecureBind, match="without keys"):
        mesh.submit(workload.add, 1, 2)
