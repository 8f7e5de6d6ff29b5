"""Workers and hubs that are killed or leave: nothing is lost, and what runs goes on where it can."""

import signal

import pytest

from taskmesh import Mesh
from tests.harness.cluster import pool_states
from tests.harness.journal import words
from tests.harness.program import exists
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

pytestmark = pytest.mark.fault


TCP = "tcp://127.0.0.1:0"


def test_a_second_signal_ends_a_worker_at_once_and_its_task_runs_elsewhere(programs, tmp_path):
    address = programs.hub(TCP)[1]
    leaving = programs.worker(address, "--name", "leaving")
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(lambda: words(journal) == ["held"])

        leaving.signal(signal.SIGINT)
        wait_until(lambda: pool_states(mesh) == {"leaving": "draining"})
        leaving.signal(signal.SIGTERM)

        assert leaving.wait() == 1
        programs.worker(address, "--name", "staying")
        gate.touch()
        assert held.result(20) == "held"
        assert held.worker == "staying/0"


def test_a_task_that_outlasts_the_grace_runs_elsewhere(programs, tmp_path):
    address = programs.hub(TCP)[1]
    leaving = programs.worker(address, "--name", "leaving", "--grace", "0.5")
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(lambda: words(journal) == ["held"])

        leaving.signal(signal.SIGTERM)

        assert leaving.wait() == 0
        programs.worker(address, "--name", "staying")
        gate.touch()
        assert held.result(20) == "held"
        assert held.worker == "staying/0"


def test_a_worker_waits_for_a_hub_that_is_not_there_yet(programs: Programs, tmp_path):
    worker = programs.start("worker", "--address", f"ipc://{tmp_path}/hub", "--json")
    wait_until(lambda: '"event": "waiting"' in worker.errors, 20)

    programs.hub(f"ipc://{tmp_path}/hub")

    assert worker.ready()["address"] == f"ipc://{tmp_path}/hub"


def test_a_killed_hub_with_a_pool_leaves_no_process(programs: Programs, tmp_path):
    program = programs.start("up", "--bind", TCP, "--concurrency", "2", "--json")
    address = program.ready()["gateway"]
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(journal.exists)
        family = program.family()
        assert len(family) == 3  # the fork server and two slots

        program.kill()

        wait_until(lambda: not any(map(exists, family)), 2)
        assert held.cancel()


def test_a_hub_ends_on_ctrl_c_with_everything_that_it_has_started(programs: Programs):
    program = programs.start("up", "--bind", TCP, "--concurrency", "1", "--json")
    address = program.ready()["gateway"]
    with Mesh(address) as mesh:
        assert mesh.submit(workload.add, 1, 2).result(20) == 3

    program.signal(signal.SIGINT)

    assert program.wait() == 0
    assert "Traceback" not in program.errors
