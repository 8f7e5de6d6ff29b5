"""Real containers: podman and runc, with what .ci/box has prepared."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness import leaks
from tests.harness.requirement import require
from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
BOX = Path(sys.prefix) / "box"
BASE, IMAGE = "localhost/taskmesh-base", "localhost/taskmesh-test"
OFFLINE = ("--network", "none", "--volume", f"{BOX}/wheels:/wheels:ro", "--build-arg", f"BASE={BASE}")
WHEELS = "PIP_OPTIONS=--no-index --find-links=/wheels"
SECURE = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--tmpfs=/scratch",
    "--env=TMPDIR=/scratch",
)
"""As the chart has it."""


def podman(*arguments: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs podman on the tests' own images and containers."""
    program = shutil.which("podman")
    ready = program and os.geteuid() == 0 and (BOX / "wheels").exists()
    require(ready, "containers: root on Debian or Ubuntu, and `make test-helm`, which prepares podman")
    outcome = subprocess.run(
        [str(program), *arguments],
        env=_environment(),
        cwd=BOX if arguments[0] == "run" else ROOT,  # a container's monitor leaves a file there: "oom"
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert outcome.returncode == 0 or not check, f"podman {' '.join(arguments)}:\n{outcome.stderr}"
    return outcome


def _environment() -> dict[str, str]:
    """Ours, without the mark of a test: podman's monitors outlive the command, which is what they are for."""
    kept = {name: value for name, value in os.environ.items() if name != leaks.MARK}
    files = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    return {**kept, **{name: str(BOX / file) for name, file in files.items()}}


def build(tag: str, file: str, context: str, arguments: Mapping[str, str] | None = None) -> str:
    """Builds an image without a network; returns its name."""
    given = [f"--build-arg={name}={value}" for name, value in (arguments or {}).items()]
    line = ("build", "-q", *OFFLINE, *given, "-t", tag, "-f", file, context)
    podman(*line, timeout=240)
    return tag


class Containers:
    """A test's containers, in one network namespace that has nothing but its loopback."""

    def __init__(self, tasks: Path) -> None:
        self._tasks = tasks
        self._names: list[str] = []
        self._prefix = f"taskmesh-{os.getpid()}-{id(self):x}"
        pause = ("--entrypoint=python", IMAGE, "-c", "import signal; signal.pause()")
        self._network = self._run("network", ("--network=none",), pause)

    def _run(self, name: str, options: Sequence[str], line: Sequence[str]) -> str:
        full = f"{self._prefix}-{name}"
        self._names.append(full)
        podman("run", "--detach", f"--name={full}", *options, *line)
        return full

    def start(self, name: str, *line: str, options: Sequence[str] = ()) -> str:
        """`taskmesh LINE` as a container's process 1; returns the container's name once it is ready."""
        shared = f"--network=container:{self._network}"
        tasks = f"--volume={self._tasks}:/tasks:ro"
        full = self._run(name, (*SECURE, shared, tasks, *options), (IMAGE, *line, "--json"))
        wait_until(lambda: '"ready"' in self.log(full), 30, f"{name} is ready")
        return full

    def hub(self, name: str = "hub") -> str:
        """A hub on the default port."""
        return self.start(
            name, "hub", options=("--env=TASKMESH_HUB__LEASE=2", "--env=TASKMESH_HUB__BEAT=0.2")
        )

    def worker(self, name: str, *line: str, options: Sequence[str] = ()) -> str:
        """A pool of that hub."""
        return self.start(name, "worker", "--name", name, "--concurrency", "1", *line, options=options)

    def log(self, container: str) -> str:
        """What a container has written."""
        outcome = podman("logs", container)
        return outcome.stdout + outcome.stderr

    def call(self, container: str, function: str, *arguments: str) -> dict[str, Any]:
        """`taskmesh submit` in a container."""
        line = ("exec", container, "taskmesh", "submit", f"boxed:{function}", *arguments, "--json")
        outcome = podman(*line, check=False)
        found: dict[str, Any] = json.loads(outcome.stdout or outcome.stderr)
        return found

    def exit_code(self, container: str) -> int:
        """How a container has ended."""
        return int(podman("inspect", "--format={{.State.ExitCode}}", container).stdout)

    def end(self) -> None:
        """Removes all."""
        for name in reversed(self._names):
            podman("rm", "--force", "--time=0", "--ignore", name)
