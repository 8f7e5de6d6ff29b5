"""A worker drains: by SIGTERM or SIGHUP, through its hub, at its side port; with a hub and without one."""

import json
import signal
import time
from pathlib import Path

import pytest

from taskmesh import Mesh
from tests.cli.test_side_port import HTTP, TCP, side_of
from tests.harness.journal import words
from tests.harness.program import Program
from tests.harness.programs import Programs
from tests.harness.side_port import ask, bearer
from tests.harness.waiting import wait_until
from tests.hosting import workload

LEASE = "2"


def drain_by(way: str, programs: Programs, worker: Program, address: str) -> None:
    """Asks a worker of the name `leaving` to leave."""
    match way:
        case "signal":
            worker.signal(signal.SIGTERM)
        case "terminal":  # it closes: the shell says so, and then the kernel
            worker.signal(signal.SIGHUP)
            wait_until(lambda: "draining" in worker.errors)
            worker.signal(signal.SIGHUP)
        case "hub":
            assert programs.run("drain", "leaving", "--address", address).stdout == "leaving\n"
        case "port":
            status, text = ask(f"{side_of(worker)}/drain", "POST")
            assert (status, json.loads(text)["state"]) == (202, "draining")
        case "command":
            side = side_of(worker).removeprefix("http://")
            assert programs.run("drain", "--http", side).stdout == f"{side}\n"


@pytest.mark.parametrize(
    "way", [pytest.param("signal", marks=pytest.mark.smoke), "terminal", "hub", "port", "command"]
)
def test_unstarted_work_goes_back_running_work_ends_and_exit_is_0(programs, tmp_path, way):
    address = programs.hub(TCP)[1]
    leaving = programs.worker(address, "--name", "leaving", *HTTP)
    side = side_of(leaving)
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(lambda: words(journal) == ["held"])
        rest = [mesh.submit(workload.note, str(journal), f"{n}") for n in range(50)]

        drain_by(way, programs, leaving, address)

        wait_until(lambda: ask(f"{side}/readyz") == (503, "draining\n"))
        assert ask(f"{side}/livez")[0] == 200
        assert ask(f"{side}/drain", "POST")[0] == 202  # again: the same
        programs.worker(address, "--name", "staying")
        assert [future.result(20) for future in rest] == [str(n) for n in range(50)]
        assert {future.attempt for future in rest} == {1}
        view = json.loads(ask(f"{side}/drain")[1])
        assert (view["pool"], view["state"], view["running"]) == ("leaving", "draining", 1)
        assert leaving.process.poll() is None

        gate.touch()

        assert held.result(20) == "held"
        assert leaving.wait() == 0


def test_a_drain_at_the_port_is_not_ready_in_the_very_next_answer(programs: Programs):
    address = programs.hub(TCP)[1]
    side = side_of(programs.worker(address, *HTTP, "--name", "held-up"))
    journal, gate = programs.folder / "journal", programs.folder / "gate"
    with Mesh(address) as mesh:
        held = mesh.submit(workload.hold, str(journal), "x", str(gate))
        wait_until(lambda: words(journal) == ["x"])

        assert ask(f"{side}/readyz")[0] == 200
        assert ask(f"{side}/drain", "POST")[0] == 202
        assert ask(f"{side}/readyz")[0] == 503

        gate.touch()
        assert held.result(20) == "x"


def test_drain_waits_until_the_worker_has_gone(programs: Programs):
    address = programs.hub(TCP)[1]
    one, two = (programs.worker(address, "--name", name, *HTTP) for name in ("one", "two"))
    side = side_of(one).removeprefix("http://")

    assert programs.run("drain", "--wait", "20", env={"TASKMESH_HTTP": side}).returncode == 0
    assert one.wait(2) == 0
    assert programs.run("drain", "two", "--wait", "20", "--address", address).returncode == 0
    assert two.wait(5) == 0


def test_drain_says_when_a_worker_takes_longer(programs: Programs, tmp_path: Path):
    address = programs.hub(TCP)[1]
    worker = programs.worker(address, *HTTP)
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(lambda: words(journal) == ["held"])

        outcome = programs.run("drain", "--http", side_of(worker).removeprefix("http://"), "--wait", "0.3")

        assert outcome.returncode == 4
        assert "it goes on draining" in outcome.stderr
        gate.touch()
        assert held.result(20) == "held"


def test_a_drain_that_takes_longer_is_an_error_in_json(programs: Programs, tmp_path: Path):
    address = programs.hub()[1]
    worker = programs.worker(address, "--name", "busy")
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = mesh.submit(workload.hold, str(journal), "held", str(gate))
        wait_until(journal.exists)
        outcome = programs.run("drain", "busy", "--wait", "0.01", "--address", address, "--json")
        gate.touch()
        held.result(20)

    asked, error = map(json.loads, outcome.stdout.splitlines())
    assert (outcome.returncode, outcome.stderr) == (4, "")
    assert [row["pool"] for row in asked] == ["busy"]
    assert "it goes on draining" in error["error"]["message"]
    assert worker.wait() == 0


def test_a_token_is_needed_to_drain(programs: Programs, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("0123456789abcdef" * 2)
    file.chmod(0o600)
    address = programs.hub(TCP)[1]
    worker = programs.worker(address, *HTTP, "--http-token-file", str(file))
    side = side_of(worker).removeprefix("http://")

    refused = programs.run("drain", "--http", side)
    assert (refused.returncode, "401" in refused.stderr) == (1, True)
    assert ask(f"http://{side}/drain", "POST", **bearer("x" * 20))[0] == 401
    assert worker.process.poll() is None
    assert (
        programs.run("drain", "--http", side, "--http-token-file", str(file), "--wait", "20").returncode == 0
    )


def test_which_pool_has_to_be_said(programs: Programs):
    outcome = programs.run("drain")

    assert outcome.returncode == 2
    assert "drain which pool?" in outcome.stderr


@pytest.mark.fault
@pytest.mark.parametrize("busy", [False, True])
def test_a_drain_does_not_wait_for_a_dead_hub(programs, tmp_path, busy):
    hub, address = programs.hub(TCP, TASKMESH_HUB__LEASE=LEASE, TASKMESH_HUB__BEAT="0.3")
    worker = programs.worker(address, "--grace", "600")
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    mesh = Mesh(address)
    try:
        if busy:
            mesh.submit(workload.hold, str(journal), "held", str(gate))
            wait_until(lambda: words(journal) == ["held"])
        hub.kill()
        begin = time.monotonic()
        worker.signal(signal.SIGTERM)

        assert worker.wait(12) == 0
        assert time.monotonic() - begin < 6.0  # the lease of 2 s, the end of a slot, a busy machine
    finally:
        mesh.close(cancel=True)


@pytest.mark.fault
def test_a_worker_whose_hub_never_came_ends_at_once(programs: Programs, tmp_path: Path):
    worker = programs.start("worker", "--address", f"ipc://{tmp_path}/hub", "--grace", "600", "--json", *HTTP)
    wait_until(lambda: ask(f"{side_of(worker)}/startupz")[0] == 200, 20)

    worker.signal(signal.SIGTERM)

    assert worker.wait(8) == 0
