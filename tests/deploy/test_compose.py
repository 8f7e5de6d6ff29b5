"""The file of deploy/compose.yaml: its schema, and its services as processes on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from taskmesh import Mesh
from taskmesh.config import load
from tests.deploy.schemas import check_schema
from tests.harness.gate import Gate, wait_at
from tests.harness.ports import lasting_address
from tests.harness.program import READY_S, ROOT, Program, command, outcome_of
from tests.harness.programs import Programs
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.usefixtures("processes")
FILE = ROOT / "deploy" / "compose.yaml"
PROJECT: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = PROJECT["services"]
LASTING = [name for name in SERVICES if name != "keys"]


class Project:
    """The services as processes: each volume is a folder, and all hosts are this one.

    Attributes:
        folder: holds the volumes.
        address: of the hub, in place of that of the file.
        running: the services by name.
    """

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.address = lasting_address()
        self.running: dict[str, Program] = {}

    def here(self, name: str, text: str) -> str:
        """A value or script of a service with folders for its volumes, and the hub's address here."""
        for volume in SERVICES[name]["volumes"]:
            source, target, *_ = volume.split(":")
            text = text.replace(target, str(self.volume(source)))
        return text.replace("tcp://0.0.0.0:5550", self.address).replace("tcp://hub:5550", self.address)

    def volume(self, name: str) -> Path:
        """The folder that stands for a volume."""
        return self.folder / name

    def make_keys(self) -> subprocess.CompletedProcess[str]:
        """Run what the service `keys` runs, but for the change of owner."""
        service = SERVICES["keys"]
        for each in ("hub", "worker", "client"):
            self.volume(f"{each}-keys").mkdir(parents=True, exist_ok=True)
            link = self.folder / "keys" / each
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(self.volume(f"{each}-keys"))
        (script,) = service["command"]
        own = script.replace("cd /keys", f"cd {self.folder / 'keys'}").replace(
            "chown -R 10001:10001 .", "true"
        )
        taskmesh = f'taskmesh() {{ {sys.executable} -m taskmesh "$@"; }}\n'
        shell, options = service["entrypoint"]
        return outcome_of([str(shutil.which(shell)), options, taskmesh + own], self.folder, timeout=120)

    def start(self) -> None:
        """Start all services that last."""
        self.volume("journal").mkdir(exist_ok=True)
        for name in LASTING:
            told = {key: self.here(name, value) for key, value in SERVICES[name]["environment"].items()}
            told["TASKMESH_HTTP"] = "127.0.0.1:0"
            line = command(*SERVICES[name]["command"], "--json")[1:]
            self.running[name] = self.programs.launch(name, line, told)
        for program in self.running.values():
            program.ready()

    def health(self, name: str) -> int:
        """The exit code of a service's health check."""
        kind, taskmesh, *line = SERVICES[name]["healthcheck"]["test"]
        assert (kind, taskmesh) == ("CMD", "taskmesh")
        program = self.running[name]
        place = re.search(r"http://([\d.]+:\d+)", program.errors + program.text())
        assert place
        return self.programs.run(*line, env={"TASKMESH_HTTP": place[1]}).returncode

    def mesh(self) -> Mesh:
        """A program on the machine of the hub."""
        return Mesh(self.address, keys=str(self.volume("client-keys")), open_timeout=READY_S)


@pytest.fixture
def project(programs: Programs, tmp_path: Path) -> Project:
    project = Project(programs, tmp_path / "volumes")
    project.folder.mkdir()
    assert project.make_keys().returncode == 0
    return project


def test_the_file_is_one_of_compose() -> None:
    check_schema("compose-spec", FILE)


def test_it_has_a_hub_and_two_workers_that_are_started_again() -> None:
    assert LASTING == ["hub", "worker-1", "worker-2"]
    assert {SERVICES[name]["restart"] for name in LASTING} == {"unless-stopped"}
    assert SERVICES["keys"]["build"] == {"context": "..", "dockerfile": "workers/Containerfile"}
    assert (ROOT / "workers" / "Containerfile").exists()
    volumes = {volume.split(":")[0] for one in SERVICES.values() for volume in one["volumes"]}
    assert {name for name in volumes if not name.startswith(".")} == set(PROJECT["volumes"])


@pytest.mark.parametrize("name", LASTING)
def test_its_variables_are_settings_and_a_stop_has_time_for_the_grace(name: str) -> None:
    settings = load({}, environ=SERVICES[name]["environment"])

    stop = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert stop >= settings.pool.grace + 10 * ("worker" in name)


@pytest.mark.timeout(180)  # seven programs, one after the other
def test_keys_are_made_once_and_the_hub_gets_no_others(project: Project) -> None:
    secrets = sorted(str(path.relative_to(project.folder)) for path in project.folder.glob("*-keys/*.secret"))
    before = [(project.folder / name).read_bytes() for name in secrets]

    assert project.make_keys().returncode == 0

    assert [(project.folder / name).read_bytes() for name in secrets] == before
    assert secrets == [
        "client-keys/client.secret",
        "client-keys/mesh.secret",
        "client-keys/operator.secret",
        "hub-keys/hub.secret",
        "worker-keys/mesh.secret",
        "worker-keys/worker.secret",
    ]


@pytest.mark.timeout(180)  # twelve programs, one after the other
def test_a_task_survives_when_all_services_are_killed(project: Project, gates: Callable[[], Gate]) -> None:
    gate = gates()
    project.start()
    for name in LASTING:
        wait_until(lambda name=name: project.health(name) == 0, READY_S, f"health of {name}")
    with project.mesh() as mesh:
        job = mesh.with_options(detach=True).submit(wait_at, gate.path)
        wait_until(lambda: job.state == "running")

    for name in LASTING:
        project.running[name].kill_all()
    project.start()
    gate.open()

    with project.mesh() as mesh:
        assert mesh.attach(job.task_id).result(40) == "passed"
