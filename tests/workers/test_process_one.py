"""A worker as process 1 of a PID namespace, as in a container: no init beside it."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from tests.harness.program import command, environment
from tests.harness.programs import Programs, rows
from tests.harness.requirement import require
from tests.harness.waiting import wait_until

TASKS = """\
import os, pathlib, time

def orphan():
    if not os.fork():
        if not os.fork():
            os.execv("/bin/true", ["true"])
        os._exit(0)
    os.wait()
    return os.getpid()

def zombies():
    states = [f.read_text().rpartition(")")[2].split()[0] for f in pathlib.Path("/proc").glob("[0-9]*/stat")]
    return states.count("Z")

def long(start, go):
    pathlib.Path(start).touch()
    while not pathlib.Path(go).exists():
        time.sleep(0.01)
    return "finished"
"""


class Contained:
    """A worker in a PID namespace of its own; `first` is its process 1, seen from outside."""

    def __init__(self, programs: Programs, address: str) -> None:
        unshare = shutil.which("unshare")
        require(unshare and os.geteuid() == 0, "root and unshare (util-linux), for a PID namespace")
        line = command("worker", "ours", "--address", address, "--concurrency", "2", "--name", "boxed")
        self.errors = programs.folder / "boxed.err"
        with self.errors.open("wb") as err:
            self.outer = subprocess.Popen(
                [str(unshare), "--pid", "--fork", "--mount-proc", "--kill-child", *line],
                cwd=programs.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )
        assert self.outer.stdout is not None
        assert "ready" in self.outer.stdout.readline(), self.errors.read_text()
        (self.first,) = psutil.Process(self.outer.pid).children()

    def end(self) -> None:
        self.outer.kill()
        self.outer.wait(10)
        assert self.outer.stdout is not None
        self.outer.stdout.close()


@pytest.fixture
def address(programs: Programs) -> str:
    (programs.folder / "ours.py").write_text(TASKS)
    return programs.hub()[1]


@pytest.fixture
def boxed(programs: Programs, address: str) -> Iterator[Contained]:
    worker = Contained(programs, address)
    yield worker
    worker.end()


def call(programs: Programs, address: str, what: str, *arguments: str) -> object:
    outcome = programs.run("submit", f"ours:{what}", *arguments, "--address", address, "--json")
    return rows(outcome)["result"]


def test_orphans_of_tasks_are_buried(programs, address, boxed):
    for _ in range(5):
        call(programs, address, "orphan")

    wait_until(lambda: call(programs, address, "zombies") == 0, 10)


def test_sigterm_to_process_1_drains_and_gives_its_exit_code(programs, address, boxed):
    started, go = programs.folder / "started", programs.folder / "go"
    line = command("submit", "ours:long", str(started), str(go), "--address", address)
    with subprocess.Popen(
        line, cwd=programs.folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as client:
        wait_until(started.exists)
        boxed.first.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in boxed.errors.read_text())
        go.touch()

        assert client.communicate(timeout=20)[0].strip() == "finished"
    assert boxed.outer.wait(20) == 0
