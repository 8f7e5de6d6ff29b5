"""taskmesh's programs as real processes: started, waited for, ended; what they print goes to files."""

import contextlib
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import leaks
from tests.harness.program import Program, command, outcome_of
from tests.harness.waiting import wait_until


class Programs:
    """The resources that a test has started. They are ended in reverse order when it is over.

    Args:
        folder: where they run, and what they write goes.
        env: over ours.
        python: the interpreter that runs them.
    """

    def __init__(
        self, folder: Path, env: Mapping[str, str] | None = None, python: str = sys.executable
    ) -> None:
        self.folder = folder
        self.python = python
        self.env = dict(env or {})
        self.started: list[Program] = []
        self.workers: list[Program] = []

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
        """Start `taskmesh ARGUMENTS`; what it writes goes to files in the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{len(list(self.folder.glob('*.out')))}-{arguments[0]}"
        return self.launch(name, command(*arguments)[1:], env)

    def launch(
        self,
        name: str,
        line: Sequence[str],
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> Program:
        """Start any program under a name; `line` is for the interpreter."""
        times = sum(program.name.split("#")[0] == name for program in self.started)
        label = f"{name}#{times}" if times else name
        program = Program(self.folder, label, line, {**self.env, **(env or {})}, prepare, self.python)
        self.started.append(program)
        if "worker" in line:
            self.workers.append(program)
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
        """End everything by SIGTERM, workers before the hubs that take their goodbye."""
        for program in self.workers:
            if program.alive:
                program.terminate()
        for program in [*self.workers, *self.started]:
            program.end()

    def close(self, *, tell: bool = False) -> None:
        """Kill everything; with `tell` each program first says where its threads stand."""
        for program in reversed(self.started):
            program.close(tell=tell)

    def report(self) -> str:
        """Return what all programs wrote."""
        return "\n".join(filter(None, (program.report() for program in self.started)))


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
