"""The units of deploy/systemd: systemd takes them, and what they start survives as they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from taskmesh import Mesh
from taskmesh.config import load
from tests.deploy.units import FOLDER, PROGRAM, Unit
from tests.harness.gate import Gate, wait_at
from tests.harness.ports import lasting_address
from tests.harness.program import Program, command
from tests.harness.programs import Programs
from tests.harness.requirement import require
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")
HUB, WORKER = "taskmesh-hub", "taskmesh-worker"
FILES = ("hub.env", "worker.env")


class Services:
    """Hub and worker with the environments of their units, started again as systemd would."""

    def __init__(self, programs: Programs, state: Path) -> None:
        self.programs, self.state = programs, state
        self.address = lasting_address()
        self.running = {HUB: self.start(HUB)}
        self.running[WORKER] = self.start(WORKER)

    def start(self, name: str) -> Program:
        """Start what the unit starts; the addresses of its file are others here."""
        unit = Unit(name)
        (self.state / unit.one("StateDirectory")).mkdir(exist_ok=True, parents=True)
        told = unit.environment(self.state)
        assert told["TASKMESH_ADDRESS"] == "tcp://127.0.0.1:5550"
        told |= {"TASKMESH_ADDRESS": self.address, "TASKMESH_HTTP": "127.0.0.1:0"}
        program = self.programs.launch(name, [*command(*unit.line(), "--json")[1:]], told)
        program.ready()
        return program

    def die(self, name: str) -> None:
        """Kill all of a service, as its host might, and start it as Restart=always does."""
        assert Unit(name).one("Restart") == "always"
        self.running[name].kill_all()
        self.running[name] = self.start(name)


@pytest.fixture
def services(programs: Programs, tmp_path: Path) -> Services:
    return Services(programs, tmp_path / "state")


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    require(shutil.which("systemd-analyze"), "systemd-analyze: apt install systemd")
    for name in (HUB, WORKER):
        text = (FOLDER / f"{name}.service").read_text(encoding="utf-8")
        (tmp_path / f"{name}.service").write_text(text.replace(PROGRAM, "/bin/true"), encoding="utf-8")

    line = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.glob("*.service")))]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)

    assert [said for said in done.stderr.splitlines() if "taskmesh" in said] == []


@pytest.mark.parametrize("name", FILES)
def test_every_variable_of_a_file_is_a_setting(name: str) -> None:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    said = [re.fullmatch(r"#?(TASKMESH_\w+)=(.+)", line) for line in lines if "=" in line]

    for each in filter(None, said[1:]):  # the first is the sentence that says how
        assert load({}, environ={each[1]: each[2]})
    assert sum(each is not None for each in said[1:]) == len(said) - 1


def test_a_stop_of_the_worker_leaves_time_for_its_grace() -> None:
    unit = Unit(WORKER)
    grace = float(unit.environment(Path("/var/lib"))["TASKMESH_GRACE"])

    assert unit.seconds("TimeoutStopSec") >= grace + 10
    assert unit.one("KillMode") == "mixed"  # else systemd would end the tasks themselves


def test_hub_and_worker_are_different_users() -> None:
    assert Unit(HUB).one("User") != Unit(WORKER).one("User")


@pytest.mark.smoke
def test_a_task_survives_when_hub_and_worker_are_killed(
    services: Services, gates: Callable[[], Gate]
) -> None:
    gate = gates()
    with Mesh(services.address) as mesh:
        job = mesh.with_options(detach=True).submit(wait_at, gate.path)
        wait_until(lambda: job.state == "running")

    services.die(HUB)
    services.die(WORKER)
    gate.open()

    with Mesh(services.address) as mesh:
        assert mesh.attach(job.task_id).result(40) == "passed"


def test_a_stop_lets_a_task_end(services: Services, gates: Callable[[], Gate]) -> None:
    gate = gates()
    with Mesh(services.address) as mesh:
        job = mesh.submit(wait_at, gate.path)
        wait_until(lambda: job.state == "running")

        services.running[WORKER].terminate()
        wait_until(lambda: "draining" in services.running[WORKER].errors)
        gate.open()

        assert job.result(30) == "passed"
        assert services.running[WORKER].wait(Unit(WORKER).seconds("TimeoutStopSec")) == 0
        services.running[HUB].terminate()
        assert services.running[HUB].wait(Unit(HUB).seconds("TimeoutStopSec")) == 0


def test_a_wrong_setting_ends_with_the_code_that_is_not_tried_again(programs: Programs) -> None:
    done = programs.run(*Unit(HUB).line(), env={"TASKMESH_KEYS": "nowhere"})

    assert str(done.returncode) in Unit(HUB).one("RestartPreventExitStatus").split(), json.dumps(done.stderr)
