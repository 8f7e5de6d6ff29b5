"""`taskmesh explain`: why a task is where it is."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from taskmesh import Mesh
from tests.harness.journal import words
from tests.harness.programs import Programs, rows
from tests.harness.waiting import wait_until
from tests.net import workload

pytestmark = pytest.mark.timeout(120)


def text_of(programs: Programs, address: str, task: str) -> str:
    outcome = programs.run("explain", task, "--address", address)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_it_names_what_a_task_waits_for(programs: Programs, tmp_path: Path):
    address = programs.hub()[1]
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        lonely = mesh.submit(workload.note, str(journal), "gpu")
        lonely_id = wait_until(lambda: next(iter(rows(listed(programs, address))), {}).get("task_id"))

        text = text_of(programs, address, lonely_id)
        assert f"task {lonely_id} (" in text
        assert "note, queue default) is QUEUED: no pool serves queue 'default': start one" in text

        programs.worker(address, "--name", "one")
        assert lonely.result(20) == "gpu"
        assert "is FINISHED: it has its outcome" in text_of(programs, address, lonely_id)

        held = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(lambda: "held" in words(journal))
        (running,) = rows(listed(programs, address))
        assert "pool one" in text_of(programs, address, running["task_id"])
        assert programs.run("pause", "one", "--address", address).returncode == 0
        mesh.submit(workload.note, str(journal), "later").add_done_callback(lambda _: None)
        waiting = wait_until(lambda: rows(listed(programs, address, "--state", "queued")))[0]["task_id"]

        assert "takes work: one is paused" in text_of(programs, address, waiting)

        assert programs.run("resume", "one", "--address", address).returncode == 0
        gate.touch()
        assert held.result(20) == "held"


def listed(programs: Programs, address: str, *more: str) -> CompletedProcess[str]:
    return programs.run("tasks", "--json", "--address", address, *more)


def test_json_and_a_task_that_is_not_there(programs: Programs):
    address = programs.hub()[1]
    nobody = "0" * 31 + "1"

    outcome = programs.run("explain", nobody, "--address", address, "--json")
    assert outcome.returncode == 1
    assert f"no task {nobody} is or was here" in json.loads(outcome.stdout)["error"]["message"]
    assert programs.run("explain", "x", "--address", address).returncode == 1
    assert (
        programs.run("explain", nobody, "--address", "tcp://127.0.0.1:9", "--timeout", "0.3").returncode == 3
    )
