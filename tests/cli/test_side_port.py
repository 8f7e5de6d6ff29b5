"""The side port of real programs: probes, figures, `taskmesh health`."""

import json
import re
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.cli import probed
from tests.harness.journal import words
from tests.harness.program import Program, outcome_of
from tests.harness.programs import Programs
from tests.harness.side_port import ask, samples
from tests.harness.waiting import wait_until
from tests.hosting import workload

TCP = "tcp://127.0.0.1:0"
HTTP = ("--http", "127.0.0.1:0")


def side_of(program: Program) -> str:
    """Where a program's side port is, as http://HOST:PORT."""
    found = wait_until(lambda: re.search(r"http://[\d.:]+", program.errors), 20, "the side port's line")
    return found.group()


@pytest.mark.smoke
def test_a_hub_and_a_worker_tell_their_probes_and_figures(programs: Programs, tmp_path: Path):
    hub = programs.start("hub", "--bind", TCP, *HTTP, "--json")
    address = hub.ready()["gateway"]
    worker = programs.worker(address, "--name", "mine", "--queues", "a,default", *HTTP, slots=2)
    hub_side, side = side_of(hub), side_of(worker)
    for probe in ("livez", "readyz", "startupz"):
        assert ask(f"{hub_side}/{probe}")[0] == 200
        assert ask(f"{side}/{probe}")[0] == 200
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with Mesh(address) as mesh:
        held = [mesh.submit(workload.hold, str(journal), f"{n}", str(gate)) for n in range(3)]
        wait_until(lambda: len(words(journal)) == 2)

        queues = json.loads(ask(f"{hub_side}/v1/queues")[1])["queues"]
        assert queues["default"] == {"depth": 1, "running": 2, "pools": 1, "slots": 2}
        assert queues["a"] == {"depth": 0, "running": 0, "pools": 1, "slots": 2}
        found = samples(side)
        assert found['taskmesh_tasks_running{pool="mine"}'] == 2
        assert found['taskmesh_worker_slots{pool="mine"}'] == 2
        assert found['taskmesh_worker_draining{pool="mine"}'] == 0
        assert found['taskmesh_worker_connected{pool="mine"}'] == 1
        assert samples(hub_side)['taskmesh_queue_depth{queue="default"}'] == 1
        assert ask(f"{side}/livez")[0] == 200
        gate.touch()
        assert [future.result(20) for future in held] == ["0", "1", "2"]
        assert samples(hub_side)["taskmesh_tasks_finished_total"] == 3


def test_a_worker_without_a_hub_is_live_and_started_but_not_ready(programs: Programs, tmp_path: Path):
    gateway = f"ipc://{tmp_path}/hub"
    worker = programs.start("worker", "--address", gateway, "--concurrency", "1", *HTTP, "--json")
    side = side_of(worker)

    wait_until(lambda: ask(f"{side}/startupz")[0] == 200, 20)
    assert ask(f"{side}/livez")[0] == 200
    assert ask(f"{side}/readyz") == (503, "no session with the hub\n")

    programs.hub(gateway)

    wait_until(lambda: ask(f"{side}/readyz")[0] == 200, 20)


def test_up_has_the_figures_of_both(programs: Programs):
    up = programs.start("up", "--bind", TCP, "--concurrency", "1", "--name", "here", *HTTP, "--json")
    side = side_of(up)

    found = wait_until(lambda: samples(side) if ask(f"{side}/readyz")[0] == 200 else {}, 20)

    assert found['taskmesh_worker_slots{pool="here"}'] == 1
    assert found["taskmesh_tasks_accepted_total"] == 0
    assert ask(f"{side}/drain", "POST")[0] == 404


def test_a_plain_probe_loads_no_more_than_a_socket(programs: Programs):
    hub = programs.start("hub", "--bind", TCP, *HTTP, "--json")
    side = side_of(hub).removeprefix("http://")
    hub.ready()
    code = (
        "import sys; from taskmesh.cli import main; "
        "sys.argv[1:] = ['health', 'live', '--http', sys.argv[1]]; "
        "assert main() == 0; assert not {'typer', 'http.client', 'taskmesh.config'} & set(sys.modules)"
    )

    quick = outcome_of([sys.executable, "-c", code, side])

    assert (quick.returncode, quick.stdout) == (0, "live\n"), quick.stderr


def test_a_probe_of_something_else_is_the_command_s_own_error(programs: Programs):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"

        def hang_up() -> None:
            silent.accept()[0].close()

        other = threading.Thread(target=hang_up)
        other.start()
        assert probed(["health", "live", "--http", at]) is None
        other.join()
    assert probed(["health", "live", "--http", at]) is None
    assert probed(["health", "live"]) is None
    outcome = programs.run("health", "live", "--http", at)

    assert (outcome.returncode, "no side port answers" in outcome.stderr) == (1, True)


def test_health_is_a_probe_for_images_without_curl(programs: Programs):
    hub = programs.start("hub", "--bind", TCP, *HTTP, "--json")
    side = side_of(hub).removeprefix("http://")
    hub.ready()

    for probe in ("live", "ready", "startup"):
        assert programs.run("health", probe, "--http", side).returncode == 0
    asked = programs.run("health", "--json", env={"TASKMESH_HTTP": side})
    assert json.loads(asked.stdout) == {"probe": "ready", "ok": True, "message": "ready"}

    hub.signal(signal.SIGTERM)
    hub.wait()
    gone = programs.run("health", "live", "--http", side)
    assert gone.returncode == 1
    assert "no side port answers" in gone.stderr
    assert programs.run("health", "live").returncode == 2


@pytest.mark.parametrize("program", ["hub", "up", "worker"])
def test_beyond_loopback_without_a_token_nothing_starts(programs: Programs, program: str):
    outcome = programs.run(program, "--http", "0.0.0.0:0")

    assert outcome.returncode == 2
    assert "--http-token-file" in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.usefixtures("processes")
def test_a_program_without_a_side_port_loads_nothing_for_it():
    code = (
        "import sys, taskmesh.hub.program, taskmesh.pool.program, taskmesh.cli.application\n"
        "print(sorted({'http', 'http.server', 'ssl', 'email', 'socketserver'} & set(sys.modules)))"
    )
    line = [sys.executable, "-c", code]
    outcome = outcome_of(line)

    assert (outcome.returncode, outcome.stdout.strip()) == (0, "[]"), outcome.stderr
