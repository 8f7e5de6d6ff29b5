"""taskmesh's programs as real processes: started, waited for, ended; what they print goes to files."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import leaks
from tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
KEPT = (leaks.MARK, "TASKMESH_OS")
READY_S = 40.0
END_S = 15.0


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a program: ours without settings of taskmesh, and with the checkout on the path."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TASKMESH_") or name in KEPT
    }
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "COLUMNS": "200", **(more or {})}


def command(*arguments: str) -> list[str]:
    """The command line of `taskmesh ARGUMENTS`."""
    return [sys.executable, "-m", "taskmesh.cli", *arguments]


def outcome_of(
    line: Sequence[str], folder: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What became of a command line that ends by itself."""
    return subprocess.run(
        line,
        cwd=folder,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@contextlib.contextmanager
def heeding_interrupts() -> Iterator[None]:
    """Programs started in this block hear SIGINT and SIGHUP, also where we ignore them ourselves."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    former_hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, former_hangup)
        signal.signal(signal.SIGINT, former)


class Program:
    """One `taskmesh ...` that runs until it is ended."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.out")))
        self.folder = folder
        self.name = arguments[0]
        self.out = folder / f"{number}-{arguments[0]}.out"
        self.err = folder / f"{number}-{arguments[0]}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err, heeding_interrupts():
            self.process = subprocess.Popen(
                command(*arguments),
                cwd=folder,
                env=environment(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> str:
        return self.err.read_text(errors="replace")

    def ready(self, timeout: float = READY_S) -> dict[str, Any]:
        """The ready line, as JSON; fails when the program ends before."""

        def line() -> str:
            ended = self.process.poll()
            first, newline, _ = self.out.read_text().partition("\n")
            assert newline or ended is None, f"{self.process.args} ended with {ended}:\n{self.errors}"
            return first if newline else ""

        found = json.loads(wait_until(line, timeout, f"ready line of {self.process.args}:\n{self.errors}"))
        assert found["event"] == "ready"
        return found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = END_S) -> int:
        """The exit code."""
        return self.process.wait(timeout)

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.process.kill()
        self.process.wait(END_S)

    def end(self) -> None:
        """Ends it whatever state it is in."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise


class Programs:
    """What a test has started; ended in reverse order when it is over."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.env = dict(env or {})
        self.started: list[Program] = []

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
        program = Program(self.folder, *arguments, env={**self.env, **(env or {})})
        self.started.append(program)
        return program

    def hub(self, bind: str = "tcp://127.0.0.1:0", **env: str) -> tuple[Program, str]:
        """A hub and its gateway's address."""
        program = self.start("hub", "--bind", bind, "--json", env=env)
        return program, program.ready()["gateway"]

    def worker(self, address: str, *options: str, slots: int = 1, **env: str) -> Program:
        """A worker; its ready line has been read."""
        line = ("worker", "--address", address, "--concurrency", str(slots), "--json", *options)
        program = self.start(*line, env=env)
        program.ready()
        return program

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return outcome_of(command(*arguments), self.folder, env)

    def end(self) -> None:
        """Ends everything, workers before the hubs that take their goodbye."""
        workers = [program for program in self.started if program.name == "worker"]
        for program in workers:
            if program.process.poll() is None:
                program.signal(signal.SIGTERM)
        for program in [*workers, *self.started]:
            program.end()


@pytest.fixture
def programs(tmp_path: Path, processes: None) -> Iterator[Programs]:
    """Programs of one test: they are ended when it is over."""
    programs = Programs(tmp_path)
    try:
        yield programs
    finally:
        programs.end()


def shared(folder: Path) -> Iterator[Programs]:
    """For fixtures: programs of several tests.

    Their slots come and go while a test runs, which is not that test's doing: they have a mark of their own,
    and at the end nothing that has it may be left.
    """
    mark = uuid.uuid4().hex
    programs = Programs(folder, {leaks.MARK: mark})
    try:
        yield programs
    finally:
        programs.end()
        wait_until(lambda: not marked(mark), 5, "the shared programs' processes are gone")


def marked(mark: str) -> list[psutil.Process]:
    """The processes that have the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(leaks.MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def rows(outcome: subprocess.CompletedProcess[str]) -> Sequence[dict[str, Any]]:
    """The JSON that a command has printed."""
    assert outcome.stdout, outcome.stderr
    found: Sequence[dict[str, Any]] = json.loads(outcome.stdout)
    return found
