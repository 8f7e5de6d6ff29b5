"""`taskmesh drain --idlest`: of some pools those leave that have least to do."""

from pathlib import Path

import pytest

from taskmesh import Mesh
from tests.harness.journal import words
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until
from tests.hosting import workload

pytestmark = pytest.mark.timeout(120)


def test_the_idle_pools_leave_and_no_running_task_is_touched(programs: Programs, tmp_path: Path):
    address = programs.hub()[1]
    held = programs.worker(address, "--name", "m-cpu-a", slots=2)
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        running = [mesh.submit(workload.hold, str(journal), f"{n}", str(gate)) for n in range(2)]
        wait_until(lambda: len(words(journal)) == 2)
        idle = [programs.worker(address, "--name", f"m-cpu-{name}") for name in "bc"]
        other = programs.worker(address, "--name", "m-gpu-a", "--queues", "gpu")

        told = programs.run("drain", "m-cpu", "--idlest", "2", "--wait", "20", "--address", address)

        assert (told.returncode, sorted(told.stdout.split())) == (0, ["m-cpu-b", "m-cpu-c"]), told.stderr
        assert [program.wait() for program in idle] == [0, 0]
        assert held.process.poll() is other.process.poll() is None
        gate.touch()
        assert [future.result(20) for future in running] == ["0", "1"]
        assert {future.attempt for future in running} == {1}


def test_waiting_ends_with_4_when_a_pool_takes_longer(programs: Programs, tmp_path: Path):
    address = programs.hub()[1]
    programs.worker(address, "--name", "m-a")
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        running = mesh.submit(workload.hold, str(journal), "x", str(gate))
        wait_until(lambda: words(journal) == ["x"])

        assert (
            programs.run("drain", "m", "--idlest", "1", "--wait", "0.3", "--address", address).returncode == 4
        )

        gate.touch()
        assert running.result(20) == "x"


@pytest.mark.parametrize("line", [("--idlest", "2"), ("m", "--idlest", "0"), ("m", "--idlest", "many")])
def test_wrong_usage_is_2(programs: Programs, line: tuple[str, ...]):
    assert programs.run("drain", *line).returncode == 2
